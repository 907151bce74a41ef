"""A client of the kubelet's PodResources API for callers with a short time budget.

The method `warm` does the slow part (import grpc, connect) in a worker; a caller that comes earlier gets the error
KUBELET-UNREACHABLE at once. A connection that fails is replaced by a new one, because the kubelet creates a new socket
when it starts.

The kubelet has the method Get since 1.27, on by default since 1.34. Without Get, all pods are listed instead, and the
connection remembers that. Claims, too, are reported by default since 1.34 (gate KubeletPodResourcesDynamicResources).
Init containers are never reported, except sidecars (restartable init containers).
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any  # Any: grpc has no types
from urllib.parse import quote

from nri_rdma.errors import ErrorCode, KubeletError
from nri_rdma.host.kubelet import podresources_messages
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.text.refusals import bounded

BUDGET_S = 0.05
WARM_S = 5.0
MAX_MESSAGE_BYTES = 16 << 20
"""The largest answer that is accepted; a larger one fails the call. The kubelet's own clients have this limit, too."""
RATE_PAUSE_S = 0.01
"""Seconds between two attempts after the kubelet's rate limit refused a call. The kubelet allows 100 calls a second for
all its clients together, after a burst of 10."""

_MAX_SOCKET_PATH = 107  # sun_path of include/uapi/linux/un.h has 108, with the NUL
_MAX_DETAIL = 300
_SERVICE = "/v1.PodResourcesLister/"
_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise a new channel inherits the old one's reconnect pause
    ("grpc.enable_retries", 0),  # of_pod retries within its budget
    ("grpc.default_authority", "localhost"),  # the default is the path, which Go's HTTP/2 rejects as a host
)


class PodResources:
    """A client of the kubelet's PodResources API. Safe for use by several threads; the creator closes it.

    The calling thread must not be in another network namespace, because grpc starts threads of its own.
    """

    def __init__(self, socket: Path, *, budget_s: float = BUDGET_S) -> None:
        self._socket = socket
        self._budget_s = budget_s
        self._lock = threading.Lock()
        self._connection: _Connection | None = None  # None: `warm` has not run
        self._closed = threading.Event()

    def warm(self) -> None:
        """Import grpc, connect and make one call, within 5 s. Blocks: call it from a worker. It may be called again.

        Raises KubeletError if the kubelet does not answer; later calls of `of_pod` then connect by themselves.
        """
        connection = self._connect()
        try:
            connection.ask_get("", "", time.monotonic() + WARM_S)
        except _Failed as failed:
            if failed.is_unknown_pod or failed.is_without_get or failed.is_rate_limit:
                return  # the kubelet answers
            if failed.is_lost and not self._closed.is_set():
                self._renew(connection)  # the old connection would pause before it tries again
            raise self._error(failed, "") from failed

    def of_pod(self, namespace: str, name: str) -> PodAllocation | None:
        """Return the devices that the kubelet allocated to a pod; None if the kubelet does not know the pod. Takes at
        most `budget_s` seconds.

        Raises KubeletError with one of three codes: KUBELET-UNREACHABLE; KUBELET-LATE if no answer comes in time or the
        kubelet's rate limit refuses the call; KUBELET-ANSWER if the answer is invalid.
        """
        deadline = time.monotonic() + self._budget_s
        connection = self._connection
        if connection is None:
            raise self._unreachable("it is not connected yet", f"pod {bounded(f'{namespace}/{name}')}")
        was_renewed = is_limited = False
        while True:
            try:
                return _asked(connection, namespace, name, deadline)
            except _Failed as failed:
                is_limited |= failed.is_rate_limit
                if failed.is_lost and not was_renewed and not self._closed.is_set():
                    connection, was_renewed = self._renew(connection), True
                elif not (failed.is_rate_limit and self._paused(deadline)):
                    where = f"pod {bounded(f'{namespace}/{name}')}"
                    raise self._error(failed, where, is_limited=is_limited) from failed

    def close(self) -> None:
        """Close the connection. Callers that wait for an answer get KubeletError (KUBELET-UNREACHABLE). Closing twice
        does nothing."""
        self._closed.set()
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _connect(self) -> _Connection:
        if len(os.fsencode(self._socket)) > _MAX_SOCKET_PATH:
            raise self._unreachable(f"a socket's path has at most {_MAX_SOCKET_PATH} bytes", "")
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise grpc writes to stderr when the kubelet ends
        try:
            import grpc
        except ImportError as error:
            what = f"the kubelet cannot be asked: {error.name} is not installed"
            raise KubeletError(ErrorCode.KUBELET_UNREACHABLE, what, hint="pip install grpcio") from error
        with self._lock:
            if self._connection is None:
                self._connection = _Connection(grpc, self._socket)
            return self._connection

    def _renew(self, failed: _Connection) -> _Connection:
        """Replace the connection `failed` by a new one and return the new one. If another thread has replaced it
        already, return that thread's connection."""
        with self._lock:
            if self._connection is failed:
                failed.close()
                self._connection = failed.anew()
            assert self._connection is not None  # set by _connect and never removed
            return self._connection

    def _paused(self, deadline: float) -> bool:
        """Pause for RATE_PAUSE_S after the kubelet's rate limit refused a call. Return False if too little time is left
        before the deadline, or if the client was closed."""
        return time.monotonic() + 2 * RATE_PAUSE_S < deadline and not self._closed.wait(RATE_PAUSE_S)

    def _error(self, failed: _Failed, where: str, *, is_limited: bool = False) -> KubeletError:
        """Return the error for the last call that failed. `is_limited`: the rate limit refused a call before it."""
        detail = ascii(failed.text[:_MAX_DETAIL])[1:-1]
        if self._closed.is_set():
            return self._unreachable("the daemon is ending", where)
        if failed.is_lost:
            return self._unreachable("", where, detail)
        if failed.is_late or failed.is_rate_limit:
            late = f"no answer within {self._budget_s * 1000:g} ms"
            why = "too many calls" if is_limited or failed.is_rate_limit else late
            what = f"the kubelet did not report the pod's devices: {why}"
            hint = "nothing, the next attempt asks again; look at the load of the node when it goes on"
            return KubeletError(ErrorCode.KUBELET_LATE, what, where=where, hint=hint, detail=detail)
        what = f"the kubelet's answer cannot be used: it is the error {failed.code}"
        hint = "look at the kubelet's log"
        return KubeletError(ErrorCode.KUBELET_ANSWER, what, where=where, hint=hint, detail=detail)

    def _unreachable(self, why: str, where: str, detail: str = "") -> KubeletError:
        what = f"the kubelet cannot be asked at {self._socket}{f': {why}' if why else ''}"
        hint = "check that the kubelet runs and that this is its PodResources socket; the next attempt connects again"
        return KubeletError(ErrorCode.KUBELET_UNREACHABLE, what, where=where, hint=hint, detail=detail)


def _asked(connection: _Connection, namespace: str, name: str, deadline: float) -> PodAllocation | None:
    if connection.has_get:
        try:
            return podresources_messages.allocation_of(connection.ask_get(namespace, name, deadline), namespace, name)
        except _Failed as failed:
            if failed.is_unknown_pod:
                return None
            if not failed.is_without_get:
                raise
    return podresources_messages.listed_allocation(connection.ask_list(deadline), namespace, name)


class _Failed(Exception):  # noqa: N818 - an answer within this module, not an error for callers
    """A failed grpc call, with the name (`code`) and the text of its grpc status."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text

    @property
    def is_lost(self) -> bool:
        """Return whether the call may succeed over a new connection. The status CANCELLED means that another thread has
        closed this connection."""
        return self.code in {"UNAVAILABLE", "CANCELLED"}

    @property
    def is_late(self) -> bool:
        return self.code == "DEADLINE_EXCEEDED"

    @property
    def is_rate_limit(self) -> bool:
        """Return whether the kubelet's rate limit refused the call. grpc uses this status also for an answer that is
        larger than the client's own limit."""
        return self.code == "RESOURCE_EXHAUSTED" and "larger than max" not in self.text

    @property
    def is_unknown_pod(self) -> bool:
        """Return whether the kubelet does not know the pod. Kubelets up to 1.37 report this with the general status
        UNKNOWN."""
        return self.code == "NOT_FOUND" or (self.code == "UNKNOWN" and self.text.endswith("not found"))

    @property
    def is_without_get(self) -> bool:
        """Return whether the kubelet does not support the method Get: the kubelet is older than 1.27, or Get is turned
        off."""
        said_off = "disabled" in self.text or "not enabled" in self.text
        return self.code == "UNIMPLEMENTED" or (self.code == "UNKNOWN" and said_off)


class _Connection:
    """A grpc channel to the kubelet. It remembers whether the kubelet supports the method Get (`has_get`)."""

    def __init__(self, grpc: Any, socket: Path) -> None:
        self._grpc = grpc
        self._socket = socket
        self._channel = grpc.insecure_channel(f"unix:{quote(str(socket))}", options=_OPTIONS)
        self._get = self._channel.unary_unary(f"{_SERVICE}Get")  # without serializers: takes and returns bytes
        self._list = self._channel.unary_unary(f"{_SERVICE}List")
        self.has_get = True

    def anew(self) -> _Connection:
        """Return a new connection to this connection's socket."""
        return _Connection(self._grpc, self._socket)

    def ask_get(self, namespace: str, name: str, deadline: float) -> bytes:
        """Return the kubelet's encoded answer about one pod. Raises _Failed, with the grpc status, if the call fails or
        the `deadline` (seconds of time.monotonic) passes."""
        try:
            return self._call(self._get, podresources_messages.get_request(namespace, name), deadline)
        except _Failed as failed:
            self.has_get = not failed.is_without_get
            raise

    def ask_list(self, deadline: float) -> bytes:
        """Return the kubelet's encoded answer about all pods. Raises _Failed, with the grpc status, if the call fails
        or the `deadline` (seconds of time.monotonic) passes."""
        return self._call(self._list, podresources_messages.list_request(), deadline)

    def close(self) -> None:
        self._channel.close()

    def _call(self, method: Any, request: bytes, deadline: float) -> bytes:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise _Failed("DEADLINE_EXCEEDED", "no time was left for the call")
        try:
            answer: bytes = method(request, timeout=left_s)
        except self._grpc.RpcError as error:
            raise _Failed(error.code().name, error.details() or "") from error
        except ValueError as error:  # grpc raises this for a closed channel
            raise _Failed("CANCELLED", str(error)) from error
        return answer

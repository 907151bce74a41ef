"""containerd's own API, as far as the end of a refused sandbox needs it, and its configuration.

A connection is for a few calls of one thread and is thrown away after them: refusals are rare, and a containerd that
restarted in between is found again without waiting for grpc's pauses. grpc is imported with the first of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self  # Any: grpc has no types
from urllib.parse import quote

from google.protobuf.message import DecodeError

from nri_rdma.pb import containers_pb2 as containers
from nri_rdma.pb import cristatus_pb2 as cristatus
from nri_rdma.pb import sandboxes_pb2 as sandboxes

CALL_S = 10.0
"""Time limit of a call; after it the call fails. containerd limits its own clean-up alike: an unmount on a loaded disk
takes seconds."""
SANDBOXER = "podsandbox"
"""containerd's name for the controller of sandboxes that are a container with a pause process."""

_NAMESPACE = (("containerd-namespace", "k8s.io"),)
"""The namespace of containerd in which all of CRI's objects are."""
_MAX_SOCKET_PATH = 107  # sun_path of include/uapi/linux/un.h has 108, with the NUL
_MAX_DETAIL = 300
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # else a new channel inherits the old one's pause after a failure
    ("grpc.enable_retries", 0),  # we retry
    ("grpc.default_authority", "localhost"),  # else the path, which Go's HTTP/2 does not take for a host
)


class ContainerdError(Exception):
    """containerd did not do what it was asked for. `is_absent`: there is no containerd to ask."""

    def __init__(self, text: str, *, is_absent: bool = False) -> None:
        super().__init__(text)
        self.is_absent = is_absent


class _NotFoundError(Exception):
    """containerd has no object of that id."""


class Containerd:
    """A connection; use it in a ``with`` statement. Every call blocks, for CALL_S seconds at most, and raises
    ContainerdError. Not for a thread that is in another network namespace: grpc starts threads of its own."""

    def __init__(self, socket: Path, *, call_s: float = CALL_S) -> None:
        """Connect. Raises ContainerdError when there is no socket."""
        self._call_s = call_s
        _refuse_absent(socket)
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it tells of the runtime's end on our stderr, past our log
        try:
            import grpc
        except ImportError as error:
            raise ContainerdError(f"{error.name} is not installed (pip install grpcio)", is_absent=True) from error
        self._grpc = grpc
        self._channel = grpc.insecure_channel(f"unix:{quote(str(socket))}", options=_OPTIONS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._channel.close()

    def labels_of(self, container_id: str) -> Mapping[str, str] | None:
        """Return the labels of a container's record; None when there is no record."""
        request = containers.GetContainerRequest(id=container_id)
        try:
            answer = self._call("containerd.services.containers.v1.Containers/Get", request)
        except _NotFoundError:
            return None
        try:
            return dict(containers.GetContainerResponse.FromString(answer).container.labels)
        except DecodeError as error:
            raise ContainerdError(f"the record of {container_id} is no message of this API") from error

    def has_sandbox(self, sandbox_id: str) -> bool:
        """Return whether containerd still has a sandbox of that id: it is being started, or CRI lists it."""
        try:
            self._call("containerd.services.sandbox.v1.Store/Get", sandboxes.StoreGetRequest(sandbox_id=sandbox_id))
        except _NotFoundError:
            return False
        return True

    def shut_down(self, sandbox_id: str) -> None:
        """End the sandbox's process and remove its container, snapshot and folders. Repeating it is no error.

        A process that Shutdown ends is deleted twice at the same time, by Shutdown and by the controller, which has
        seen its end; of two such calls the shim may survive both (seen with 2.1.9 on a busy disk). Stop waits until the
        controller has deleted it."""
        stop = sandboxes.ControllerStopRequest(sandbox_id=sandbox_id, sandboxer=SANDBOXER)
        with suppress(_NotFoundError):  # the controller has forgotten the sandbox, or Shutdown says what is wrong
            self._call("containerd.services.sandbox.v1.Controller/Stop", stop)
        request = sandboxes.ControllerShutdownRequest(sandbox_id=sandbox_id, sandboxer=SANDBOXER)
        try:
            self._call("containerd.services.sandbox.v1.Controller/Shutdown", request)
        except _NotFoundError as error:
            raise ContainerdError(f"it has no controller {SANDBOXER}") from error

    def configuration(self) -> Any:
        """Return the configuration of containerd's CRI service, read from JSON; None when it tells none that can be
        read."""
        answer = self._call("runtime.v1.RuntimeService/Status", cristatus.StatusRequest(verbose=True))
        try:
            return json.loads(cristatus.StatusResponse.FromString(answer).info.get("config", "null"))
        except (DecodeError, ValueError):
            return None

    def _call(self, method: str, request: Any) -> bytes:
        call = self._channel.unary_unary(f"/{method}")  # without serializers: bytes
        try:
            answer: bytes = call(request.SerializeToString(), timeout=self._call_s, metadata=_NAMESPACE)
        except self._grpc.RpcError as error:
            status, detail = error.code().name, ascii((error.details() or "")[:_MAX_DETAIL])[1:-1]
            if status == "NOT_FOUND":
                raise _NotFoundError from error
            raise ContainerdError(f"{method}: {status}: {detail}", is_absent=status == "UNAVAILABLE") from error
        return answer


def _refuse_absent(socket: Path) -> None:
    if len(os.fsencode(socket)) > _MAX_SOCKET_PATH:
        raise ContainerdError(f"a socket's path has at most {_MAX_SOCKET_PATH} bytes", is_absent=True)
    try:
        mode_is_socket = socket.is_socket()
    except OSError as error:
        raise ContainerdError(f"{socket}: {error.strerror or error}", is_absent=True) from error
    if not mode_is_socket:
        raise ContainerdError(f"there is no socket {socket}", is_absent=True)

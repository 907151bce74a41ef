"""A client of containerd's own gRPC API, with the calls that clean up a refused sandbox and read the configuration.

A connection serves a few calls of one thread and is then closed: sandboxes are rarely refused, and a new connection
finds a restarted containerd without waiting for grpc's reconnect pauses. grpc is imported for the first connection.
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
"""Time limit of a call in seconds, which containerd also uses for its own clean-up: an unmount on a busy disk takes
seconds."""
SANDBOXER = "podsandbox"
"""containerd's name for the controller of sandboxes that consist of a container with a pause process."""

_NAMESPACE = (("containerd-namespace", "k8s.io"),)
"""The containerd namespace that holds all objects of CRI."""
_MAX_SOCKET_PATH = 107  # sun_path of include/uapi/linux/un.h has 108, with the NUL
_MAX_DETAIL = 300
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # otherwise a new channel inherits the old one's reconnect pause
    ("grpc.enable_retries", 0),  # the caller retries
    ("grpc.default_authority", "localhost"),  # the default is the path, which Go's HTTP/2 rejects as a host
)


class ContainerdError(Exception):
    """The error if containerd did not do what was requested. `is_absent`: no containerd answers at the socket."""

    def __init__(self, text: str, *, is_absent: bool = False) -> None:
        super().__init__(text)
        self.is_absent = is_absent


class _NotFoundError(Exception):
    """The error if containerd has no object with the requested id."""


class Containerd:
    """A connection to containerd; use it in a ``with`` statement. Every call blocks for at most `call_s` seconds, and
    raises ContainerdError if containerd refuses or does not answer.

    The calling thread must not be in another network namespace, because grpc starts threads of its own.
    """

    def __init__(self, socket: Path, *, call_s: float = CALL_S) -> None:
        """Open the connection. `call_s` is the time limit of each call in seconds. Raises ContainerdError if there is
        no such socket or grpc is not installed."""
        self._call_s = call_s
        _refuse_absent(socket)
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise grpc writes to stderr when the runtime ends
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
        """Return the labels of a container's record in containerd; None if there is no record."""
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
        """Return whether containerd has a sandbox with this id: one that is being started, or one that CRI lists."""
        try:
            self._call("containerd.services.sandbox.v1.Store/Get", sandboxes.StoreGetRequest(sandbox_id=sandbox_id))
        except _NotFoundError:
            return False
        return True

    def shut_down(self, sandbox_id: str) -> None:
        """End the sandbox's process and remove its container, snapshot and folders. The call may be repeated.

        Stop is called before Shutdown because it waits until containerd's sandbox controller has deleted the process.
        Without Stop, both Shutdown and the controller delete the process; its shim may then survive (seen with 2.1.9 on
        a busy disk).
        """
        stop = sandboxes.ControllerStopRequest(sandbox_id=sandbox_id, sandboxer=SANDBOXER)
        with suppress(_NotFoundError):  # the controller may have dropped the sandbox; if not, Shutdown fails below
            self._call("containerd.services.sandbox.v1.Controller/Stop", stop)
        request = sandboxes.ControllerShutdownRequest(sandbox_id=sandbox_id, sandboxer=SANDBOXER)
        try:
            self._call("containerd.services.sandbox.v1.Controller/Shutdown", request)
        except _NotFoundError as error:
            raise ContainerdError(f"it has no controller {SANDBOXER}") from error

    def configuration(self) -> Any:
        """Return the configuration of containerd's CRI service, parsed from JSON; None if the answer has no valid
        configuration."""
        answer = self._call("runtime.v1.RuntimeService/Status", cristatus.StatusRequest(verbose=True))
        try:
            return json.loads(cristatus.StatusResponse.FromString(answer).info.get("config", "null"))
        except (DecodeError, ValueError):
            return None

    def _call(self, method: str, request: Any) -> bytes:
        call = self._channel.unary_unary(f"/{method}")  # without serializers: takes and returns bytes
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

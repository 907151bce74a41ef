"""One pool's device plugin: a gRPC server on its own socket in the kubelet's folder, and its registration with the
kubelet.

All calls block, so the thread that answers NRI events must not use this module. grpc is imported with the first server.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any  # Any: grpc has no types
from urllib.parse import quote

from google.protobuf.message import DecodeError

from nri_rdma.doors.deviceplugin import answers
from nri_rdma.doors.deviceplugin.answers import Supply
from nri_rdma.errors import ErrorCode, KubeletError
from nri_rdma.model.pool import Pool, ShareGives
from nri_rdma.observe.spans import Recorder
from nri_rdma.pb import deviceplugin_pb2 as pb

log = logging.getLogger(__name__)

API_VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"
CALL_S = 5.0
"""Timeout of the registration call in seconds."""
_SERVICE = "v1beta1.DevicePlugin"
_LONGEST_PATH = 107
"""Maximum length of a Unix socket's path on Linux, in bytes."""
_THREADS = 4
"""Threads of one server: one for the kubelet's ListAndWatch, one for ListAndWatch of a kubelet that has just ended, and
two for the other calls."""
_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.default_authority", "localhost"),
)


class PoolServer:
    """The gRPC server of one pool's device plugin. `serve` starts it and `close` ends it."""

    def __init__(
        self,
        pool: Pool,
        folder: Path,
        supply: Callable[[], Supply],
        on_allocate: Callable[[str, list[str]], None],
        spans: Recorder,
    ) -> None:
        """`supply` returns the devices and pools of the last scan. `on_allocate` is called with the resource and the
        ids of each allocation before the kubelet gets the answer."""
        self.pool = pool
        self._folder = folder
        self._path = folder / endpoint_of(pool)
        self._supply = supply
        self._on_allocate = on_allocate
        self._spans = spans
        self.guard = ""
        """The CDI device that adds the guard, an OCI hook that keeps a container from starting without its devices; "":
        containers get no guard."""
        self.brings_nodes = False
        """Whether the answer to Allocate contains the device nodes of the allocated devices."""
        self._changed = threading.Condition()
        self._told = answers.told_of(pool, supply())
        self._server: Any = None

    @property
    def is_there(self) -> bool:
        """Return whether the socket of this device plugin still exists. The kubelet removes all sockets in its folder
        when it starts."""
        return self._server is not None and self._path.exists()

    def serve(self) -> None:
        """Listen on a new socket and register with the kubelet. Raises KubeletError if either fails; the server is
        closed then."""
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # else grpc writes to stderr when a kubelet ends
        import grpc

        self.close()
        _refuse_other(self.pool.resource, self._folder)
        with suppress(FileNotFoundError):
            self._path.unlink()
        server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="device-plugin"), options=_OPTIONS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, self._handlers(grpc)),))
        try:
            server.add_insecure_port(f"unix:{quote(str(self._path))}")
        except RuntimeError as error:
            raise _cannot_listen(self._path, str(error)) from error
        server.start()
        self._server = server
        try:
            self._register(grpc)
        except KubeletError:
            self.close()
            raise

    def tell_changes(self) -> None:
        """Send the pool's present ids and their health to the kubelet if they have changed."""
        told = answers.told_of(self.pool, self._supply())
        with self._changed:
            if told != self._told:
                log.info("shares", extra={"resource": self.pool.resource, "healthy": answers.healthy_of(told)})
                self._told = told
                self._changed.notify_all()

    def close(self) -> None:
        """End all calls and remove the socket. Calling it twice is allowed."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(grace=None).wait(CALL_S)

    # -- below -------------------------------------------------------------------------------------------------------

    def _register(self, grpc: Any) -> None:
        request = pb.RegisterRequest(
            version=API_VERSION, endpoint=self._path.name, resource_name=self.pool.resource, options=_options(self.pool)
        )
        kubelet = self._folder / KUBELET_SOCKET
        with grpc.insecure_channel(f"unix:{quote(str(kubelet))}", options=_OPTIONS) as channel:
            call = channel.unary_unary("/v1beta1.Registration/Register", request_serializer=None)
            try:
                call(request.SerializeToString(), timeout=CALL_S)
            except grpc.RpcError as error:
                what = f"{self.pool.resource} is not registered with the kubelet"
                raise _unreachable(what, kubelet, str(error.details())) from error
        has = answers.count_of(self.pool, self._told)
        log.info("registered with the kubelet", extra={"resource": self.pool.resource, "shares": has})

    def _handlers(self, grpc: Any) -> dict[str, Any]:
        unary = grpc.unary_unary_rpc_method_handler
        return {
            "GetDevicePluginOptions": unary(lambda _request, _context: _options(self.pool).SerializeToString()),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "GetPreferredAllocation": unary(self._prefer),
            "Allocate": unary(self._allocate),
        }

    def _list_and_watch(self, _request: bytes, context: Any) -> Iterator[bytes]:
        """Yield the pool's ids and their health, now and after each change, until the kubelet or the daemon ends."""
        context.add_callback(self._wake)
        told: answers.Told = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._told != told or not context.is_active())  # noqa: B023
                if not context.is_active():
                    return
                told = self._told
            yield answers.listed(self.pool, told)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _prefer(self, data: bytes, context: Any) -> bytes:
        return answers.preferences(self.pool, _read(pb.PreferredAllocationRequest, data, context), self._supply())

    def _allocate(self, data: bytes, context: Any) -> bytes:
        attributes = {"rdma.pool": self.pool.name, "rdma.resource": self.pool.resource}
        traceparent = str(dict(context.invocation_metadata() or ()).get("traceparent", ""))
        with self._spans.span("Allocate", attributes, traceparent=traceparent) as span:
            request = _read(pb.AllocateRequest, data, context)
            containers = [list(it.devices_ids) for it in request.container_requests]
            shares = [share for shares in containers for share in shares]
            span.attributes["rdma.shares"] = ",".join(shares)
            if not self.pool.is_guard:  # the ids of the guard resource are not shares
                self._on_allocate(self.pool.resource, shares)
            nodes = partial(answers.nodes_of, self.pool, self._supply()) if self.brings_nodes else None
            return answers.allocated(self.pool, containers, self.guard, nodes)


def _read(kind: Any, data: bytes, context: Any) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        import grpc

        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no {kind.__name__}: {error}")
        raise  # not reached: abort() raises


def _refuse_other(resource: str, folder: Path) -> None:
    """Raise KubeletError if k8s-rdma-shared-dev-plugin serves `resource`.

    The kubelet would use the plugin that registered last, and both plugins would give the same devices away.
    """
    name = f"{resource.rpartition('/')[2]}.sock"
    for path in (folder / name, folder.parent / "plugins_registry" / name):
        if _is_served(path):
            raise KubeletError(
                ErrorCode.RESOURCE_TAKEN,
                f"{resource} is served by another device plugin, k8s-rdma-shared-dev-plugin by the name of its socket",
                where=str(path),
                hint="remove its DaemonSet (or the resource from its configuration), or the pool from ours",
            )


def _is_served(path: Path) -> bool:
    """Return whether a process listens on this socket. A leftover socket file does not count."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def endpoint_of(pool: Pool) -> str:
    """Return the file name of the socket on which the pool's device plugin listens."""
    return f"nri-rdma_{pool.name}.sock"


def _options(pool: Pool) -> pb.DevicePluginOptions:
    return pb.DevicePluginOptions(get_preferred_allocation_available=pool.gives is ShareGives.DEVICE)


def _cannot_listen(path: Path, detail: str) -> KubeletError:
    size = len(os.fsencode(path))
    if size <= _LONGEST_PATH:
        return _unreachable(f"cannot listen at {path}", path.parent, detail)
    what = f"cannot listen at {path}: the path has {size} bytes, and Linux takes {_LONGEST_PATH}"
    hint = "give the pool a shorter name, or the kubelet a shorter folder"
    return KubeletError(ErrorCode.KUBELET_UNREACHABLE, what, where=str(path.parent), hint=hint)


def _unreachable(what: str, where: Path, detail: str) -> KubeletError:
    hint = "nothing to do: it is tried again; see that the kubelet runs and that its folder is the one in the settings"
    return KubeletError(ErrorCode.KUBELET_UNREACHABLE, what, where=str(where), hint=hint, detail=detail[:300])

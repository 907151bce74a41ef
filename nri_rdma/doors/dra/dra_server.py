"""The driver's two sockets in the kubelet's folders: the kubelet finds the driver by the one, and calls it at the
other.

The kubelet lists plugins_registry once a second, and asks each new socket there for its driver's name, version and
other socket. It asks again after its own start. If a socket is replaced by one with the same name, the kubelet
unregisters the driver and registers it a second later. Therefore a daemon that finds the sockets of a killed daemon
uses other names.

The kubelet's calls are coroutines in one thread. A call that waits for a device costs nothing, and is cancelled when
the kubelet gives up waiting. grpc is imported with the first server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from pathlib import Path
from typing import Any  # Any: grpc has no types
from urllib.parse import quote

from google.protobuf.message import DecodeError

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.doors.dra.preparing import Preparer
from nri_rdma.errors import ErrorCode, KubeletError, NriRdmaError
from nri_rdma.model.claim import ClaimName
from nri_rdma.model.registration import Registration
from nri_rdma.observe.spans import Recorder
from nri_rdma.pb import dra_pb2 as dra
from nri_rdma.pb import pluginregistration_pb2 as registration
from nri_rdma.tasks.loop_thread import LoopThread

log = logging.getLogger(__name__)

VERSION = "v1.DRAPlugin"
"""The only supported version of the DRA plugin API; Kubernetes 1.34 and later have it."""
NOT_SERVED = "the daemon is starting"
"""The reason why the driver is not registered, right after the daemon's start."""
_SERVICE, _REGISTRATION = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "pluginregistration.Registration"
CALL_S = 45.0
"""How long the kubelet waits for an answer, if its call has no deadline."""
ANSWER_S = 3.0
"""Seconds before a call's deadline at which it is answered with an error, if a device is still not free."""
_START_S = 10.0
"""How long the start of a server may take."""
_STOP_S = 1.0


class DraServer:
    """The gRPC servers of the DRA driver. `serve` starts them and `close` ends them."""

    def __init__(self, plugins: Path, preparer: Preparer, on_registered: Callable[[], None], spans: Recorder) -> None:
        """`plugins` is the kubelet's folder of plugins. `on_registered` is called each time the kubelet has registered
        the driver."""
        registry = plugins.parent / "plugins_registry"
        self._pairs = [
            (plugins / DRIVER / f"dra{mark}.sock", registry / f"{DRIVER}{mark}-reg.sock") for mark in ("", "-2")
        ]
        """Two pairs of names: the driver's own socket, and the socket by which the kubelet finds it. The first pair is
        in use."""
        self._preparer = preparer
        self._on_registered = on_registered
        self._spans = spans
        self._loop = LoopThread("dra")
        self._servers: list[Any] = []
        self.registration = Registration(error=NOT_SERVED, since=time.time())
        """The state of the driver's registration with the kubelet: whether the kubelet has registered it, and if not,
        why."""

    @property
    def is_there(self) -> bool:
        """Return whether both sockets of the driver still exist in the kubelet's folders."""
        return bool(self._servers) and all(path.exists() for path in self._pairs[0])

    def serve(self) -> None:
        """Listen on two new sockets. Raises KubeletError if that fails; no socket is left then."""
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        import grpc

        self._stop()
        self._pairs.sort(key=lambda it: it[1].exists())
        (endpoint, registrar), left = self._pairs
        self._note_registration(f"the kubelet has not called {registrar} yet")
        unary = grpc.unary_unary_rpc_method_handler
        calls = {"NodePrepareResources": unary(self._prepare), "NodeUnprepareResources": unary(self._unprepare)}
        asked = {"GetInfo": unary(self._info), "NotifyRegistrationStatus": unary(self._notified)}
        try:
            if not registrar.parent.is_dir():  # grpc would log this error to stderr
                raise FileNotFoundError(f"there is no {registrar.parent}")
            endpoint.parent.mkdir(parents=True, exist_ok=True)
            self._listen(endpoint, grpc.method_handlers_generic_handler(_SERVICE, calls))
            # Last, because the kubelet calls as soon as it finds this socket.
            self._listen(registrar, grpc.method_handlers_generic_handler(_REGISTRATION, asked))
            for path in left:
                path.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:
            self._stop()
            unheard = KubeletError(
                ErrorCode.KUBELET_UNREACHABLE,
                "cannot listen for the kubelet",
                where=str(registrar),
                hint="nothing to do: it is tried again; see that the kubelet runs, and check kubelet_plugins_dir",
                detail=str(error)[:300],
            )
            self._note_registration(str(unheard))
            raise unheard from error

    def close(self) -> None:
        """End all calls and the thread, and remove the sockets. Calling it twice is allowed."""
        self._stop()
        self._loop.close(_STOP_S)
        self._preparer.close()

    def _stop(self) -> None:
        """End all calls and remove the sockets."""
        servers, self._servers = self._servers, []
        for server in reversed(servers):  # first the socket by which the kubelet finds us
            try:
                self._loop.run(server.stop(grace=None), _STOP_S)
            except FutureTimeoutError:
                log.warning("a call of the kubelet does not end", extra={"driver": DRIVER})

    def _note_registration(self, error: str) -> None:
        self.registration = self.registration.then(error, time.time())

    def _listen(self, path: Path, handler: Any) -> None:
        with suppress(FileNotFoundError):
            path.unlink()
        self._servers.append(self._loop.run(_started(f"unix:{quote(str(path))}", handler), _START_S))

    async def _info(self, _request: bytes, _context: Any) -> bytes:
        told = registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._pairs[0][0]), supported_versions=[VERSION]
        )
        data: bytes = told.SerializeToString()
        return data

    async def _notified(self, data: bytes, context: Any) -> bytes:
        told = await _read(registration.RegistrationStatus, data, context)
        error = "" if told.plugin_registered else told.error or "the kubelet does not say why"
        self._note_registration(f"the kubelet refuses the driver: {error}" if error else "")
        if error:
            log.error("the kubelet refuses the driver of claims", extra={"error": error})
        else:
            log.info("registered with the kubelet", extra={"driver": DRIVER})
            self._on_registered()
        return b""

    async def _prepare(self, data: bytes, context: Any) -> bytes:
        request = await _read(dra.NodePrepareResourcesRequest, data, context)
        left_s = context.time_remaining()
        by = time.monotonic() + (CALL_S if left_s is None else left_s) - ANSWER_S
        answer = dra.NodePrepareResourcesResponse()

        async def prepare(claim: dra.Claim) -> None:
            entry = answer.claims[claim.uid]  # indexing adds the entry: a claim without devices needs one, too
            for it in await self._preparer.prepare(_name(claim), by):
                entry.devices.add(
                    request_names=[it.request],
                    pool_name=it.pool,
                    device_name=it.device,
                    cdi_device_ids=it.cdi_devices,
                )

        await self._each("NodePrepareResources", request, answer, prepare, context)
        prepared: bytes = answer.SerializeToString()
        return prepared

    async def _unprepare(self, data: bytes, context: Any) -> bytes:
        request = await _read(dra.NodeUnprepareResourcesRequest, data, context)
        answer = dra.NodeUnprepareResourcesResponse()

        async def unprepare(claim: dra.Claim) -> None:
            answer.claims[claim.uid].SetInParent()
            self._preparer.unprepare(_name(claim))

        await self._each("NodeUnprepareResources", request, answer, unprepare, context)
        unprepared: bytes = answer.SerializeToString()
        return unprepared

    async def _each(
        self, method: str, request: Any, answer: Any, work: Callable[[dra.Claim], Awaitable[None]], context: Any
    ) -> None:
        """Run `work` on all claims of a request concurrently, each in a span. The error of a claim goes into the part
        of `answer` for that claim."""
        metadata = dict(context.invocation_metadata() or ())

        async def one(claim: dra.Claim) -> None:
            attributes = {"rdma.claim": f"{claim.namespace}/{claim.name}", "rdma.claim.uid": claim.uid}
            with self._spans.span(method, attributes, traceparent=str(metadata.get("traceparent", ""))) as span:
                try:
                    await work(claim)
                except Exception as error:  # noqa: BLE001 - the kubelet has the sentence, and tries again
                    span.error = answer.claims[claim.uid].error = _told(_NOT_DONE[method], claim, error)

        await asyncio.gather(*map(one, request.claims))


_NOT_DONE = {
    "NodePrepareResources": "a claim is not prepared",
    "NodeUnprepareResources": "a claim is not unprepared",
}
"""By the kubelet's method: the log message if the call fails."""


async def _started(address: str, handler: Any) -> Any:
    """Return a running server that listens on the address. Raises RuntimeError if it cannot listen."""
    import grpc.aio

    server: Any = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(address)
    await server.start()
    return server


def _name(claim: dra.Claim) -> ClaimName:
    return ClaimName(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _told(what: str, claim: dra.Claim, error: Exception) -> str:
    """Log an error, and return its text for the kubelet, which writes it into an event of the pod."""
    extra = {"claim": f"{claim.namespace}/{claim.name}", "error": str(error)}
    if isinstance(error, NriRdmaError | OSError):
        log.warning(what, extra=extra)
        return error.for_author if isinstance(error, NriRdmaError) else str(error)
    log.error(what, extra=extra, exc_info=error)
    return f"nri-rdma: INTERNAL: {error!r}. Next: the daemon's log has the traceback."


async def _read(message: Any, data: bytes, context: Any) -> Any:
    """Decode a request. If it cannot be decoded, abort the call with INVALID_ARGUMENT."""
    import grpc

    try:
        return message.FromString(data)
    except DecodeError as error:
        why = f"nri-rdma: not a {message.DESCRIPTOR.name}: {error}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)

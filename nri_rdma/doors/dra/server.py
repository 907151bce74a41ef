"""Our two sockets in the kubelet's folders: the driver's own, and the one by which the kubelet finds it.

The kubelet looks into plugins_registry once a second, asks a socket there for its name and version, and calls the
driver's socket from then on; after its own start it asks again. A socket that was made anew under its name it first
unregisters, and registers a second later; so who finds those of a daemon that was killed takes other names.

Its calls are coroutines of one thread: one that waits for a device costs nothing, and it is cancelled when the kubelet
gives it up. grpc is imported with the first server.
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
"""The only version that we serve: that of Kubernetes 1.34 and later."""
NOT_SERVED = "the daemon is starting"
"""Why the driver is not registered right after the daemon's start."""
_SERVICE, _REGISTRATION = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "pluginregistration.Registration"
CALL_S = 45.0
"""How long the kubelet waits for the answer to a call, where it does not say so."""
ANSWER_S = 3.0
"""How long before that a call is answered with the reason why a device is not free."""
_START_S = 10.0
"""How long sockets may take to be made."""
_STOP_S = 1.0


class DraServer:
    """Serves until closed."""

    def __init__(self, plugins: Path, preparer: Preparer, on_registered: Callable[[], None], spans: Recorder) -> None:
        """`plugins` is the kubelet's folder; `on_registered` is called whenever the kubelet has taken us."""
        registry = plugins.parent / "plugins_registry"
        self._pairs = [
            (plugins / DRIVER / f"dra{mark}.sock", registry / f"{DRIVER}{mark}-reg.sock") for mark in ("", "-2")
        ]
        """The driver's own socket, and the one by which the kubelet finds it; the first pair is that in use."""
        self._preparer = preparer
        self._on_registered = on_registered
        self._spans = spans
        self._loop = LoopThread("dra")
        self._servers: list[Any] = []
        self.registration = Registration(error=NOT_SERVED, since=time.time())
        """Whether the kubelet knows the driver."""

    @property
    def is_there(self) -> bool:
        """Return whether the kubelet finds our sockets."""
        return bool(self._servers) and all(path.exists() for path in self._pairs[0])

    def serve(self) -> None:
        """Listen anew. Raises KubeletError; then nobody listens."""
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
            if not registrar.parent.is_dir():  # grpc would write a line of its own for it
                raise FileNotFoundError(f"there is no {registrar.parent}")
            endpoint.parent.mkdir(parents=True, exist_ok=True)
            self._listen(endpoint, grpc.method_handlers_generic_handler(_SERVICE, calls))
            # Last: the kubelet calls at once.
            self._listen(registrar, grpc.method_handlers_generic_handler(_REGISTRATION, asked))
            for path in left:
                path.unlink(missing_ok=True)
        except (OSError, RuntimeError) as error:
            self._stop()
            unheard = KubeletError(
                ErrorCode.KUBELET_UNREACHABLE,
                "cannot listen for the kubelet",
                where=str(registrar),
                hint="nothing, it is tried again; see that the kubelet runs, and its folder in kubelet_plugins_dir",
                detail=str(error)[:300],
            )
            self._note_registration(str(unheard))
            raise unheard from error

    def close(self) -> None:
        """End all calls, remove the sockets and end the thread. Again is no error."""
        self._stop()
        self._loop.close(_STOP_S)
        self._preparer.close()

    def _stop(self) -> None:
        """End all calls and remove the sockets."""
        servers, self._servers = self._servers, []
        for server in reversed(servers):  # first the one by which the kubelet finds us
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
            entry = answer.claims[claim.uid]  # to ask for it puts it in: a claim without devices is answered, too
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
        """Do the work on all claims of a request at the same time, each in a span; put its error into its answer."""
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
"""For the log."""


async def _started(address: str, handler: Any) -> Any:
    """Return a server that listens there. Raise RuntimeError where it cannot."""
    import grpc.aio

    server: Any = grpc.aio.server()
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(address)
    await server.start()
    return server


def _name(claim: dra.Claim) -> ClaimName:
    return ClaimName(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _told(what: str, claim: dra.Claim, error: Exception) -> str:
    """Log an error, and return it for the kubelet, which writes it into an event of the pod."""
    extra = {"claim": f"{claim.namespace}/{claim.name}", "error": str(error)}
    if isinstance(error, NriRdmaError | OSError):
        log.warning(what, extra=extra)
        return error.for_author if isinstance(error, NriRdmaError) else str(error)
    log.error(what, extra=extra, exc_info=error)
    return f"nri-rdma: INTERNAL: {error!r}. Next: the daemon's log has the traceback."


async def _read(message: Any, data: bytes, context: Any) -> Any:
    """Return the request, or end the call."""
    import grpc

    try:
        return message.FromString(data)
    except DecodeError as error:
        why = f"nri-rdma: not a {message.DESCRIPTOR.name}: {error}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)

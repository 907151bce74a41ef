"""Our two sockets in the kubelet's folders: the driver's own, and the one by which the kubelet finds it.

The kubelet looks into plugins_registry once a second, asks a socket there for its name and version, and calls the
driver's socket from then on; after its own start it asks again. Every call blocks; grpc is imported with the first
server.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any  # Any: grpc has no types
from urllib.parse import quote

from google.protobuf.message import DecodeError

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.doors.dra.preparing import Preparer
from nri_rdma.errors import ErrorCode, KubeletError, NriRdmaError
from nri_rdma.model.claim import ClaimName
from nri_rdma.model.registration import Registration
from nri_rdma.observe.durations import Durations, measured
from nri_rdma.pb import dra_pb2 as dra
from nri_rdma.pb import pluginregistration_pb2 as registration

log = logging.getLogger(__name__)

VERSION = "v1.DRAPlugin"
"""The only version that we serve: that of Kubernetes 1.34 and later."""
NOT_SERVED = "the runtime has not reported its pods yet"
"""Why the driver is not registered right after the daemon's start."""
_SERVICE, _REGISTRATION = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "pluginregistration.Registration"
_THREADS = 8
"""Calls at one time: one that waits for a device must not keep the others waiting."""
_STOP_S = 5.0


class DraServer:
    """Serves until closed."""

    def __init__(
        self, plugins: Path, preparer: Preparer, on_registered: Callable[[], None], calls: Durations | None = None
    ) -> None:
        """`plugins` is the kubelet's folder; `on_registered` is called whenever the kubelet has taken us. Each claim of
        a call is counted in `calls`."""
        self._endpoint = plugins / DRIVER / "dra.sock"
        self._registrar = plugins.parent / "plugins_registry" / f"{DRIVER}-reg.sock"
        self._preparer = preparer
        self._on_registered = on_registered
        self._calls = calls
        self._servers: list[Any] = []
        self.registration = Registration(error=NOT_SERVED, since=time.time())
        """Whether the kubelet knows the driver."""

    @property
    def is_there(self) -> bool:
        """Return whether the kubelet finds our sockets."""
        return bool(self._servers) and self._registrar.exists() and self._endpoint.exists()

    def serve(self) -> None:
        """Listen anew. Raises KubeletError; then nobody listens."""
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        import grpc

        self.close()
        self._note_registration(f"the kubelet has not called {self._registrar} yet")
        unary = grpc.unary_unary_rpc_method_handler
        calls = {"NodePrepareResources": unary(self._prepare), "NodeUnprepareResources": unary(self._unprepare)}
        asked = {"GetInfo": unary(self._info), "NotifyRegistrationStatus": unary(self._notified)}
        try:
            if not self._registrar.parent.is_dir():  # grpc would write a line of its own for it
                raise FileNotFoundError(f"there is no {self._registrar.parent}")
            self._endpoint.parent.mkdir(parents=True, exist_ok=True)
            self._listen(grpc, self._endpoint, _SERVICE, calls)
            self._listen(grpc, self._registrar, _REGISTRATION, asked)  # last: the kubelet calls at once
        except (OSError, RuntimeError) as error:
            self.close()
            unheard = KubeletError(
                ErrorCode.KUBELET_UNREACHABLE,
                "cannot listen for the kubelet",
                where=str(self._registrar),
                hint="nothing, it is tried again; see that the kubelet runs, and its folder in kubelet_plugins_dir",
                detail=str(error)[:300],
            )
            self._note_registration(str(unheard))
            raise unheard from error

    def close(self) -> None:
        """End all calls and remove the sockets. Again is no error."""
        servers, self._servers = self._servers, []
        for server in reversed(servers):  # first the one by which the kubelet finds us
            server.stop(grace=None).wait(_STOP_S)

    def _note_registration(self, error: str) -> None:
        self.registration = self.registration.then(error, time.time())

    def _listen(self, grpc: Any, path: Path, service: str, handlers: dict[str, Any]) -> None:
        with suppress(FileNotFoundError):
            path.unlink()
        server = grpc.server(ThreadPoolExecutor(_THREADS, thread_name_prefix="dra"))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{quote(str(path))}")
        server.start()
        self._servers.append(server)

    def _info(self, _request: bytes, _context: Any) -> bytes:
        told = registration.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(self._endpoint), supported_versions=[VERSION]
        )
        data: bytes = told.SerializeToString()
        return data

    def _notified(self, data: bytes, context: Any) -> bytes:
        told = _read(registration.RegistrationStatus, data, context)
        error = "" if told.plugin_registered else told.error or "the kubelet does not say why"
        self._note_registration(f"the kubelet refuses the driver: {error}" if error else "")
        if error:
            log.error("the kubelet refuses the driver of claims", extra={"error": error})
        else:
            log.info("registered with the kubelet", extra={"driver": DRIVER})
            self._on_registered()
        return b""

    def _prepare(self, data: bytes, context: Any) -> bytes:
        answer = dra.NodePrepareResourcesResponse()
        for claim in _read(dra.NodePrepareResourcesRequest, data, context).claims:
            entry = answer.claims[claim.uid]  # to ask for it puts it in: a claim without devices is answered, too
            try:
                prepare = partial(self._preparer.prepare, _name(claim))
                for it in measured(self._calls, "NodePrepareResources", prepare):
                    entry.devices.add(
                        request_names=[it.request],
                        pool_name=it.pool,
                        device_name=it.device,
                        cdi_device_ids=it.cdi_devices,
                    )
            except Exception as error:  # noqa: BLE001 - the kubelet has the sentence, and tries again
                entry.error = _told("a claim is not prepared", claim, error)
        prepared: bytes = answer.SerializeToString()
        return prepared

    def _unprepare(self, data: bytes, context: Any) -> bytes:
        answer = dra.NodeUnprepareResourcesResponse()
        for claim in _read(dra.NodeUnprepareResourcesRequest, data, context).claims:
            entry = answer.claims[claim.uid]
            try:
                measured(self._calls, "NodeUnprepareResources", partial(self._preparer.unprepare, _name(claim)))
            except Exception as error:  # noqa: BLE001 - as above
                entry.error = _told("a claim is not unprepared", claim, error)
        unprepared: bytes = answer.SerializeToString()
        return unprepared


def _name(claim: dra.Claim) -> ClaimName:
    return ClaimName(namespace=claim.namespace, name=claim.name, uid=claim.uid)


def _told(what: str, claim: dra.Claim, error: Exception) -> str:
    """Log an error, and return it for the kubelet, which writes it into an event of the pod."""
    extra = {"claim": f"{claim.namespace}/{claim.name}", "error": str(error)}
    if isinstance(error, NriRdmaError | OSError):
        log.warning(what, extra=extra)
        return str(error)
    log.error(what, extra=extra, exc_info=error)
    return f"nri-rdma: INTERNAL: {error!r}. Next: the daemon's log has the traceback."


def _read(message: Any, data: bytes, context: Any) -> Any:
    """Return the request, or end the call."""
    import grpc

    try:
        return message.FromString(data)
    except DecodeError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"nri-rdma: not a {message.DESCRIPTOR.name}: {error}")

"""The doors of a daemon through which the kubelet comes: its device plugins, and its driver of claims."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any  # Any: a document of JSON

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.claims import make_claims_door
from nri_rdma.daemon.device_plugins import make_device_plugins
from nri_rdma.daemon.sources import Sources
from nri_rdma.engine.engine import Engine
from nri_rdma.host.kubelet.grpc_begun import begin_grpc
from nri_rdma.model.pool import PoolDoor
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers


class KubeletDoors:
    """Both doors; without pools that are asked through them nothing happens. The creator closes them."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        workers: Workers,
        listeners: Listeners,
        sources: Sources,
        runtime: Callable[[], str],
        spans: Recorder,
    ) -> None:
        """`runtime` returns the name of the container runtime that has connected."""
        self._reported: Future[None] = Future()
        self._device_plugins = make_device_plugins(settings, engine, workers, listeners, runtime, spans)
        self._claims = make_claims_door(settings, engine, workers, spans, self._reported)
        self._is_asked = any(pool.door is not PoolDoor.ANNOTATIONS for pool in settings.pools)
        self._grpc: Any = None

    def begin(self) -> None:
        """Load what both doors need, where there is one: later there may be no descriptor left. Blocks for a tenth of a
        second."""
        if self._is_asked and self._grpc is None:
            self._grpc = begin_grpc()

    def register_later(self) -> None:
        """Have a worker register the driver of claims. The kubelet looks for it once a second, and a pod that comes
        before waits a minute for the next attempt."""
        if self._claims is not None:
            self._claims.open_later()

    def runtime_reported(self) -> None:
        """Note that the container runtime has reported its pods: from the first time on claims are prepared."""
        if not self._reported.done():
            self._reported.set_result(None)

    def open_later(self) -> None:
        """Have a worker serve the device plugins that are not served."""
        self._device_plugins.open_later()

    def driver(self) -> Mapping[str, Any] | None:
        """Return what is known of the driver of claims, as DriverView has it; None where no pool is asked through
        claims."""
        return asdict(self._claims.view()) if self._claims is not None else None

    def close(self) -> None:
        """End all servers. After the workers; again is no error."""
        self._device_plugins.close()
        if self._claims is not None:
            self._claims.close()
        if self._grpc is not None:
            self._grpc.close()

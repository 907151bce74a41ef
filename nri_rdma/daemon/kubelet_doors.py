"""The daemon's two interfaces for the kubelet: its device plugins and its DRA driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any  # Any: a document of JSON

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.wire_claims import make_claims_door
from nri_rdma.daemon.wire_device_plugins import make_device_plugins
from nri_rdma.engine.engine import Engine
from nri_rdma.host.kubelet.grpc_begun import begin_grpc
from nri_rdma.model.pool import PoolDoor
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers


class KubeletDoors:
    """The device plugins and the DRA driver, until the creator closes them. Without a pool that needs the kubelet,
    neither runs."""

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        workers: Workers,
        listeners: Listeners,
        runtime: Callable[[], str],
        spans: Recorder,
    ) -> None:
        """`runtime` returns the name of the connected container runtime."""
        self._reported: Future[None] = Future()
        self._device_plugins = make_device_plugins(settings, engine, workers, listeners, runtime, spans)
        self._claims = make_claims_door(settings, engine, workers, spans, self._reported)
        self._is_asked = any(pool.door is not PoolDoor.ANNOTATIONS for pool in settings.pools)
        self._grpc: Any = None

    def begin(self) -> None:
        """Initialise grpc if any pool needs it; blocks for 0.1 s. Called early, because later the process may have no
        file descriptor left."""
        if self._is_asked and self._grpc is None:
            self._grpc = begin_grpc()

    def register_later(self) -> None:
        """Have a worker register the DRA driver. Call it early: a pod that the kubelet starts before the registration
        waits a minute for its next attempt."""
        if self._claims is not None:
            self._claims.open_later()

    def runtime_reported(self) -> None:
        """Note that the container runtime has listed its pods. Claims are prepared only after the first call."""
        if not self._reported.done():
            self._reported.set_result(None)

    def open_later(self) -> None:
        """Have a worker serve the device plugins and register them with the kubelet, unless that is done already."""
        self._device_plugins.open_later()

    def driver(self) -> Mapping[str, Any] | None:
        """Return the state of the DRA driver as the fields of DriverView; None if no pool serves claims."""
        return asdict(self._claims.view()) if self._claims is not None else None

    def close(self) -> None:
        """Stop all servers. Call it after the workers are closed; calling it twice is allowed."""
        self._device_plugins.close()
        if self._claims is not None:
            self._claims.close()
        if self._grpc is not None:
            self._grpc.close()

"""Creates the plugin of each session with the runtime, and keeps the runtime's description of itself."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import replace

from nri_rdma.config.settings import Memlock
from nri_rdma.doors.control.status_document import RuntimeView
from nri_rdma.doors.nri.peer import memlock_ceiling
from nri_rdma.doors.nri.plugin import Plugin, Refusals, RuntimeFacts
from nri_rdma.doors.nri.runtime_link import Door, Link
from nri_rdma.engine.engine import Engine
from nri_rdma.model.request import UNLIMITED
from nri_rdma.observe.spans import Recorder

log = logging.getLogger(__name__)


class Sessions:
    """Creates the plugin of each session with the runtime, and keeps the description of the runtime in the present
    session."""

    def __init__(
        self,
        engine: Engine,
        spans: Recorder,
        refusals: Refusals,
        memlock: Memlock,
        *,
        door: Callable[[], Door],
        on_synchronized: Callable[[], None],
        engines: Callable[[], tuple[str, ...]],
    ) -> None:
        """`on_synchronized` is called when the runtime has listed its pods, before their first event. `engines` returns
        the engines (podman, Docker) that use our OCI hook, if this host has no runtime with NRI."""
        self._engine = engine
        self._spans = spans
        self._refusals = refusals
        self._memlock = memlock
        self._door = door
        self._on_synchronized = on_synchronized
        self._engines = engines
        self._runtime = RuntimeFacts()
        self._was_heard = False
        """Whether any runtime has ever registered this plugin. From then on the runtime's absence counts as a
        problem."""

    def make_plugin(self, runtime_pid: int) -> Plugin:
        """Return the handlers of a new session; `runtime_pid` is the runtime's process (0: unknown)."""
        offering = self._engine.offering
        offering.memlock = replace(offering.memlock, ceiling=memlock_ceiling(runtime_pid))
        return Plugin(self._engine, self._spans, self._synchronized, self._configured, self._refusals)

    def view(self) -> RuntimeView:
        """Return the state of the runtime and of the connection to it, for `status`."""
        runtime, door = self._runtime, self._door()
        waits_alone = door.link is Link.DISCONNECTED and not (door.launched or self._was_heard)
        if waits_alone and (engines := self._engines()):
            return RuntimeView(
                link=Link.NONE, name="", version="", nri="", lacks=(), launched=False, error="", engines=engines
            )
        return RuntimeView(
            link=str(door.link),
            name=runtime.name,
            version=runtime.version,
            nri=runtime.abilities.nri_text,
            lacks=tuple(runtime.abilities.lacks),
            launched=door.launched,
            error=door.last_error,
            error_since=door.last_error_at,
        )

    def _configured(self, runtime: RuntimeFacts) -> None:
        self._runtime, self._was_heard = runtime, True
        set_memlock(self._engine, self._memlock, runtime)
        if runtime.abilities.nri is None:
            log.info("the runtime's release is unknown: it is assumed to apply everything that we ask for")
        if self._door().launched and runtime.abilities.before_0_7:
            log.info("this runtime does not list its pods to a plugin that it starts")
            self._synchronized(runtime)

    def _synchronized(self, runtime: RuntimeFacts) -> None:
        self._door().synchronized()
        self._on_synchronized()
        nri = runtime.abilities.nri_text or "not known"
        log.info("synchronized", extra={"runtime": runtime.name, "version": runtime.version, "nri": nri})


def set_memlock(engine: Engine, setting: Memlock, runtime: RuntimeFacts) -> None:
    """Set the default RLIMIT_MEMLOCK of containers for this session with the runtime. Called once, before the session's
    first event."""
    applied = runtime.abilities.applies_rlimits
    wanted = default_memlock(setting, engine.offering.memlock.ceiling)
    dropped_by = "" if applied else f"{runtime.name} {runtime.version}".strip()
    default = wanted if applied else None
    engine.offering.memlock = replace(engine.offering.memlock, dropped_by=dropped_by, default=default)
    if wanted is not None and not applied:
        log.warning(
            "the runtime does not set RLIMIT_MEMLOCK for plugins: containers with devices keep its own",
            extra={"runtime": dropped_by, "memlock": wanted},
        )


def default_memlock(setting: Memlock, ceiling: int) -> int | None:
    """Return the RLIMIT_MEMLOCK in bytes for containers whose pods request none; None: keep the runtime's own.
    `ceiling` is the highest limit in bytes that the runtime may set; the setting `auto` means unlimited if `ceiling` is
    unlimited."""
    if setting.automatic:
        return UNLIMITED if ceiling == UNLIMITED else None
    return setting.bytes


def preload_grammar() -> None:
    """Import the YAML parser, which takes 8 ms, so that the first pod with a request does not wait for it."""
    importlib.import_module("nri_rdma.text.requests")

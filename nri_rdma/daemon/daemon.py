"""The daemon: the only place that wires adapters to doors."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.journal import Journal
from nri_rdma.attach.news import (
    look_at_all_again,
    look_at_all_namespaces,
    namespace_removed,
    node_removed,
    process_ended,
)
from nri_rdma.attach.port import ProcessIdentity
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.attach.second_look import SecondLooks
from nri_rdma.attach.timers import start_timer
from nri_rdma.attach.transaction import Boundary, no_boundary
from nri_rdma.attach.work import Site, Work
from nri_rdma.config.settings import Memlock, Settings
from nri_rdma.daemon.locks import Sole
from nri_rdma.daemon.reload import Reloader, contested_words
from nri_rdma.daemon.signals import Signals
from nri_rdma.daemon.sources import Others
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.policy import policy_of
from nri_rdma.doors.control.server import ControlServer
from nri_rdma.doors.control.status import DaemonFacts, RuntimeView
from nri_rdma.doors.nri.identity import identify
from nri_rdma.doors.nri.link import Door
from nri_rdma.doors.nri.peer import memlock_ceiling
from nri_rdma.doors.nri.plugin import Plugin, RuntimeFacts
from nri_rdma.doors.nri.runner import Runner
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.node_cache import NodeSource
from nri_rdma.engine.reservations import Allocations
from nri_rdma.host.containerd.leftovers import Leftovers
from nri_rdma.host.host_node import HostNode, resolve_on_host
from nri_rdma.host.limits import ContainerLimits
from nri_rdma.host.netlink.uevents import last_sequence
from nri_rdma.host.watch.namespaces import NamespaceWatcher
from nri_rdma.host.watch.processes import ProcessWatcher
from nri_rdma.model.request import UNLIMITED
from nri_rdma.observe.export import make_exporter
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from nri_rdma.wire.uevent import Uevent

log = logging.getLogger(__name__)

COLLECT_PAUSE_S = 1.0
"""Garbage is not collected more often, however many pods end."""
TAKE_UP_S = 2.0
"""What an earlier daemon left is taken up when the runtime has told its pods: a start must not wait for the work on a
thousand of them. A runtime that does not answer by then is not waited for."""

PLANNERS = 2
"""Threads that plan: the runtime waits for a plan, so it must not queue behind attaches."""

KEPT_SPANS = 4096
"""About three hundred pods of one device each."""

UDEV_CONTROL = Path("/run/udev/control")
"""udevd's socket: where it is, returning netdevs are configured by udev, and by networkd or NetworkManager after it."""

CLOSE_WORKERS_S = 5.0
"""How long the end waits for workers: a netdev's move takes milliseconds, a driver may hang."""


LAST_LOOK_S = 2.0
"""How long the end waits for what the runtime leaves of the sandboxes that were refused last."""


class Daemon:
    """One daemon of a node. `run` blocks until SIGTERM or SIGINT; what is attached then stays attached.

    It connects to the runtime, unless it is given a `door`, whose owner calls `open`, `make_plugin` and `close`. When
    another daemon is there it waits until `by` (seconds of `time.monotonic`), and raises StateError. At SIGHUP it takes
    the settings that `reread` gives; by default the same again.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        door: Door | None = None,
        by: float = 0.0,
        reread: Callable[[], Settings] | None = None,
        boundary: Boundary = no_boundary,
    ) -> None:
        self._settings = settings
        self._sole = Sole(settings.state_dir, settings.nri_socket, by)
        self._exporter = make_exporter(os.environ) if settings.tracing else None
        self._spans = Recorder(
            capacity=KEPT_SPANS if settings.tracing else 0, sink=self._exporter.put if self._exporter else None
        )
        self._readers = Workers(1, name="node-reader")
        self._host = HostNode(settings, self._readers, self._tell_contested)
        self._kernel, self._node = self._host.kernel, NodeSource(self._host.read)
        self._workers = Workers()
        self._planners = Workers(PLANNERS, name="planner")
        self._allocations = Allocations()
        self._listeners = Listeners(self._listener_failed)
        self._watcher = NamespaceWatcher(self._listeners, self._namespace_gone, self._look_at_all)
        self._processes = ProcessWatcher(self._process_gone)
        self._limits = ContainerLimits(settings.cgroup_root, self._processes)
        self._contested = ""
        self._collected = 0.0
        self._take_up: Callable[[], None] = lambda: None
        self._signals: Signals | None = None
        site = Site(
            kernel=self._kernel,
            journal=Journal(settings.state_dir / "journal"),
            spans=self._spans,
            resolve=partial(resolve_on_host, settings),
            on_held=self._watcher.watch,
            processes=self._processes,
            event_sequence=last_sequence,
            links_are_managed=UDEV_CONTROL.exists,
            boundary=boundary,
        )
        self._sandboxes = Attachments(
            Work(site, SecondLooks(self._kernel, self._workers, start_timer)),
            self._workers,
            on_gone=self._gone,
            planners=self._planners,
        )
        self._leftovers = Leftovers(settings.containerd_socket, self._spans)
        self._others = Others(settings, self._node, self._workers, self._listeners, self._readers)
        self._engine = Engine.make(
            node=self._node,
            policy=policy_of(settings.pools, settings.rules, allow_default_pool=settings.allow_default_pool),
            reservations=self._allocations,
            evidence=self._others.evidence,
            attachments=self._sandboxes,
            workers=self._workers,
            readers=self._readers,
            spans=self._spans,
            limits=self._limits,
            prefix=settings.annotation_prefix,
            waits=settings.waits,
            memlock=MemlockBounds(default=settings.memlock.bytes),
        )
        self._reloader = Reloader(settings, reread or (lambda: settings), self._engine.placer)
        self._door = door or self._runner()
        self._runtime = RuntimeFacts()
        self._control = ControlServer(
            DaemonFacts(
                settings=settings,
                engine=self._engine,
                spans=self._spans,
                runtime=self._runtime_view,
                reload_error=lambda: self._reloader.error,
                pinned=lambda: asdict(self._kernel.held()),
            )
        )

    def run(self) -> None:
        """Recover, open the doors, serve."""
        self.open()
        try:
            self._door.run()
        finally:
            self.close()

    def open(self) -> None:
        """Recover, and be ready for the runtime. To be called by the main thread: it takes SIGTERM and SIGINT."""
        self._signals = Signals(
            {
                signal.SIGTERM: partial(self._stop, "SIGTERM"),
                signal.SIGINT: partial(self._stop, "SIGINT"),
                signal.SIGHUP: self._reload_later,
            }
        )
        self._host.listen(self._listeners, self._node, self._on_uevent, partial(look_at_all_again, self._sandboxes))
        self._recover()
        self._control.serve(self._settings.control_path)
        log.info(
            "started", extra={"devices": len(self._node.current.devices), "control": str(self._settings.control_path)}
        )
        self._tell_contested()
        # 40,000 objects live as long as we do: looking at them again and again cost 6 us per CreateContainer.
        gc.freeze()
        gc.enable()
        self._host.read_later()  # nobody listened between the first reading and now

    def _runner(self) -> Runner:
        settings = self._settings
        identity = identify(
            name=settings.plugin_name, index=settings.plugin_index, environment=os.environ, program=sys.argv[0]
        )
        return Runner(str(settings.nri_socket), self.make_plugin, name=identity.name, index=identity.index)

    def _recover(self) -> None:
        for error in self._sandboxes.recover(self._hold, later=True):
            log.error("journal record set aside", extra={"error": str(error)})
        self._engine.recovered()
        self._take_up = start_timer(TAKE_UP_S, self._sandboxes.take_up)

    def close(self) -> None:
        """Doors first, so that nothing new begins; then the workers, which use all that comes after them."""
        signals, self._signals = self._signals, None
        if signals is not None:
            signals.close()
        self._control.close()
        self._take_up()
        self._host.close()
        by = time.monotonic() + CLOSE_WORKERS_S
        pools = (self._planners, self._workers, self._readers)
        running = tuple(key for pool in pools for key in pool.close(max(0.0, by - time.monotonic())))
        self._others.close()
        self._leftovers.close(LAST_LOOK_S)
        if running:  # the journal has what they do: the next daemon goes on from there
            log.warning("workers are still busy, leaving the rest to the next start", extra={"tasks": list(running)})
        self._watcher.close()
        self._listeners.close()
        self._processes.close()
        self._sandboxes.close(busy=running)
        if self._exporter is not None:
            self._exporter.close()
        if not running:  # else the locks go with the process, and the last thread that touches hardware
            self._kernel.host.close()
            self._sole.release()
        log.info("stopped")

    def _stop(self, name: str) -> None:
        log.info("stopping", extra={"signal": name})
        self._door.stop()

    def _reload_later(self) -> None:
        self._workers.submit("reload", self._reloader.run).add_done_callback(_log_reload_bug)

    def make_plugin(self, runtime_pid: int) -> Plugin:
        """The handlers of a new session with the runtime that is this process (0: it cannot be seen)."""
        offering = self._engine.placer.offering
        offering.memlock = replace(offering.memlock, ceiling=memlock_ceiling(runtime_pid))
        return Plugin(self._engine, self._spans, self._synchronized, self._configured, self._leftovers)

    def _configured(self, runtime: RuntimeFacts) -> None:
        self._runtime = runtime
        set_memlock(self._engine, self._settings.memlock, runtime)
        if runtime.abilities.nri is None:
            log.info("the runtime's release is not known: it is taken to apply all that we ask for")
        if self._door.launched and runtime.abilities.before_0_7:
            log.info("this runtime does not tell its pods to a daemon that it starts")
            self._synchronized(runtime)

    def _synchronized(self, runtime: RuntimeFacts) -> None:
        self._door.synchronized()
        self._workers.submit("preload", preload_grammar)
        self._others.open_later()  # before what may be much: containers wait for it
        self._sandboxes.take_up()
        nri = runtime.abilities.nri_text or "not known"
        log.info("synchronized", extra={"runtime": runtime.name, "version": runtime.version, "nri": nri})

    def _runtime_view(self) -> RuntimeView:
        runtime, door = self._runtime, self._door
        return RuntimeView(
            link=str(door.link),
            name=runtime.name,
            version=runtime.version,
            nri=runtime.abilities.nri_text,
            lacks=tuple(runtime.abilities.lacks),
            launched=door.launched,
            error=door.last_error,
        )

    def _on_uevent(self, event: Uevent) -> None:
        if event.action == "remove" and event.number is not None:
            node_removed(self._sandboxes, event.number, event.sequence)
        elif event.action == "move":  # the kernel's word for another name
            look_at_all_again(self._sandboxes)

    def _listener_failed(self, name: str) -> None:
        """Look at all that any listener would have reported: what the failed one had taken is lost."""
        log.error("changes may have been missed, looking at everything", extra={"listener": name})
        self._host.read_later()
        self._others.changes_were_lost()
        look_at_all_again(self._sandboxes)
        self._look_at_all()

    def _tell_contested(self) -> None:
        """Which devices nobody gets because several pools select them; once, until they are others."""
        contested = contested_words(self._engine.placer.offering.policy, self._node.current)
        if contested not in {"", self._contested}:
            log.error("devices that several pools select are in none", extra={"contested": contested})
        self._contested = contested

    def _hold(self, record: SandboxRecord) -> None:
        """What an earlier daemon attached is taken, from before the first event on."""
        self._allocations.hold(record.key, record.holdings)

    def _gone(self, key: str) -> None:
        """Devices are home: read the node anew, then let others have them. Many who come home at once share a
        reading."""
        self._node.refresh_in(self._readers).result()
        self._allocations.release(key)
        self._collect_garbage()

    def _collect_garbage(self) -> None:
        """What is left of pods that ended (futures, their callbacks, tracebacks), within a second or so. Left to the
        collector's own pace it lies between what lives: memory grew by 2.4 KiB with each pod, for a thousand pods."""
        now = time.monotonic()
        if now - self._collected >= COLLECT_PAUSE_S:
            self._collected = now
            self._readers.submit("garbage", _collect_garbage)  # not here: the sandbox is not gone before we return

    def _namespace_gone(self, path: str) -> None:
        namespace_removed(self._sandboxes, path)

    def _process_gone(self, process: ProcessIdentity) -> None:
        self._limits.process_gone(process)  # first: the runtime removes the cgroup
        process_ended(self._sandboxes, process)

    def _look_at_all(self) -> None:
        look_at_all_namespaces(self._sandboxes)


def _collect_garbage() -> None:
    gc.collect()


def _log_reload_bug(done: Future[None]) -> None:
    """What a configuration can hold is answered by the reloader; anything else is a bug, and the old one goes on."""
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.error("the configuration was not read again", exc_info=error)


def set_memlock(engine: Engine, setting: Memlock, runtime: RuntimeFacts) -> None:
    """Before the first event of the session; from then on it stays so."""
    applied = runtime.abilities.applies_rlimits
    wanted = default_memlock(setting, engine.placer.offering.memlock.ceiling)
    dropped_by = "" if applied else f"{runtime.name} {runtime.version}".strip()
    default = wanted if applied else None
    engine.placer.offering.memlock = replace(engine.placer.offering.memlock, dropped_by=dropped_by, default=default)
    if wanted is not None and not applied:
        log.warning(
            "the runtime does not set RLIMIT_MEMLOCK for plugins: containers with devices keep its own",
            extra={"runtime": dropped_by, "memlock": wanted},
        )


def default_memlock(setting: Memlock, ceiling: int) -> int | None:
    """The RLIMIT_MEMLOCK in bytes of containers whose pods do not ask for one; None: the runtime's own."""
    if setting.automatic:
        return UNLIMITED if ceiling == UNLIMITED else None
    return setting.bytes


def preload_grammar() -> None:
    """Import what the first pod that asks would wait for: YAML, 8 ms."""
    importlib.import_module("nri_rdma.text.requests")

"""The daemon. Only this module connects the code for the host with the interfaces for runtime, kubelet, podman, Docker
and administrators."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path

from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.journal import Journal
from nri_rdma.attach.pod_gids import GID_WAIT_S
from nri_rdma.attach.second_look import SecondLooks
from nri_rdma.attach.timers import start_timer
from nri_rdma.attach.transaction import Boundary, no_boundary
from nri_rdma.attach.work import Site, Work
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.kubelet_doors import KubeletDoors
from nri_rdma.daemon.local_sockets import LocalSockets
from nri_rdma.daemon.locks import Sole
from nri_rdma.daemon.news import News
from nri_rdma.daemon.releases import Releases
from nri_rdma.daemon.reload import Contested, Reloader
from nri_rdma.daemon.runtime_guards import RuntimeGuards
from nri_rdma.daemon.service_manager import NOTIFY_SOCKET, ServiceManager
from nri_rdma.daemon.sessions import Sessions, preload_grammar
from nri_rdma.daemon.shortcomings import Lacking, missing_right
from nri_rdma.daemon.signals import Signals
from nri_rdma.daemon.sources import Sources
from nri_rdma.daemon.telemetry import Telemetry
from nri_rdma.daemon.wire_claims import missing_package
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.policy import configured_policy
from nri_rdma.doors.control.status_document import DaemonFacts
from nri_rdma.doors.nri.counted import CountedPlugin
from nri_rdma.doors.nri.identity import identify
from nri_rdma.doors.nri.runner import Runner
from nri_rdma.doors.nri.runtime_link import Door, Link
from nri_rdma.doors.nri.session import Answers
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.gate import Gating
from nri_rdma.engine.image_check import ImageCheck
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.reservations import Reservations
from nri_rdma.engine.shares import ShareBook
from nri_rdma.host.containerd.leftovers import Leftovers
from nri_rdma.host.containerd.notes import RefusalNotes
from nri_rdma.host.engine_setups import engines_without_runtime
from nri_rdma.host.host_node import HostNode, resolve_on_host
from nri_rdma.host.images import Images
from nri_rdma.host.limits import ContainerLimits
from nri_rdma.host.netlink.events.uevents import last_sequence
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.host.pod_addresses import addresses_of
from nri_rdma.host.prover import Prover
from nri_rdma.host.sysfs.scan import is_own
from nri_rdma.host.watch.namespaces import NamespaceWatcher
from nri_rdma.host.watch.processes import ProcessWatcher
from nri_rdma.model.trouble import Trouble
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

TAKE_UP_S = 2.0
"""How long the runtime may take to list its pods, in seconds.

The attachments of an earlier daemon are recovered when the runtime has listed its pods, or after this time. The
daemon's start does not wait for the recovery, because there may be a thousand attachments.
"""

PLANNERS = 2
"""Number of threads that make plans. They are separate from the workers, because the runtime waits for a plan, which
must not queue behind attaches."""

IMAGE_READERS = 2
"""Number of threads that read containers' images, so that one slow image does not delay others."""

UDEV_CONTROL = Path("/run/udev/control")
"""The socket of udevd. If it exists, udev configures netdevs that return to the host, and networkd or NetworkManager
after it."""

CLOSE_WORKERS_S = 5.0
"""How long the daemon's end waits for workers, in seconds. Moving a netdev takes milliseconds, but a driver may
hang."""


LAST_LOOK_S = 2.0
"""How long the daemon's end waits, in seconds, until the leftovers of the last refused sandboxes are removed from
containerd."""


class Daemon:
    """The daemon of a node. `run` blocks until SIGTERM or SIGINT; attached devices stay attached after it.

    If the runtime started this process, `door` is the object that serves the runtime's sessions, and the caller uses
    `open`, `make_plugin` and `close` instead of `run`. Otherwise `door` is None, and the daemon connects to the
    runtime. If another daemon holds the locks, wait until `by` (seconds of `time.monotonic`), then raise StateError.

    `reread` returns the new settings at SIGHUP. `troubles` are problems with the settings. `closed` is the reason why
    every pod with a request is refused, "" if none is. `boundary` is a hook for tests, called before and after each
    step of an attach.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        door: Door | None = None,
        by: float = 0.0,
        reread: Callable[[], Settings],
        troubles: tuple[Trouble, ...] = (),
        closed: str = "",
        boundary: Boundary = no_boundary,
    ) -> None:
        self._settings = settings
        self._lacking, self._sole = Lacking(troubles), Sole(settings.state_dir, settings.nri_socket, by)
        self._telemetry = Telemetry(settings, self._lacking)
        self._spans, self._tally = self._telemetry.spans, self._telemetry.tally
        self._lacking.add(missing_package(settings))
        self._readers, self._workers = Workers(1, name="node-reader"), Workers()
        self._host = HostNode(settings, self._readers, self._workers, self._tell_contested)
        self._kernel, self._node = self._host.kernel, NodeCache(self._host.read)
        self._planners = Workers(PLANNERS, name="planner")
        self._reservations = Reservations()
        self._releases = Releases(self._reservations, self._node, self._readers)
        # `_news` needs objects that need these three, so it is created after them.
        self._listeners = Listeners(lambda name: self._news.listener_failed(name))  # noqa: PLW0108
        self._watcher = NamespaceWatcher(
            self._listeners,
            lambda path: self._news.namespace_removed(path),  # noqa: PLW0108
            lambda: self._news.removals_lost(),  # noqa: PLW0108
        )
        self._processes = ProcessWatcher(lambda process: self._news.process_ended(process))  # noqa: PLW0108
        self._limits = ContainerLimits(settings.cgroup_root, self._processes)
        self._contested, self._guards = Contested(), RuntimeGuards(settings, self._workers)
        self._take_up: Callable[[], None] = lambda: None
        self._signals: Signals | None = None
        site = _site(settings, self._kernel, self._spans, self._watcher, self._processes, boundary)
        self._attachments = Attachments(
            Work(site, SecondLooks(self._kernel, self._workers, start_timer)),
            self._workers,
            on_gone=self._releases.release,
            planners=self._planners,
        )
        self._leftovers = Leftovers(
            settings.containerd_socket, self._spans, RefusalNotes(settings.state_dir / "refused")
        )
        self._sources = Sources(settings, self._node, self._workers, self._listeners, self._readers)
        self._news = News(
            self._attachments,
            self._limits,
            rescans=(self._host.read_later, self._sources.changes_were_lost),
            on_namespace_removed=lambda path: self._engine.sandboxes.namespace_removed(path),  # noqa: PLW0108
        )
        self._engine = Engine(
            node=self._node,
            policy=configured_policy(settings, closed),
            reservations=self._reservations,
            specs=self._sources.specs,
            kubelet=self._sources,
            shares=ShareBook(settings.pools, guard_resource=settings.guard_resource),
            rereads=self._sources.rereads,
            adoption=settings.adopt,
            attachments=self._attachments,
            workers=self._workers,
            readers=self._readers,
            spans=self._spans,
            limits=self._limits,
            prefix=settings.annotation_prefix,
            waits=settings.waits,
            memlock=MemlockBounds(default=settings.memlock.bytes),
            gating=Gating(prover=self._host.prover, guarded=self._guards.is_guarded, addresses=addresses_of),
        )
        self._images = _image_check(settings, self._engine, self._spans)
        self._lacking.add(missing_right(self._engine.offering.policy, self._kernel))
        self._kubelet_doors = KubeletDoors(
            settings, self._engine, self._workers, self._listeners, self._runtime, self._spans
        )
        self._reloader = Reloader(settings, reread, self._engine)
        self._sessions = Sessions(
            self._engine,
            self._spans,
            self._leftovers,
            settings.memlock,
            door=lambda: self._door,
            on_synchronized=self._begin_later,
            engines=partial(engines_without_runtime, settings),
        )
        self._door: Door = door or _runner(settings, self.make_plugin)
        # If the runtime started the daemon, $NOTIFY_SOCKET is meant for the runtime.
        self._service_manager = ServiceManager("" if door else os.environ.get(NOTIFY_SOCKET, ""))
        facts = DaemonFacts(
            settings=settings,
            engine=self._engine,
            spans=self._spans,
            runtime=self._sessions.view,
            reload_error=lambda: self._reloader.error,
            traces=self._telemetry.traces,
            metrics=lambda: self._sockets.metrics(),  # noqa: PLW0108 - made below
            pinned=lambda: asdict(self._kernel.held()),
            driver=self._kubelet_doors.driver,
            troubles=lambda: self._lacking.told(settings_are_others=self._reloader.has_taken),
            guards=self._guards.told,
        )
        self._sockets = LocalSockets.make(facts, self._kernel, self._listeners, self._tally)

    def run(self) -> None:
        """Recover what an earlier daemon left, open the interfaces, and serve until SIGTERM or SIGINT."""
        self.open()
        self._service_manager.serving(alone=self._sessions.view().link == Link.NONE)
        try:
            self._door.run()
        finally:
            self.close()

    def open(self) -> None:
        """Recover what an earlier daemon left, open the local sockets, and get ready for the runtime. Only the main
        thread may call it, because it handles SIGTERM and SIGINT."""
        self._signals = Signals(
            {
                signal.SIGTERM: partial(self._stop, "SIGTERM"),
                signal.SIGINT: partial(self._stop, "SIGINT"),
                signal.SIGHUP: self._reload_later,
            }
        )
        self._host.listen(self._listeners, self._node, self._news)
        self._recover()
        self._kubelet_doors.register_later()
        self._lacking.add(self._sockets.serve())
        log.info(
            "started", extra={"devices": len(self._node.current.devices), "control": str(self._settings.control_path)}
        )
        # 40,000 objects live until the end: their garbage collection cost 6 us per CreateContainer.
        gc.freeze()
        gc.enable()
        self._host.read_later()  # for changes since the first scan; also logs contested devices

    def _recover(self) -> None:
        self._telemetry.begin(self._engine.refused)
        for error in self._attachments.recover(self._releases.hold, later=True):
            log.error("journal record set aside", extra={"error": str(error)})
        self._engine.recovered()
        self._leftovers.resume()
        self._take_up = start_timer(TAKE_UP_S, self._attachments.take_up)

    def close(self) -> None:
        """Close everything: first the interfaces, so that no new work begins, then the workers, then the objects that
        workers use."""
        signals, self._signals = self._signals, None
        if signals is not None:
            signals.close()
        self._sockets.close()
        self._take_up()
        self._host.close()
        by = time.monotonic() + CLOSE_WORKERS_S
        pools = (self._planners, self._workers, self._readers, self._images.readers)
        running = tuple(dict.fromkeys(key for pool in pools for key in pool.close(max(0.0, by - time.monotonic()))))
        self._kubelet_doors.close()
        self._sources.close()
        self._leftovers.close(LAST_LOOK_S)
        if running:  # the next daemon goes on from the journal
            log.warning("workers are still busy, leaving the rest to the next start", extra={"tasks": list(running)})
        self._watcher.close()
        self._listeners.close()
        self._processes.close()
        self._attachments.close(busy=running)
        self._telemetry.close()
        if not running:  # else the kernel releases the locks when the last busy thread ends
            self._kernel.host.close()
            self._sole.release()
        log.info("stopped")

    def _stop(self, name: str) -> None:
        log.info("stopping", extra={"signal": name})
        self._service_manager.stopping()
        self._door.stop()

    def _reload_later(self) -> None:
        self._workers.submit("reload", self._reloader.run).add_done_callback(_log_reload_bug)

    def make_plugin(self, runtime_pid: int) -> Answers:
        """Return the handlers of a new session; `runtime_pid` is the runtime's process (0: unknown)."""
        plugin = self._sessions.make_plugin(runtime_pid)
        return plugin if self._tally is None else CountedPlugin(plugin, self._tally.event_counts)

    def _begin_later(self) -> None:
        """Start work in workers, so that no starting pod waits for it: import modules, read CDI specs, register device
        plugins, recover attachments. Called when the runtime has listed its pods."""
        self._kubelet_doors.runtime_reported()
        loaded = self._workers.submit("preload", partial(_load, self._kubelet_doors, self._settings, self._host.prover))
        loaded.add_done_callback(partial(_was_loaded, self._service_manager))
        self._sources.open_later()  # before take_up, which may take long: containers wait for it
        # A share that the kubelet allocates before the devices' capacity is known would have no limits.
        self._host.capacities.settled.add_done_callback(lambda _: self._kubelet_doors.open_later())
        self._attachments.take_up()

    def _runtime(self) -> str:
        return self._sessions.view().name

    def _tell_contested(self) -> None:
        self._contested.tell(self._engine.offering.policy, self._node.current)


def _load(doors: KubeletDoors, settings: Settings, prover: Prover) -> None:
    """Import modules and start processes in advance, so that the first pods do not wait for them."""
    preload_grammar()
    doors.begin()
    if any(pool.prove for pool in settings.pools):
        prover.warm_up()


def _image_check(settings: Settings, engine: Engine, spans: Recorder) -> ImageCheck:
    """Return the check of containers' images, with its own reader threads, and connect it to the engine."""
    images, starts = Images(settings.cgroup_root, settings.sysfs_root), engine.starts
    readers = Workers(IMAGE_READERS, name="image-reader")
    found = ImageCheck(images, engine.sandboxes, spans, readers)
    starts.images = starts.gate.images = found
    return found


def _site(
    settings: Settings,
    kernel: LinuxKernel,
    spans: Recorder,
    watcher: NamespaceWatcher,
    processes: ProcessWatcher,
    boundary: Boundary,
) -> Site:
    """Return the objects that attaches on this host use: the kernel, the journal, spans and watchers."""
    return Site(
        kernel=kernel,
        journal=Journal(settings.state_dir / "journal"),
        spans=spans,
        resolve=partial(resolve_on_host, settings),
        on_held=watcher.watch,
        processes=processes,
        event_sequence=last_sequence,
        links_are_managed=UDEV_CONTROL.exists,
        boundary=boundary,
        lifelines=settings.lifelines(os.environ),
        gid_wait_s=GID_WAIT_S if is_own(settings.sysfs_root) else 0.0,
    )


def _runner(settings: Settings, make_plugin: Callable[[int], Answers]) -> Door:
    """Return the object that connects to the runtime's NRI socket and serves its sessions. `make_plugin` returns the
    handlers of a session; its argument is the runtime's process id, 0 if unknown."""
    identity = identify(
        name=settings.plugin_name, index=settings.plugin_index, environment=os.environ, program=sys.argv[0]
    )
    return Runner(str(settings.nri_socket), make_plugin, name=identity.name, index=identity.index)


def _was_loaded(service_manager: ServiceManager, done: Future[None]) -> None:
    """Report to the service manager that the daemon is ready. If importing modules in advance failed, log the error;
    the daemon is ready nevertheless, because a module is imported again where it is needed."""
    service_manager.ready()
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.error("loading modules in advance has failed", exc_info=error)


def _log_reload_bug(done: Future[None]) -> None:
    """Log an exception that the reloader of the configuration did not handle, which is a bug. The old configuration
    stays in use."""
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.error("the configuration was not read again", exc_info=error)

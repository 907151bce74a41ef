"""The dry run of the daemon: it decides for every pod as the daemon would, reports the decisions, and changes nothing.

It can run beside a daemon: it takes no lock, serves no socket, writes no file, and registers with the runtime under
another name.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.timers import start_timer
from nri_rdma.commands.dryrun.finding_out import FindingOut
from nri_rdma.commands.dryrun.onlooker import Onlooker
from nri_rdma.commands.dryrun.verdicts import Attached, Report, Verdicts
from nri_rdma.commands.explain.explanation import POD_LINKS
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.daemon import CLOSE_WORKERS_S
from nri_rdma.daemon.runtime_guards import RuntimeGuards
from nri_rdma.daemon.sessions import preload_grammar, set_memlock
from nri_rdma.daemon.signals import Signals
from nri_rdma.daemon.sources import Sources
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.policy import configured_policy
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.nri.identity import Identity, identify
from nri_rdma.doors.nri.peer import memlock_ceiling
from nri_rdma.doors.nri.plugin import Plugin, RuntimeFacts, UnknownMethodError
from nri_rdma.doors.nri.runner import Runner
from nri_rdma.doors.nri.session import Answers
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.gate import Gating
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.reservations import Reservations
from nri_rdma.engine.shares import ShareBook
from nri_rdma.errors import NotReadyError
from nri_rdma.host.host_node import read_host, resolve_on_host
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.model.device import Node
from nri_rdma.model.waits import Waits
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from nri_rdma.ttrpc.wire import Request

log = logging.getLogger(__name__)

VERDICT_S = 30.0
"""The time limit in seconds for a decision. It is so long that a decision never fails for lack of time."""

NAME_SUFFIX = "-dry-run"
_ANSWERED = frozenset({"Configure", "Synchronize"})
"""The calls whose real answer the runtime gets: they subscribe to events and confirm the list of pods. All other calls
get an empty answer."""


class Unheard:
    """A wrapper around a plugin that hides its answers from the runtime, so that no pod is adjusted or refused."""

    def __init__(self, plugin: Answers) -> None:
        self._plugin = plugin

    def answer(self, request: Request) -> bytes:
        """Pass the call to the plugin. Return the plugin's answer to Configure and Synchronize, and an empty answer to
        any other call.

        Raises UnknownMethodError for a method that the plugin does not serve.
        """
        try:
            answer = self._plugin.answer(request)
        except UnknownMethodError:
            raise
        except Exception:
            if request.method in _ANSWERED:
                raise
            log.exception("bug in a handler; the runtime is not told", extra={"call": request.method})
            return b""
        return answer if request.method in _ANSWERED else b""


class NoLimits:
    """The dry run's replacement for the object that writes the rdma cgroup limits of containers. It writes nothing."""

    def left_to_runtime(self, cgroups_path: str, container_id: str, sandbox_id: str) -> bool:
        """Return True, which means that no limit has to be written here."""
        return True

    def enable(self, cgroups_path: str, pid: int | None, where: str) -> None:
        """Do nothing: in a dry run no cgroup gets a controller."""

    def write(self, cgroups_path: str, lines: object, where: str) -> None:
        """Do nothing: no limit is written to a cgroup."""

    def kill(self, cgroups_path: str, where: str) -> None:
        """Do nothing: no container is ended."""

    def lift_at_end(self, cgroups_path: str, where: str) -> None:
        """Do nothing: no limit has to be removed at a container's end."""


class DryRun:
    """The daemon of the dry run. `run` blocks until SIGTERM or SIGINT. `report` receives the decision for each pod and
    container."""

    def __init__(self, settings: Settings, report: Report) -> None:
        self._settings = settings
        self._kernel = LinuxKernel(lifelines=settings.lifelines(os.environ))
        self._node = NodeCache(lambda: read_host(settings, self._kernel)[2])
        self._workers, self._readers = Workers(), Workers(1, name="node-reader")
        self._spans = Recorder(capacity=0)
        reservations = Reservations()
        self._listeners = Listeners(lambda _name: self._sources.changes_were_lost())
        self._sources = Sources(settings, self._node, self._workers, self._listeners)
        attachments = Attachments(
            FindingOut(Onlooker(self._kernel, POD_LINKS), partial(resolve_on_host, settings)),
            self._workers,
            on_gone=reservations.release,
            schedule=without_pause,
        )
        self._engine = Engine(
            node=self._node,
            policy=configured_policy(settings),
            reservations=reservations,
            specs=self._sources.specs,
            kubelet=self._sources,
            shares=ShareBook(settings.pools, guard_resource=settings.guard_resource),
            rereads=self._sources.rereads,
            adoption=settings.adopt,
            attachments=attachments,
            workers=self._workers,
            readers=self._readers,
            spans=self._spans,
            limits=NoLimits(),
            prefix=settings.annotation_prefix,
            waits=patient(settings.waits),
            memlock=MemlockBounds(default=settings.memlock.bytes),
            gating=Gating(guarded=RuntimeGuards(settings, self._workers).is_guarded),
        )
        self._verdicts = Verdicts(
            self._engine, attachments, self._workers, report, lambda: attached_by_daemon(settings)
        )
        identity = dry_identity(settings)
        self._door = Runner(str(settings.nri_socket), self._make_plugin, name=identity.name, index=identity.index)

    @property
    def node(self) -> Node:
        """The node, with its devices, as it was last read."""
        return self._node.current

    def run(self) -> None:
        """Report decisions until a signal arrives. Must be called from the main thread."""
        signals = Signals(dict.fromkeys((signal.SIGTERM, signal.SIGINT), self.stop))
        preload_grammar()
        try:
            self._door.run()
        finally:
            signals.close()
            self._workers.close(CLOSE_WORKERS_S)
            self._readers.close(CLOSE_WORKERS_S)
            self._sources.close()
            self._listeners.close()

    def stop(self) -> None:
        """Make `run` return. May be called from any thread."""
        self._door.stop()

    def _make_plugin(self, runtime_pid: int) -> Unheard:
        offering = self._engine.offering
        offering.memlock = replace(offering.memlock, ceiling=memlock_ceiling(runtime_pid))
        return Unheard(Plugin(self._verdicts, self._spans, self._synchronized, self._configured))

    def _configured(self, runtime: RuntimeFacts) -> None:
        set_memlock(self._engine, self._settings.memlock, runtime)

    def _synchronized(self, runtime: RuntimeFacts) -> None:
        self._door.synchronized()
        self._sources.open_later()
        log.info("synchronized", extra={"runtime": runtime.name, "version": runtime.version, "dry_run": True})


def patient(waits: Waits) -> Waits:
    """Return the settings for waits, with such long limits that a decision never fails for lack of time. In a dry run
    nothing is attached, so an attempt takes almost no time."""
    return replace(waits, blocking=False, sandbox_s=VERDICT_S)


def without_pause(_pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
    """Run the work at once instead of after a pause, because waiting changes nothing in a dry run. Returns a function
    that cancels it."""
    return start_timer(0.0, work)


def attached_by_daemon(settings: Settings) -> Attached:
    """Return the names of the devices that the running daemon has attached, by the id of the pod sandbox; empty if no
    daemon answers."""
    try:
        document = ask_status(settings.control_path)
    except NotReadyError:
        return {}
    attached: dict[str, tuple[str, ...]] = {}
    for sandbox in document["sandboxes"]:  # a sandbox id appears several times if it has several attachments
        attached[sandbox["id"]] = attached.get(sandbox["id"], ()) + tuple(sandbox["devices"])
    return attached


def dry_identity(settings: Settings) -> Identity:
    """Return the name and index under which the dry run registers with the runtime. The name is the daemon's with a
    suffix, and the index is one lower.

    With the lower index it sees containers with the adjustments of earlier plugins, but without those of the daemon.
    """
    daemon = identify(
        name=settings.plugin_name, index=settings.plugin_index, environment=os.environ, program=sys.argv[0]
    )
    return Identity(name=daemon.name + NAME_SUFFIX, index=f"{max(int(daemon.index) - 1, 0):02}")

"""Sandboxes on a fake kernel with real workers and a real journal, and a clock that moves when the test says so."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.journal import Journal
from nri_rdma.attach.numbers import Resolve, Resolved
from nri_rdma.attach.port import Kernel, ProcessIdentity
from nri_rdma.attach.second_look import SecondLooks
from nri_rdma.attach.work import Site, Work
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import ErrorCode, InventoryError
from nri_rdma.model.request import Mode
from nri_rdma.model.waits import Waits
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import FakeKernel, Link, World
from tests.unit.attach.builders import POD_PATH, make_device, make_placed

SOON = 20.0
"""Seconds after which a test that waits for a worker gives up."""
BLOCKING = Waits(blocking=True, barrier_s=SOON)
"""Whoever is asked waits for the attach, however slow this machine is."""


class Clock:
    """A Schedule whose pauses pass when the test says so."""

    def __init__(self) -> None:
        self.pending: list[tuple[float, Callable[[], None]]] = []
        self._changed = threading.Condition()

    def __call__(self, pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
        item = (pause_s, work)
        with self._changed:
            self.pending.append(item)
            self._changed.notify_all()

        def cancel() -> None:
            if item in self.pending:
                self.pending.remove(item)

        return cancel

    def wait_for_one(self) -> float:
        """The pause of the next thing, once there is one."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.pending, SOON)
            return self.pending[0][0]

    def pass_one(self) -> None:
        """Its time has come."""
        self.wait_for_one()
        _, work = self.pending.pop(0)
        work()


class Gate:
    """A boundary that stops at a place until it is opened, or fails there."""

    def __init__(self) -> None:
        self.stop_at = ""
        self.fail_at = ""
        self.reached = threading.Event()
        self.open = threading.Event()
        self.passed: list[str] = []
        self.threads: dict[str, str] = {}
        """The name of the thread that came to a place, the last time."""

    def __call__(self, place: str) -> None:
        self.passed.append(place)
        self.threads[place] = threading.current_thread().name
        if self.stop_at and place.startswith(self.stop_at):
            self.reached.set()
            assert self.open.wait(SOON)
        if self.fail_at and place.startswith(self.fail_at):
            raise RuntimeError(f"injected {place}")


class FakeProcesses:
    """Processes by number, with the times of their starts."""

    def __init__(self) -> None:
        self.running: dict[int, int] = {}
        self.watched: list[ProcessIdentity] = []

    def watch(self, pid: int) -> ProcessIdentity:
        if pid not in self.running:
            raise ProcessLookupError(pid)
        self.watched.append(ProcessIdentity(pid=pid, start=self.running[pid]))
        return self.watched[-1]

    def watch_again(self, process: ProcessIdentity) -> None:
        if self.running.get(process.pid) != process.start:
            raise ProcessLookupError(process.pid)
        self.watch(process.pid)


def _unchanged(known: Resolved) -> Resolved:
    """The devices keep theirs; the node has no RDMA subsystem, and so no rdma_cm to miss."""
    return replace(known, has_nodes=False)


@dataclass
class Rig:
    """One daemon's engine; several may follow one another on one world."""

    state: Path
    world: World = field(default_factory=World)
    kernel: Kernel | None = None
    clock: Clock = field(default_factory=Clock)
    gate: Gate = field(default_factory=Gate)
    watched: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    on_gone: Callable[[str], None] | None = None
    """Called in place of `gone` when everything of an attachment is restored."""
    failing_gone: int = 0
    planners: Workers | None = None
    """Plan in place of the workers."""
    resolve: Resolve = _unchanged
    managed: bool = False
    event_sequence: int = 0
    processes: FakeProcesses = field(default_factory=FakeProcesses)
    gid_wait_s: float = 0.0

    def __post_init__(self) -> None:
        self.fake = FakeKernel(self.world)
        self.workers = Workers(2)
        self.journal = Journal(self.state)
        self.spans = Recorder()
        site = Site(
            kernel=self.kernel or self.fake,
            journal=self.journal,
            spans=self.spans,
            resolve=self.resolve,
            on_held=self.watched.append,
            processes=self.processes,
            event_sequence=lambda: self.event_sequence,
            links_are_managed=lambda: self.managed,
            boundary=self.gate,
            gid_wait_s=self.gid_wait_s,
        )
        self.work = Work(site, SecondLooks(site.kernel, self.workers, self.clock))
        self.sandboxes = Attachments(
            self.work,
            self.workers,
            on_gone=self._released,
            planners=self.planners,
            schedule=self.clock,
        )

    def close(self) -> None:
        """An orderly end."""
        self.gate.open.set()
        if self.planners is not None:
            self.planners.close()
        self.workers.close()
        self.sandboxes.close()

    def kill(self) -> None:
        """The process ends; its threads are joined only because they are ours."""
        self.gate.open.set()
        self.workers.close()
        self.fake.die()

    def _released(self, sandbox_id: str) -> None:
        if self.on_gone is not None:
            self.on_gone(sandbox_id)
            return
        if self.failing_gone:
            self.failing_gone -= 1
            raise InventoryError(ErrorCode.INVENTORY, "the node cannot be read")
        self.gone.append(sandbox_id)


def await_taken_up(rig: Rig) -> None:
    """What an earlier daemon left is adopted, begun anew or being undone."""
    for sandbox in rig.sandboxes.all():
        if sandbox.taken_up is not None:
            sandbox.taken_up.result(SOON)


def make_world(*, physical: bool = False, path: str = POD_PATH) -> World:
    """A host with one rail that is up, and a pod."""
    world = World()
    world.add_namespace(path)
    add_rail(world, "rail0", physical=physical)
    return world


def add_rail(world: World, name: str, *, physical: bool = False) -> Link:
    """A netdev of the host."""
    place = {"parent": f"pci/{name}", "kind": ""} if physical else {}
    link = world.add_link(world.host, name, alias="of the host", **place)
    link.raise_up()
    return link


def placed_on(world: World, *names: str, mode: Mode = Mode.EXCLUSIVE) -> tuple[Placed, ...]:
    """A pod's request, placed on the devices with these netdevs."""
    kernel = FakeKernel(world)
    links = {link.name: link for link in kernel.links(kernel.host)}
    return (make_placed(tuple(make_device(f"mlx5_{name}", [links[name]]) for name in names), mode=mode),)

"""Containers that are made before the spec that explains their RDMA nodes, or the device, is known, on a runtime that
names no CDI device: the specs are files, and a worker reads them and the node."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

from nri_rdma.attach.containers import KEPT_CONTAINERS
from nri_rdma.cdi.index import NodesAt
from nri_rdma.cdi.registry import Registry
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.sources import Sources
from nri_rdma.decide.policy import Asker
from nri_rdma.engine.container import KnownContainer
from nri_rdma.engine.rereading import Rereading
from nri_rdma.engine.sandbox import LifeEvent, Sandboxes
from nri_rdma.engine.specs import SpecCache
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError
from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import World
from tests.unit.attach.builders import make_pod
from tests.unit.model.hardware import uverbs
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import PREFIX, Daemon, Others
from tests.unit.rigs.engine_with_kubelet import (
    FOREIGN,
    MOVE,
    NIC,
    Calls,
    Node,
    container_message,
    daemon_on,
    refusal,
    sandbox_message,
    spec,
    world,
)

__all__ = ["world"]

Made = TypeVar("Made")

NOT_KNOWN_YET_S = 0.05
"""The deadline of a container that is expected to be told that something is not known yet."""
SERVED = ("mlx5_0 hca_handle=4 hca_object=max",)
"""The limits of who gets what MOVE asks for the device 0."""


@dataclass
class Late:
    """A node, its folder of specs, and who reads."""

    node: Node
    folder: Path
    readers: Workers

    def write(self, *specs: dict[str, object]) -> None:
        """As a driver does it: none is half there at any time."""
        for item in specs:
            path = self.folder / f"{str(item['kind']).replace('/', '-')}.json"
            beside = path.with_suffix(".tmp")
            beside.write_text(json.dumps(item))
            beside.rename(path)

    def hide(self, *devices: str) -> None:
        """The host does not have these RDMA devices, and that is known."""
        self.node.hidden = frozenset(devices)
        self.node.node.refresh()

    def hold_readings(self) -> Callable[[], None]:
        """Readings of the node do not end before the result is called."""
        go = threading.Event()

        def hold() -> None:
            assert go.wait(SOON)

        self.node.before_read = hold
        return go.set

    def await_reading(self) -> None:
        """The readings of the node that were begun are over."""
        self.readers.submit("refresh", lambda: None).result(SOON)


@contextmanager
def late_on(world: World, tmp_path: Path) -> Iterator[Late]:
    """A node that has read a spec of the device 1, wired as a daemon does it."""
    folder = tmp_path / "cdi"
    folder.mkdir()
    settings = Settings(annotation_prefix=PREFIX, cdi_dirs=(folder,), kubelet_socket=tmp_path / "none")
    workers, readers = Workers(1), Workers(1)
    opened: list[Sources] = []
    listeners = Listeners()

    def make_others(daemon: Daemon) -> Others:
        opened.append(Sources(settings, daemon.node, workers, listeners, readers))
        return Others(specs=opened[0].specs, kubelet=opened[0], rereads=opened[0].rereads)

    with daemon_on(world, tmp_path / "state", make_others=make_others) as node:
        made = Late(node=node, folder=folder, readers=readers)
        made.write(spec(FOREIGN, 1))
        opened[0].open_later()
        workers.submit("specs", lambda: None).result(SOON)  # after the opening: it has the same key
        try:
            yield made
        finally:
            node.before_read = lambda: None
            workers.close()
            readers.close()
            opened[0].close()
            listeners.close()


@pytest.fixture
def late(world: World, tmp_path: Path) -> Iterator[Late]:
    with late_on(world, tmp_path) as made:
        yield made


def ask_again(create: Callable[[], Made]) -> Made:
    """As a kubelet does it whom a container is not ready for."""
    until = time.monotonic() + SOON
    while True:
        try:
            return create()
        except NotReadyError:
            assert time.monotonic() < until


def refusal_when_read(create: Callable[[], ContainerEdits]) -> NriRdmaError:
    """What it is told when the readings for it have ended, however long that takes."""
    until = time.monotonic() + SOON
    while (told := refusal(create)).what.startswith("network is not ready"):
        assert time.monotonic() < until
    return told


def assert_not_ready(told: NriRdmaError) -> None:
    assert told.code is ErrorCode.NOT_READY
    assert told.what.startswith("network is not ready")


# What is late


def test_a_container_gets_what_its_spec_asks_that_was_written_a_moment_ago(late: Late) -> None:
    late.write(spec(NIC, 0, keys=MOVE))
    assert ask_again(lambda: late.node.create("trainer", 0)).rdma_max == SERVED


def test_a_container_gets_what_its_spec_asks_for_a_device_that_came_a_moment_ago(late: Late) -> None:
    late.hide("mlx5_0")
    late.write(spec(NIC, 0, keys=MOVE))
    late.node.hidden = frozenset()
    assert ask_again(lambda: late.node.create("trainer", 0)).rdma_max == SERVED


def test_the_first_rdma_device_of_a_node_is_not_overlooked(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Node, "hidden", frozenset(f"mlx5_{number}" for number in range(4)))
    with late_on(world, tmp_path) as late:
        calls, pod = Calls(late.node), sandbox_message(make_pod())
        late.write(spec(NIC, 0, keys=MOVE))
        late.node.hidden = frozenset()
        made = ask_again(lambda: calls.create(pod, container_message("trainer", 0)))
        assert made.linux.resources.unified["rdma.max"] == SERVED[0]


def test_a_container_whose_readings_are_late_is_told_to_come_again_and_served_by_the_same_ones(late: Late) -> None:
    late.hide("mlx5_0")
    late.write(spec(NIC, 0, keys=MOVE))
    late.node.hidden = frozenset()
    reads = late.node.reads
    go = late.hold_readings()
    for _ in range(3):
        assert_not_ready(refusal(lambda: late.node.create("trainer", 0, seconds=NOT_KNOWN_YET_S)))
    go()
    late.await_reading()
    assert late.node.reads == reads + 1
    late.node.broken = OSError("nobody reads any more")
    assert late.node.create("trainer", 0).rdma_max == SERVED


def test_a_container_that_comes_again_with_other_nodes_is_not_let_through_by_readings_for_the_first_ones(
    late: Late,
) -> None:
    go = late.hold_readings()
    assert_not_ready(refusal(lambda: late.node.create("trainer", 2, seconds=NOT_KNOWN_YET_S)))
    go()
    late.await_reading()
    reads = late.node.reads
    ask_again(lambda: late.node.create("trainer", 2, 3))
    assert late.node.reads == reads + 1


# What stays nobody's


def test_nodes_that_nobody_explains_cost_one_reading_and_are_observed(late: Late) -> None:
    reads = late.node.reads
    assert ask_again(lambda: late.node.create("main", 0)) == ContainerEdits()
    assert late.node.reads == reads + 1
    (seen,) = late.node.seen()
    assert (seen.what, seen.devices, seen.adopt) == ("device nodes", ("mlx5_0",), "observe")


def test_nodes_that_nobody_explains_are_let_through_once_by_readings_that_ended_after_the_first_attempt(
    late: Late,
) -> None:
    go = late.hold_readings()
    assert_not_ready(refusal(lambda: late.node.create("main", 0, seconds=NOT_KNOWN_YET_S)))
    go()
    late.await_reading()
    late.node.broken = OSError("nobody reads any more")
    assert ask_again(lambda: late.node.create("main", 0)) == ContainerEdits()
    assert refusal_when_read(lambda: late.node.create("main", 0)).code is ErrorCode.INVENTORY


def test_nodes_that_nobody_explains_are_refused_after_one_reading_where_that_is_enforced(late: Late) -> None:
    late.node.engine.offering.adoption = Adoption(others=VendorAdoption(adopt=Adopt.ENFORCE))
    reads = late.node.reads
    told = refusal(lambda: ask_again(lambda: late.node.create("main", 0)))
    assert told.code is ErrorCode.NOT_ALLOCATED
    assert late.node.reads == reads + 1


# Who does not wait


def test_a_container_whose_nodes_are_explained_waits_for_no_reading(late: Late) -> None:
    late.hold_readings()
    assert late.node.create("main", 1, seconds=NOT_KNOWN_YET_S) == ContainerEdits()
    assert late.node.create("main", 1, cdi=(FOREIGN,), seconds=NOT_KNOWN_YET_S) == ContainerEdits()


def test_a_privileged_container_waits_for_no_reading(late: Late) -> None:
    late.hold_readings()
    made = late.node.create("agent", 0, 1, 2, 3, is_privileged=True, seconds=NOT_KNOWN_YET_S)
    assert made == ContainerEdits()


def test_a_container_without_rdma_nodes_waits_for_no_reading(late: Late) -> None:
    late.hold_readings()
    assert late.node.create("main", seconds=NOT_KNOWN_YET_S) == ContainerEdits()


def test_another_container_of_a_claim_waits_for_no_reading_while_its_device_is_out_of_sight(late: Late) -> None:
    late.write(spec(NIC, 0, keys=MOVE))
    ask_again(lambda: late.node.create("trainer", 0))
    late.hide("mlx5_0")
    reads = late.node.reads
    assert late.node.create("helper", 0).rdma_max == SERVED
    assert late.node.reads == reads


def test_a_container_that_was_there_before_us_waits_for_no_reading(late: Late) -> None:
    late.hold_readings()
    asker = Asker(namespace="ml", host_network=False)
    running = KnownContainer(
        pod=make_pod(), name="main", asker=asker, devices={uverbs(3).path: (231, 195)}, was_there=True
    )
    assert late.node.engine.concerns(running)
    assert late.node.engine.create_container(running, time.monotonic()) == ContainerEdits()


# Readings that fail


def test_a_container_is_refused_where_the_node_cannot_be_read(late: Late) -> None:
    late.node.broken = OSError("sysfs is gone")
    told = refusal_when_read(lambda: late.node.create("trainer", 0))
    assert told.code is ErrorCode.INVENTORY
    assert "sysfs is gone" in str(told)
    assert str(make_pod()) in str(told)
    assert "container trainer" in str(told)


def test_a_container_is_served_by_readings_after_those_that_failed(late: Late) -> None:
    late.hide("mlx5_0")
    late.write(spec(NIC, 0, keys=MOVE))
    late.node.hidden = frozenset()
    late.node.broken = OSError("not now")
    assert isinstance(refusal(lambda: late.node.create("trainer", 0)), NotReadyError)
    late.await_reading()
    late.node.broken = None
    assert ask_again(lambda: late.node.create("trainer", 0)).rdma_max == SERVED


def test_a_container_is_refused_where_the_specs_cannot_be_read(world: World, tmp_path: Path) -> None:
    failed: Future[None] = Future()
    failed.set_exception(OSError("no descriptor is left"))

    def make_others(daemon: Daemon) -> Others:
        specs = SpecCache(node=lambda: daemon.node.current, registry=lambda: Registry(devices={}), prefix=PREFIX)
        return Others(specs=specs, rereads=(lambda: failed,))

    with daemon_on(world, tmp_path, make_others=make_others) as node:
        told = refusal(lambda: node.create("trainer", 0))
    assert told.code is ErrorCode.NOT_READY
    assert "no descriptor is left" in str(told)


def test_a_container_is_refused_while_the_daemon_ends(late: Late) -> None:
    late.readers.close()
    assert "nri-rdma is ending" in str(refusal_when_read(lambda: late.node.create("trainer", 0)))


# What is remembered


class Reads:
    """Readings that never end."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> Future[None]:
        self.asked += 1
        return Future()


NODES: NodesAt = frozenset({("/dev/infiniband/uverbs0", (231, 192))})


def ask(rereading: Rereading, number: int) -> None:
    refusal(lambda: rereading.await_read(make_pod(f"sandbox-{number}"), "main", NODES, time.monotonic()))


def test_readings_of_thousands_of_containers_that_never_come_again_are_not_kept() -> None:
    reads = Reads()
    rereading = Rereading([reads], Sandboxes())
    for number in range(5000):
        ask(rereading, number)
    ask(rereading, 4999)
    assert reads.asked == 5000
    ask(rereading, 0)
    assert reads.asked == 5001


def test_readings_of_a_sandbox_whose_containers_never_end_are_kept_for_the_first_ones() -> None:
    reads, now = Reads(), time.monotonic()
    rereading = Rereading([reads], Sandboxes())
    for number in range(KEPT_CONTAINERS + 1):
        refusal(lambda: rereading.await_read(make_pod(), f"debugger-{number}", NODES, now))  # noqa: B023
    refusal(lambda: rereading.await_read(make_pod(), f"debugger-{KEPT_CONTAINERS - 1}", NODES, now))
    assert reads.asked == KEPT_CONTAINERS + 1
    refusal(lambda: rereading.await_read(make_pod(), f"debugger-{KEPT_CONTAINERS - 1}", NODES, now))
    refusal(lambda: rereading.await_read(make_pod(), f"debugger-{KEPT_CONTAINERS}", NODES, now))
    assert reads.asked == KEPT_CONTAINERS + 2


@pytest.mark.parametrize(
    "end", [lambda it: it.step("sandbox-1", LifeEvent.STOP), lambda it: it.keep({"sandbox-2"})], ids=["stop", "keep"]
)
def test_readings_for_a_sandbox_are_forgotten_with_it(end: Callable[[Sandboxes], None]) -> None:
    reads, sandboxes = Reads(), Sandboxes()
    rereading = Rereading([reads], sandboxes)
    ask(rereading, 1)
    ask(rereading, 2)
    end(sandboxes)
    ask(rereading, 2)
    assert reads.asked == 2
    ask(rereading, 1)
    assert reads.asked == 3

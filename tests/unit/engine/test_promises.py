"""A container that is not made yet is promised devices: nobody else gets them until it starts or the promise lapses."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any  # Any: what annotations ask for

import pytest

from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.engine.container import KnownContainer
from nri_rdma.engine.promises import LAPSE_S, Promises
from nri_rdma.engine.refusals import RefusedLately
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from tests.unit.rigs.inside_daemon import InsideDaemon

PREFIX = "rdma.noderesource.dev"
SECOND = {"name": "fast", "match": {"device": "mlx5_2"}, "mode": "exclusive"}


@dataclass
class Clock:
    """What is due later, and was not cancelled."""

    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def schedule(self, pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
        entry = (pause_s, work)
        self.due.append(entry)
        return lambda: self.due.remove(entry)


@dataclass
class Rig:
    inside: InsideDaemon
    clock: Clock
    promises: Promises
    attached: set[str]
    links: tuple[str, ...] = ()
    interface: str | None = None

    def make(
        self, name: str = "box", *, network: bool = True, env: tuple[str, ...] = (), **asked: Any
    ) -> ContainerEdits:
        pod = Pod(
            sandbox_id=name,
            uid=name,
            name=name,
            namespace="oci",
            netns_path="/proc/7/ns/net" if network else "",
            is_listed=False,
        )
        annotations = {f"{PREFIX}/{key.replace('_', '.')}": json.dumps(value) for key, value in asked.items()}
        container = KnownContainer(pod=pod, name=name, annotations=annotations, asker=Asker(namespace="oci"), env=env)
        return self.promises.make(container, self.links, self.interface, time.monotonic() + 5)

    @property
    def taken(self) -> set[str]:
        return {str(it) for it in self.inside.reservations.taken()}

    def refusal(self, name: str = "box", *, network: bool = True, **asked: Any) -> NriRdmaError:
        with pytest.raises(NriRdmaError) as caught:
            self.make(name, network=network, **asked)
        return caught.value


@pytest.fixture
def rig(daemon: InsideDaemon) -> Rig:
    clock, attached = Clock(), set[str]()
    promises = Promises(
        attached.__contains__,
        daemon.engine._placer,
        daemon.engine.node,
        RefusedLately(),
        daemon.settings.annotation_prefix,
        daemon.spans,
        clock.schedule,
    )
    return Rig(inside=daemon, clock=clock, promises=promises, attached=attached)


def test_a_promise_has_nodes_and_variables_and_attaches_nothing(rig: Rig) -> None:
    before = rig.inside.world.snapshot()
    edits = rig.make(pod=[SECOND])
    assert [it.path for it in edits.char_devices] == ["/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"]
    env = dict(edits.env)
    assert (env["RDMA_DEVICES_FAST"], env["RDMA_NETDEVS_FAST"], env["NCCL_IB_HCA"]) == ("mlx5_2", "rdma0", "=mlx5_2")
    assert rig.inside.world.snapshot() == before
    assert len(rig.taken) == 1


def test_names_that_others_have_in_the_same_network_are_not_promised(rig: Rig) -> None:
    rig.links = ("lo", "rdma0")
    assert dict(rig.make(pod=[SECOND]).env)["RDMA_NETDEVS_FAST"] == "rdma1"


def test_what_is_promised_nobody_else_gets(rig: Rig) -> None:
    rig.make(pod=[SECOND])
    assert rig.refusal("other", pod=[SECOND]).code is ErrorCode.DEVICE_IN_USE


def test_a_promise_is_redeemed_once_and_stays_reserved(rig: Rig) -> None:
    rig.make(pod=[SECOND])
    chosen = rig.promises.redeem("box")
    assert chosen is not None
    assert chosen.device_names == "mlx5_2"
    assert (rig.promises.redeem("box"), rig.clock.due) == (None, [])
    assert len(rig.taken) == 1


def test_a_promise_that_nobody_redeems_lapses(rig: Rig) -> None:
    rig.make(pod=[SECOND])
    ((pause_s, lapse),) = rig.clock.due
    lapse()
    assert pause_s == LAPSE_S
    assert (rig.taken, rig.promises.redeem("box")) == (set(), None)


def test_a_promise_that_was_withdrawn_is_free_at_once(rig: Rig) -> None:
    rig.make(pod=[SECOND])
    rig.promises.withdraw("box")
    assert (rig.taken, rig.clock.due) == (set(), [])


def test_of_two_promises_of_one_container_the_last_counts(rig: Rig) -> None:
    rig.make(pod=[SECOND])
    ((_, lapse_first),) = rig.clock.due
    rig.make(pod=[{**SECOND, "match": {"device": "mlx5_3"}}])
    lapse_first()  # it was about to be called when it was cancelled
    chosen = rig.promises.redeem("box")
    assert chosen is not None
    assert chosen.device_names == "mlx5_3"


def test_what_is_attached_by_now_is_not_released(rig: Rig) -> None:
    rig.make(pod=[SECOND])
    rig.attached.add("box")
    ((_, lapse),) = rig.clock.due
    lapse()
    assert len(rig.taken) == 1


@pytest.mark.parametrize("asked", [[], None])
def test_who_asks_for_nothing_is_promised_nothing(rig: Rig, asked: object) -> None:
    assert rig.make(pod=asked) == ContainerEdits()
    assert (rig.taken, rig.clock.due) == (set(), [])


def test_a_variable_of_the_containers_own_stays(rig: Rig) -> None:
    assert "NCCL_IB_HCA" not in dict(rig.make(pod=[SECOND], env=("NCCL_IB_HCA",)).env)


def test_a_netdev_cannot_be_promised_on_the_hosts_network(rig: Rig) -> None:
    assert rig.refusal(network=False, pod=[SECOND]).code is ErrorCode.HOST_NETWORK
    assert (rig.taken, rig.clock.due) == (set(), [])


def test_a_shared_device_can(rig: Rig) -> None:
    edits = rig.make(network=False, pod=[{**SECOND, "mode": "shared"}])
    assert [it.path for it in edits.char_devices] == ["/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"]
    assert "RDMA_NETDEVS_FAST" not in dict(edits.env)


def test_what_is_for_other_containers_is_refused(rig: Rig) -> None:
    assert rig.refusal(container_main=[SECOND]).code is ErrorCode.ANNOTATION_PLACE
    assert rig.refusal(pod=[{**SECOND, "containers": ["main"]}]).code is ErrorCode.ANNOTATION_PLACE
    assert (rig.taken, rig.clock.due) == (set(), [])


def test_an_interface_name_that_is_taken_releases_what_was_chosen(rig: Rig) -> None:
    rig.links = ("lo", "rail")
    named = {"name": "second", "match": {"device": "mlx5_3"}, "mode": "exclusive", "interface": {"name": "rail"}}
    assert rig.refusal(pod=[SECOND, named]).code is ErrorCode.NAME_CONFLICT
    assert (rig.taken, rig.clock.due) == (set(), [])


def test_no_runtime_bounds_the_memlock_of_such_a_container(rig: Rig) -> None:
    rig.inside.engine.offering.memlock = MemlockBounds(ceiling=1 << 20, dropped_by="containerd 1.7.0")
    assert rig.make(pod=[{**SECOND, "memlock": "unlimited"}]).char_devices

"""Ids that stand for devices: which of them can be given, and which of them go well together."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.decide.device_ids import offered_devices, preferred
from nri_rdma.decide.placement import Holding, Taken
from nri_rdma.decide.topology import distance
from nri_rdma.model.device import Node, RdmaDevice, RdmaNetns
from nri_rdma.model.request import Mode
from tests.unit.decide.placing import set_down
from tests.unit.doors.deviceplugin.pools import NOBODY, offered, pool_of_devices
from tests.unit.model.hardware import eight, nic, node


def health(on: Node, *modes: Mode, taken: Taken = NOBODY, held: tuple[RdmaDevice, ...] = ()) -> list[bool]:
    one = pool_of_devices(*modes)
    return [it.is_healthy for it in offered_devices(one, on, offered(one, node=on), taken, held)]


def without(number: int, **changes: object) -> Node:
    """The node "eight" with one device changed."""
    on = eight()
    devices = [replace(it, **changes) if it.index == number else it for it in on.devices]  # type: ignore[arg-type]  # by name
    return replace(on, devices=tuple(devices))


def test_ids_are_the_devices_own_with_their_numa_nodes() -> None:
    on = eight()
    one = pool_of_devices()
    told = offered_devices(one, on, offered(one, node=on), {})
    assert [it.id for it in told] == [device.id for device in on.devices]
    assert [it.numa_node for it in told] == [0] * 4 + [1] * 4
    assert all(it.is_healthy for it in told)


@pytest.mark.parametrize(
    "changed",
    [
        without(2, ports=tuple(replace(port, state="DOWN") for port in eight().devices[2].ports)),
        without(2, in_use=("it carries the default route",)),
        without(2, used_by_some=("4711 (perftest) has it open",)),
        without(2, char_devices=()),
    ],
    ids=["down", "in use", "open", "no node"],
)
def test_a_device_that_cannot_be_given_is_unhealthy_and_the_others_are_not(changed: Node) -> None:
    assert health(changed) == [number != 2 for number in range(8)]


def test_a_device_without_its_netdev_cannot_be_given_alone_and_can_be_shared() -> None:
    changed = without(2, netdevs=())
    assert health(changed, Mode.EXCLUSIVE) == [number != 2 for number in range(8)]
    assert all(health(changed))


def test_a_device_that_is_down_with_its_netdev_is_healthy_for_who_gets_the_netdev() -> None:
    changed = set_down(eight(), 2)
    assert all(health(changed, Mode.EXCLUSIVE))
    assert health(changed, Mode.SHARED) == [number != 2 for number in range(8)]


def test_on_a_kernel_that_hides_devices_none_can_be_shared_and_all_can_be_had_alone() -> None:
    hiding = replace(eight(), rdma_netns=RdmaNetns.EXCLUSIVE)
    assert not any(health(hiding))
    assert all(health(hiding, Mode.EXCLUSIVE))
    assert all(health(hiding, Mode.SHARED, Mode.EXCLUSIVE))


@pytest.mark.parametrize("mode", list(Mode))
def test_a_device_that_a_pod_has_by_its_id_stays_healthy_and_that_of_another_owner_does_not(mode: Mode) -> None:
    on = eight()
    first, second = on.devices[:2]
    own = Holding(owner="ns/a", mode=mode, shares=frozenset({str(first.id)}), is_sole=True)
    other = Holding(owner="ns/b", mode=mode)
    taken = {first.id: frozenset({own}), second.id: frozenset({other})}
    assert health(on, mode, taken=taken) == [True, False, *[True] * 6]


def test_a_pod_that_sets_its_own_port_down_takes_nothing_from_others() -> None:
    lost = without(0, ports=tuple(replace(port, state="DOWN") for port in eight().devices[0].ports))
    device = lost.devices[0].id
    for mode, healthy in ((Mode.EXCLUSIVE, True), (Mode.SHARED, False)):
        own = Holding(owner="ns/a", mode=mode, shares=frozenset({str(device)}), is_sole=True)
        assert health(lost, mode, taken={device: frozenset({own})})[0] is healthy


def test_a_device_that_the_kernel_hides_while_a_pod_has_it_is_still_counted() -> None:
    on = eight()
    hidden = replace(on, devices=on.devices[1:])
    assert health(hidden, Mode.EXCLUSIVE, held=(on.devices[0],)) == [True] * 8
    assert health(on, Mode.EXCLUSIVE, held=(on.devices[0],)) == [True] * 8


# Preference


def named(on: Node, numbers: tuple[int, ...] = (), must: tuple[int, ...] = (), count: int = 2) -> list[int]:
    """The indexes of the preferred devices, of these (all: no numbers)."""
    by_id: dict[str, RdmaDevice] = {device.id: device for device in on.devices}
    ids = {device.index: device.id for device in on.devices}
    available = [ids[number] for number in reversed(numbers or tuple(ids))]
    found = preferred(by_id, available, [ids[number] for number in must], count)
    return [by_id[it].index for it in found]


def test_devices_of_one_numa_node_are_preferred() -> None:
    assert named(eight(), (0, 4, 5)) == [4, 5]
    assert named(eight(), (0, 1, 2, 4, 5, 6, 7), count=4) == [4, 5, 6, 7]


def test_below_one_switch_is_better_than_on_one_numa_node() -> None:
    on = node((nic(0, root=0, numa=0), nic(1, root=1, numa=0), nic(2, root=2, numa=1), nic(3, root=2, numa=1)), ())
    assert named(on) == [2, 3]
    assert named(on, (0, 1, 2)) == [0, 1]


def test_devices_near_to_those_that_must_be_included_are_preferred() -> None:
    assert named(eight(), must=(5,)) == [5, 4]
    assert named(eight(), (0, 1, 5), must=(5, 0), count=3) == [5, 0, 1]


def test_the_others_are_near_to_all_that_must_be_included_together() -> None:
    """Three below one switch have three near pairs; two and two have two only."""
    on = node(tuple(nic(number, root=root, numa=root) for number, root in enumerate((0, 1, 0, 1, 1))), ())
    assert named(on, must=(0, 1), count=4) == [0, 1, 3, 4]


def test_as_many_as_must_be_included_are_these() -> None:
    assert named(eight(), must=(6, 1)) == [6, 1]
    assert named(eight(), must=(6, 1), count=1) == [6]


def test_a_device_whose_neighbour_is_taken_comes_before_one_of_an_intact_pair() -> None:
    on = node(tuple(nic(number, root=number // 2, numa=0) for number in range(4)), ())
    assert named(on, (0, 1, 3), count=1) == [3]


def test_ids_of_devices_that_are_not_there_come_last() -> None:
    by_id: dict[str, RdmaDevice] = {device.id: device for device in eight().devices[:1]}
    (known,) = by_id
    assert preferred(by_id, ["gone-2", known, "gone-1"], [], 2) == (known, "gone-1")
    assert preferred({}, ["b", "a"], ["b"], 2) == ("b", "a")
    assert preferred({}, [], [], 3) == ()


PLACES = st.tuples(st.integers(0, 3), st.integers(0, 1))
"""A root and one of its two switches; roots 0 and 1 are on NUMA node 0."""


@given(places=st.lists(PLACES, min_size=2, max_size=8), count=st.integers(1, 5), must=st.integers(0, 2))
def test_no_other_choice_has_fewer_distant_pairs(places: list[tuple[int, int]], count: int, must: int) -> None:
    devices = tuple(placed(number, *place) for number, place in enumerate(places))
    on = node(devices, ())
    begun = tuple(range(min(must, count, len(devices))))
    chosen = named(on, must=begun, count=count)
    size = min(count, len(devices))
    assert len(set(chosen)) == size
    assert set(begun) <= set(chosen)
    best = min(
        distant(devices, picked) for picked in combinations(range(len(devices)), size) if set(begun) <= set(picked)
    )
    assert distant(devices, tuple(chosen)) == best


def placed(number: int, root: int, switch: int) -> RdmaDevice:
    """A device below a switch of a root complex."""
    device = nic(number, root=root, numa=root // 2)
    assert device.pci is not None
    above = (device.pci_root, f"0000:{root:02x}:01.0", f"0000:{root:02x}:02.0", f"0000:{root:02x}:1{switch}.0")
    return replace(device, id=f"{device.pci}/{number}", pci_path=(*above, f"0000:{root:02x}:2{switch}.{number}"))  # type: ignore[arg-type]  # a name


def distant(devices: tuple[RdmaDevice, ...], chosen: tuple[int, ...]) -> list[int]:
    """How many pairs are at each distance, the farthest first."""
    far = [distance(devices[one], devices[other]) for one, other in combinations(chosen, 2)]
    return [far.count(it) for it in sorted(set(range(1, 6)), reverse=True)]  # type: ignore[arg-type]  # an IntEnum

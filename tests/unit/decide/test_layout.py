"""What is worked out for a reading of the node is what its devices say one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.decide.layout import branch, layout_of
from nri_rdma.decide.placement import why_not_free
from nri_rdma.decide.topology import distance
from nri_rdma.errors import PlacementError
from nri_rdma.model.device import LinkLayer, Node, RdmaDevice
from nri_rdma.model.request import Mode
from tests.unit.decide.placing import asking, chosen
from tests.unit.model.hardware import gpu, nic, node, tied

_Place = tuple[str, tuple[str, ...], int | None]
"""The root complex, the bridges below it, and the NUMA node."""
_BELOW = ((), ("port0",), ("port1",), ("port0", "up0", "down0"), ("port0", "up0", "down1"), ("port1", "up1", "down2"))
_PLACES = st.tuples(st.sampled_from(("r0", "r1")), st.sampled_from(_BELOW), st.none() | st.integers(0, 1))
_NOWHERE = st.tuples(st.just(""), st.just(()), st.none() | st.integers(0, 1))


def _path(place: _Place, function: str) -> tuple[str, ...]:
    return (place[0], *place[1], function) if place[0] else ()


def _nic(number: int, place: _Place) -> RdmaDevice:
    return replace(
        nic(number, numa=place[2]), pci_root=place[0], pci_path=_path(place, f"nic{number}"), driver="mlx5_core"
    )


_NODES = st.builds(
    lambda nics, gpus: node(
        tuple(_nic(number, place) for number, place in enumerate(nics)),
        tuple(
            replace(gpu(number, numa=place[2]), pci_root=place[0], pci_path=_path(place, f"gpu{number}"))
            for number, place in enumerate(gpus)
        ),
    ),
    st.lists(_PLACES | _NOWHERE, max_size=6),
    st.lists(_PLACES, max_size=3),
)


@given(_NODES)
def test_it_has_the_distance_of_each_device_from_each_gpu(on: Node) -> None:
    layout = layout_of(on)
    for one in on.gpus:
        for device in on.devices:
            assert layout.distance(one.pci, device.id) is distance(device, one)


@given(_NODES)
def test_devices_are_in_one_group_where_they_share_a_switch_a_root_or_a_numa_node(on: Node) -> None:
    places = layout_of(on).places
    for one in on.devices:
        for other in on.devices:
            numa_node, root, _, switch = (a == b for a, b in zip(branch(one), branch(other), strict=True))
            groups = zip(places.groups[places.of[one.id]], places.groups[places.of[other.id]], strict=True)
            assert [a == b for a, b in groups] == [switch, root, numa_node]


@given(_NODES)
def test_no_group_has_the_number_of_one_of_another_kind(on: Node) -> None:
    kinds = list(zip(*layout_of(on).places.groups, strict=True))
    assert sum(len(set(kind)) for kind in kinds) == len(set().union(*kinds))


def test_functions_of_one_adapter_are_at_one_place() -> None:
    """So that a reading of a node with a thousand of them takes no longer for each GPU."""
    place: _Place = ("r0", ("port0",), 0)
    on = node(tuple(_nic(number, place) for number in range(6)), (gpu(0),))
    assert len(layout_of(on).places.samples) == 1


def test_another_reading_of_the_node_has_a_layout_of_its_own() -> None:
    (before,) = (node((_nic(0, ("r0", (), 0)),), (replace(gpu(0), pci_root="r0", pci_path=("r0", "gpu0")),)),)
    after = replace(before, devices=(_nic(0, ("r1", (), 1)),))
    assert layout_of(before).distance(before.gpus[0].pci, before.devices[0].id).name == "PHB"
    assert layout_of(after).distance(after.gpus[0].pci, after.devices[0].id).name == "SYS"
    assert layout_of(before) is layout_of(before)


# What a pod may have unless another one has it


def _kinds_of_devices() -> tuple[RdmaDevice, ...]:
    """Of each kind of obstacle one, and one without any."""
    return (
        nic(0),
        nic(1, in_use=("bond0",)),
        replace(nic(2), used_by_some=("a process has it open",)),
        nic(3, has_netdev=False),
        replace(nic(4), driver="", pci=None, kernel_index=4),
        tied(nic(5)),
        nic(6, chars=()),
        nic(7, has_netdev=False, link_layer=LinkLayer.INFINIBAND),
    )


@pytest.mark.parametrize("mode", Mode)
@given(devices=st.lists(st.sampled_from(_kinds_of_devices()), unique_by=lambda it: it.id))
def test_all_that_nothing_speaks_against_is_given_and_nothing_else(devices: list[RdmaDevice], mode: Mode) -> None:
    on, request = node(tuple(devices)), asking(count=None, if_free=True, mode=mode)
    free = [device.name for device in devices if not why_not_free(device, request, on, frozenset())]
    try:
        assert sorted(*chosen(on, request)) == sorted(free)
    except PlacementError:
        assert not free

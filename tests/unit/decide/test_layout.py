"""What is worked out once for a reading of the node is what the devices say one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from nri_rdma.decide.layout import branch, layout_of
from nri_rdma.decide.placement import place, why_not_free
from nri_rdma.decide.topology import distance
from nri_rdma.errors import PlacementError
from nri_rdma.model.device import Node
from nri_rdma.model.request import Mode
from tests.unit.decide.placing import NODES, asking, chosen, everything
from tests.unit.model.hardware import eight, nic, node


@given(NODES)
def test_it_has_the_distance_of_each_device_from_each_gpu(on: Node) -> None:
    far = layout_of(on).far
    assert {(gpu.pci, device.id): far[gpu.pci][device.id] for gpu in on.gpus for device in on.devices} == {
        (gpu.pci, device.id): distance(device, gpu) for gpu in on.gpus for device in on.devices
    }


@given(NODES)
def test_devices_are_in_one_group_where_they_share_a_switch_a_root_or_a_numa_node(on: Node) -> None:
    groups = layout_of(on).groups
    for one in on.devices:
        for other in on.devices:
            numa_node, root, _, switch = (a == b for a, b in zip(branch(one), branch(other), strict=True))
            assert [a == b for a, b in zip(groups[one.id], groups[other.id], strict=True)] == [switch, root, numa_node]


@given(NODES)
def test_no_group_has_the_number_of_one_of_another_kind(on: Node) -> None:
    kinds = list(zip(*layout_of(on).groups.values(), strict=True))
    assert sum(len(set(kind)) for kind in kinds) == len(set().union(*kinds))


@pytest.mark.parametrize("mode", Mode)
@given(on=NODES)
def test_all_that_nothing_speaks_against_is_given_and_nothing_else(on: Node, mode: Mode) -> None:
    request = asking(count=None, mode=mode)
    free = [device.name for device in on.devices if not why_not_free(device, request, on, frozenset())]
    try:
        assert chosen(on, request) == (free,)
    except PlacementError:
        assert not free


def test_a_new_reading_of_the_node_has_a_layout_of_its_own() -> None:
    before, after = eight(), node((nic(0, in_use=("bond0",)), nic(1)))
    assert chosen(before, asking()) == (["mlx5_0"],)
    assert chosen(after, asking()) == (["mlx5_1"],)
    assert chosen(replace(before), asking()) == (["mlx5_0"],)
    assert place(after, everything(after), {}, (asking(),))[0].devices[0].id in layout_of(after).groups

"""What the kubelet is told of a pool: its shares, how many of them are healthy, and what an allocated one brings."""

from dataclasses import replace

import pytest

from nri_rdma.decide.share_requests import is_up, share_ids
from nri_rdma.doors.deviceplugin.answers import (
    allocated,
    count_of,
    healthy_of,
    healthy_shares,
    listed,
    nodes_of,
    told_of,
)
from nri_rdma.model.device import Node
from nri_rdma.model.pool import ShareGives
from tests.rig.kubelet import fields
from tests.unit.doors.deviceplugin.pools import offered, pool, pool_of_devices, supply
from tests.unit.model.hardware import eight


def down(on: Node, *numbers: int) -> Node:
    """The node with the ports of these devices down."""
    return replace(
        on,
        devices=tuple(
            replace(device, ports=tuple(replace(port, state="DOWN") for port in device.ports))
            if index in numbers
            else device
            for index, device in enumerate(on.devices)
        ),
    )


def test_ids_are_the_pools_own_and_sort_by_their_numbers() -> None:
    ids = share_ids(pool(100))
    assert (ids[0], ids[-1], len(set(ids))) == ("hcas-00", "hcas-99", 100)
    assert sorted(ids) == list(ids)


@pytest.mark.parametrize(("lost", "healthy"), [((), 64), ((0,), 56), ((0, 5), 48), (tuple(range(8)), 0)])
def test_a_device_that_is_down_takes_its_part_of_the_shares_away(lost: tuple[int, ...], healthy: int) -> None:
    one = pool(64)
    assert healthy_shares(one, offered(one, node=down(eight(), *lost))) == healthy


@pytest.mark.parametrize(("lost", "healthy"), [((), 64), ((0, 1, 2), 64), (tuple(range(8)), 0)])
def test_where_a_share_gives_all_devices_one_that_is_up_is_enough(lost: tuple[int, ...], healthy: int) -> None:
    one = pool(64, ShareGives.ALL)
    assert healthy_shares(one, offered(one, node=down(eight(), *lost))) == healthy


def test_of_shares_that_cannot_be_dealt_out_evenly_none_is_lost() -> None:
    one = pool(10)
    assert healthy_shares(one, offered(one, node=eight())) == 10


def test_a_device_of_which_no_port_is_known_counts_as_up() -> None:
    assert is_up(replace(eight().devices[0], ports=()))


def test_a_pool_without_devices_on_this_node_has_no_healthy_share() -> None:
    one = pool(8)
    assert healthy_shares(one, offered(one, node=replace(eight(), devices=()))) == 0


def test_the_list_has_every_share_and_the_last_ones_are_unhealthy() -> None:
    told = [dict(fields(content)) for _, content in fields(listed(pool(4), 3))]
    assert [it[1] for it in told] == [b"hcas-0", b"hcas-1", b"hcas-2", b"hcas-3"]
    assert [it[2] for it in told] == [b"Healthy"] * 3 + [b"Unhealthy"]


def test_an_allocated_share_brings_its_name_and_no_device() -> None:
    first, second = (list(fields(content)) for _, content in fields(allocated(pool(), [["hcas-02"], ["hcas-00"]])))
    ((number, annotation),) = first
    assert number == 4
    assert dict(fields(annotation)) == {
        1: b"shares.rdma.noderesource.dev/rdma_hca_shared",
        2: b"rdma/hca_shared=hcas-02",
    }
    assert [it[0] for it in second] == [4]


def test_shares_with_the_guard_say_that_they_were_given_it() -> None:
    ((_, content),) = fields(allocated(pool(), [["hcas-02"]], "shares.rdma.noderesource.dev/pool=hcas"))
    told = [dict(fields(annotation)) for number, annotation in fields(content) if number == 4]
    assert {1: b"guard.shares.rdma.noderesource.dev/rdma_hca_shared", 2: b"hcas"} in told  # a map has no order
    assert [number for number, _ in fields(content)] == [4, 4, 5]


def test_a_device_that_the_host_uses_takes_its_part_of_the_shares_away() -> None:
    one, on = pool(64), eight()
    used = replace(on, devices=(replace(on.devices[0], in_use=("it carries the default route",)), *on.devices[1:]))
    assert healthy_shares(one, offered(one, node=used)) == 56


def test_of_a_pool_of_devices_the_list_has_each_device_with_its_numa_node() -> None:
    one, on = pool_of_devices(), down(eight(), 1)
    on = replace(on, devices=(*on.devices[:7], replace(on.devices[7], numa_node=None)))
    told = told_of(one, supply(one, node=on))
    assert (count_of(one, told), healthy_of(told)) == (8, 7)
    found = [dict(fields(content)) for _, content in fields(listed(one, told))]
    assert [it[1].decode() for it in found] == [device.id for device in on.devices]
    assert [it[2] for it in found] == [b"Healthy", b"Unhealthy", *[b"Healthy"] * 6]
    # TopologyInfo{nodes: [NUMANode{ID}]}; number 0 is not written.
    assert [it.get(3) for it in found] == [b"\x0a\x00"] * 4 + [b"\x0a\x02\x08\x01"] * 3 + [None]


def test_an_allocated_id_brings_its_device_nodes_only_where_it_is_asked_for_them() -> None:
    one, on = pool_of_devices(), eight()
    have, ids = supply(one, node=on), [on.devices[3].id, on.devices[1].id]
    (with_nodes,) = (
        list(fields(content)) for _, content in fields(allocated(one, [ids], "", lambda it: nodes_of(one, have, it)))
    )
    specs = [dict(fields(content)) for number, content in with_nodes if number == 3]
    assert [it[1] for it in specs] == [
        b"/dev/infiniband/uverbs3",
        b"/dev/infiniband/rdma_cm",
        b"/dev/infiniband/uverbs1",
    ]
    assert all(it == {1: it[1], 2: it[1], 3: b"rw"} for it in specs)
    (without,) = (list(fields(content)) for _, content in fields(allocated(one, [ids], "")))
    assert [number for number, _ in without] == [4]


def test_a_share_has_no_device_nodes_and_an_id_that_is_not_there_neither() -> None:
    for one, share in ((pool(), "hcas-00"), (pool(), eight().devices[0].id), (pool_of_devices(), "0000:ff:00.0")):
        assert list(nodes_of(one, supply(one, node=eight()), share)) == []

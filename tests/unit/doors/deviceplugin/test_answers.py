"""What the kubelet is told of a pool: its shares, how many of them are healthy, and what an allocated one brings."""

from dataclasses import replace

import pytest

from nri_rdma.decide.shares import is_up
from nri_rdma.doors.deviceplugin.answers import allocated, healthy_shares, listed, share_ids
from nri_rdma.model.device import Node
from nri_rdma.model.pool import ShareGives
from tests.rig.kubelet import fields
from tests.unit.doors.deviceplugin.pools import offered, pool
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
    assert healthy_shares(one, offered(one, down(eight(), *lost))) == healthy


@pytest.mark.parametrize(("lost", "healthy"), [((), 64), ((0, 1, 2), 64), (tuple(range(8)), 0)])
def test_where_a_share_gives_all_devices_one_that_is_up_is_enough(lost: tuple[int, ...], healthy: int) -> None:
    one = pool(64, ShareGives.ALL)
    assert healthy_shares(one, offered(one, down(eight(), *lost))) == healthy


def test_of_shares_that_cannot_be_dealt_out_evenly_none_is_lost() -> None:
    one = pool(10)
    assert healthy_shares(one, offered(one, eight())) == 10


def test_a_device_of_which_no_port_is_known_counts_as_up() -> None:
    assert is_up(replace(eight().devices[0], ports=()))


def test_a_pool_without_devices_on_this_node_has_no_healthy_share() -> None:
    one = pool(8)
    assert healthy_shares(one, offered(one, replace(eight(), devices=()))) == 0


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
    assert healthy_shares(one, offered(one, used)) == 56

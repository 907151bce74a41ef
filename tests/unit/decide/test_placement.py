"""Which devices a pod gets, and how a refusal names what is in the way."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.decide.placement import Holding, Placed, mismatch, place
from nri_rdma.decide.policy import Admitted, Policy, Pool, offer
from nri_rdma.decide.topology import Distance, distance
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import CharKind, DeviceId, LinkLayer, Node, Protocol, RdmaDevice, RdmaNetns, VirtualFunction
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import Align, AlignTo, Match, Mode, Use
from nri_rdma.model.selector import FunctionsOf, Selector
from tests.unit.decide.placing import NODES, STRICT_GPU, STRICT_NUMA, asking, chosen, everything, held, lost, named
from tests.unit.model.hardware import TIE, eight, gpu, nic, node, tied, umad, uverbs


def refusal(
    on: Node, *requests: Admitted, taken: Mapping[DeviceId, frozenset[Holding]] | None = None
) -> PlacementError:
    with pytest.raises(PlacementError) as caught:
        place(on, everything(on), taken or {}, requests)
    assert caught.value.where.startswith("HERE[")
    assert caught.value.hint
    return caught.value


# Choosing


def test_a_pod_that_asks_for_nothing_gets_nothing() -> None:
    assert place(eight(), everything(eight()), {}, ()) == ()


def test_a_request_without_conditions_gets_the_lowest_index() -> None:
    assert chosen(eight(), asking()) == (["mlx5_0"],)


def test_a_device_that_is_held_is_passed_over() -> None:
    assert chosen(eight(), asking(), taken=held(0, 1)) == (["mlx5_2"],)


def test_a_device_that_the_host_uses_is_passed_over() -> None:
    assert chosen(node((nic(0, in_use=("eth0 is enslaved",)), nic(1))), asking()) == (["mlx5_1"],)


def test_a_device_whose_netdev_is_elsewhere_is_passed_over() -> None:
    assert chosen(node((nic(0, has_netdev=False), nic(1))), asking()) == (["mlx5_1"],)


def test_a_device_whose_netdev_is_elsewhere_can_be_shared() -> None:
    assert chosen(node((nic(0, has_netdev=False), nic(1))), asking(mode=Mode.SHARED)) == (["mlx5_0"],)


def test_an_infiniband_device_needs_no_netdev() -> None:
    infiniband = nic(0, has_netdev=False, link_layer=LinkLayer.INFINIBAND)
    assert chosen(node((infiniband,)), asking()) == (["mlx5_0"],)


def infiniband(number: int, *pkeys: int) -> RdmaDevice:
    device = nic(number, has_netdev=False, link_layer=LinkLayer.INFINIBAND)
    return replace(device, ports=(replace(device.ports[0], pkeys=pkeys),))


def test_a_port_that_is_a_limited_member_of_all_its_partitions_is_refused() -> None:
    limited = node((infiniband(0, 0x7FFF, 0x0001),))
    error = refusal(limited, asking(match=Match(device="mlx5_0")))
    assert error.code is ErrorCode.PKEY_LIMITED
    assert "a limited member of its partitions (pkey 0x0001, 0x7fff)" in str(error)
    assert "full member" in error.hint
    assert "a limited member of its partitions (pkey 0x0001, 0x7fff)" in str(refusal(limited, asking()))


def test_a_full_member_of_one_partition_is_given_and_before_a_limited_one() -> None:
    assert chosen(node((infiniband(0, 0x7FFF), infiniband(1, 0x7FFF, 0x8001))), asking()) == (["mlx5_1"],)


def test_storage_reaches_its_servers_as_a_limited_member() -> None:
    storage = asking()
    storage = replace(storage, request=replace(storage.request, use=Use.STORAGE))
    assert chosen(node((infiniband(0, 0x7FFF),)), storage) == (["mlx5_0"],)


def test_a_device_that_others_share_can_be_shared() -> None:
    shared = asking(mode=Mode.SHARED, match=Match(device="mlx5_0"))
    assert chosen(eight(), shared, taken=held(0, mode=Mode.SHARED)) == (["mlx5_0"],)


def test_a_device_that_others_share_cannot_be_had_alone() -> None:
    assert chosen(eight(), asking(), taken=held(0, mode=Mode.SHARED)) == (["mlx5_1"],)


def test_a_device_that_another_has_alone_cannot_be_shared() -> None:
    assert chosen(eight(), asking(mode=Mode.SHARED), taken=held(0)) == (["mlx5_1"],)


def test_free_devices_are_all_that_are_free_now_and_at_least_one() -> None:
    on, free = node((nic(0), nic(1, in_use=("bond",)), nic(2), nic(3))), asking(count=None, if_free=True)
    assert chosen(on, free, taken=held(3)) == (["mlx5_0", "mlx5_2"],)
    with pytest.raises(PlacementError, match="DEVICES-EXHAUSTED: asked free, free 0 of 4"):
        chosen(on, free, taken=held(0, 2, 3))


@pytest.mark.parametrize("on", [node((nic(0), nic(1, in_use=("bond",)))), node((nic(0), nic(1), nic(2)))])
def test_all_devices_are_every_one_of_the_pool_or_a_refusal_that_says_how_to_get_the_others(on: Node) -> None:
    with pytest.raises(PlacementError, match=r"DEVICES-EXHAUSTED: asked all, free \d of \d devices of pool") as refused:
        chosen(on, asking(count=None), taken=held(2))
    assert "write count: free" in str(refused.value)
    assert chosen(eight(), asking(count=None)) == ([f"mlx5_{number}" for number in range(8)],)


@pytest.mark.parametrize(
    "match",
    [
        Match(device="mlx5_1"),
        Match(netdev="eth1"),
        Match(pci=nic(1).pci),
        Match(vendor="14e4"),
        Match(link_layer=LinkLayer.INFINIBAND),
        Match(numa_node=1),
        Match(min_speed_gbps=800),
        Match(driver="mlx5_core", numa_node=1),
    ],
)
def test_a_condition_selects_the_device_it_describes(match: Match) -> None:
    special = nic(1, vendor="14e4", link_layer=LinkLayer.INFINIBAND, numa=1, speed_gbps=800)
    assert chosen(node((nic(0, numa=0), special)), asking(match=match)) == (["mlx5_1"],)


def test_the_order_of_requests_is_the_order_of_results() -> None:
    assert chosen(eight(), asking("0"), asking("1", count=2)) == (["mlx5_0"], ["mlx5_1", "mlx5_2"])


def test_a_request_for_anything_leaves_the_device_that_another_names() -> None:
    assert chosen(eight(), asking("0"), named("mlx5_0", "1")) == (["mlx5_1"], ["mlx5_0"])


def test_a_request_for_what_is_free_leaves_the_devices_that_others_ask() -> None:
    both = node((nic(0), nic(1)))
    assert chosen(both, asking("0", count=None, if_free=True), asking("1")) == (["mlx5_1"], ["mlx5_0"])


def test_a_request_that_can_have_less_is_served_first() -> None:
    on = node((nic(0, speed_gbps=800), nic(1)))
    assert chosen(on, asking("0"), asking("1", match=Match(min_speed_gbps=800))) == (["mlx5_1"], ["mlx5_0"])


def test_a_request_near_a_gpu_is_served_before_one_for_anything() -> None:
    assert chosen(eight(), asking("0"), asking("1", gpus=(0,))) == (["mlx5_1"], ["mlx5_0"])


def test_strict_alignment_refuses_what_is_farther_and_says_who_has_the_nearer() -> None:
    error = refusal(eight(), asking(gpus=(5,), align=STRICT_GPU), taken=held(5))
    assert error.code is ErrorCode.NOT_ALIGNED
    assert "GPU 0001:15:00.0 is mlx5_4 (NODE, same NUMA node); mlx5_5 is held by pod ns/other" in error.what


def test_strict_alignment_names_no_device_that_would_be_too_far_itself() -> None:
    error = refusal(eight(), asking(gpus=(5,), align=STRICT_GPU), taken=held(5, 6, 0))
    assert "mlx5_5 is held by" in error.what
    assert "mlx5_6" not in error.what
    assert "mlx5_0" not in error.what


def test_strict_alignment_says_whether_the_nearest_device_was_too_far_or_another_gpu_has_it() -> None:
    error = refusal(eight(), asking(gpus=(5,), align=STRICT_GPU), taken=held(5))
    assert "the nearest free device to GPU 0001:15:00.0 is mlx5_4" in error.what
    on = node((nic(0), nic(1, root=7, numa=1)), (gpu(0), gpu(1, root=0)))
    error = refusal(on, asking(count=2, gpus=(0, 1), align=STRICT_GPU))
    assert "the device that is left for GPU 0001:11:00.0 is mlx5_1" in error.what


def test_strict_alignment_without_known_gpus_is_refused() -> None:
    error = refusal(eight(), asking(align=STRICT_GPU))
    assert (error.code, error.hint) == (ErrorCode.NOT_ALIGNED, "name them in gpus, or leave strict out")


def test_an_unknown_gpu_names_the_gpus_there_are() -> None:
    error = refusal(node((nic(0),), (gpu(0), gpu(1))), asking(gpus=(7,)))
    assert error.code is ErrorCode.DEVICE_UNKNOWN
    assert error.hint == "its GPUs are 0001:10:00.0, 0001:11:00.0"


def test_a_pod_that_asks_much_of_hundreds_of_functions_is_answered_soon() -> None:
    """All pods of the node wait for it. An exact search over all of them took seven seconds."""
    on = node(
        tuple(
            replace(nic(number, root=number % 8, numa=number % 2), id=DeviceId(f"vf{number}")) for number in range(512)
        ),
        tuple(gpu(number, root=number, numa=number % 2) for number in range(8)),
    )
    before = time.process_time()
    one_each = place(on, everything(on), {}, tuple(asking(str(number), gpus=(number % 8,)) for number in range(64)))
    many = place(on, everything(on), {}, (asking(count=300, gpus=(0, 5)),))
    assert time.process_time() - before < 2
    assert all(distance(item.devices[0], on.gpus[number % 8]) is Distance.PHB for number, item in enumerate(one_each))
    assert len({device.id for device in many[0].devices}) == 300


def test_strict_numa_alignment_that_does_not_fit_is_refused() -> None:
    error = refusal(eight(), asking(align=STRICT_NUMA, gpus=(0,), count=4), taken=held(0, 4))
    assert error.code is ErrorCode.NOT_ALIGNED
    assert "3 of 4 devices are free on NUMA node 0: mlx5_0, mlx5_4 are held by pod ns/other" in error.what


@pytest.mark.parametrize("align", [STRICT_GPU, STRICT_NUMA])
def test_a_strict_request_chooses_before_one_that_is_not(align: Align) -> None:
    on = node((nic(0, numa=0), nic(1, numa=1)), (gpu(0, numa=0),))
    assert chosen(on, asking("disk", gpus=(0,)), asking("rails", gpus=(0,), align=align)) == (["mlx5_1"], ["mlx5_0"])


def test_the_virtual_functions_of_a_physical_one_are_without_itself() -> None:
    physical = replace(nic(0, in_use=("it has 2 virtual functions",)), vf_count=2)
    assert physical.pci is not None
    virtual = (
        replace(nic(it), virtual=VirtualFunction(pf=physical.pci, number=it - 1, pf_netdevs=("rail0",)))
        for it in (1, 2)
    )
    match = Match(pf_name=(FunctionsOf(function="rail0"),))
    assert chosen(node((physical, *virtual, nic(3))), asking(match=match, count=None)) == (["mlx5_1", "mlx5_2"],)


@pytest.mark.parametrize(("count", "names"), [(2, [3, 4]), (3, [0, 1, 2]), (4, [0, 1, 2, 3])])
def test_without_gpus_devices_are_of_the_tightest_numa_node_that_suffices_or_of_the_largest(
    count: int, names: list[int]
) -> None:
    on = node(tuple(nic(number, numa=number // 3) for number in range(5)))
    assert chosen(on, asking(count=count, align=Align(to=AlignTo.NUMA))) == ([f"mlx5_{number}" for number in names],)


def test_strict_numa_alignment_needs_known_numa_nodes() -> None:
    assert refusal(node((nic(0),)), asking(align=STRICT_NUMA)).code is ErrorCode.NOT_ALIGNED


# Refusals


def test_a_device_that_does_not_exist_is_told_with_the_nearest() -> None:
    error = refusal(eight(), named("mlx5_9"))
    assert error.code is ErrorCode.DEVICE_UNKNOWN
    assert error.what == "no RDMA device of this node matches device mlx5_9"
    assert error.hint.startswith("nearest are mlx5_")


def test_conditions_that_nothing_meets_are_told() -> None:
    error = refusal(eight(), asking(match=Match(vendor="14e4", numa_node=0)))
    assert (error.code, error.what) == (
        ErrorCode.DEVICE_UNKNOWN,
        "no RDMA device of this node matches vendor 14e4 and numaNode 0",
    )


def test_an_address_that_does_not_exist_names_the_addresses_there_are() -> None:
    error = refusal(node((nic(0), nic(1))), asking(match=Match(pci=PciAddress(0, 0xFF, 0, 0))))
    assert "0000:10:00.0" in error.hint
    soft = replace(nic(1), pci=None)
    error = refusal(node((nic(0), soft)), asking(match=Match(pci=PciAddress(0, 0xFF, 0, 0))))
    assert error.hint.endswith("there are 0000:10:00.0")


def test_a_node_without_rdma_devices_says_so() -> None:
    for request in (asking(), asking(match=Match(device="mlx5_0"))):
        error = refusal(node(), request)
        assert error.what == "this node has no RDMA device"
        assert error.hint == "run the pod on a node that has some"
        assert not error.where.endswith(".match")


def test_a_named_device_that_the_host_uses_is_refused_with_the_use() -> None:
    error = refusal(node((nic(0, in_use=("eth0 is enslaved to bond0",)),)), named("mlx5_0"))
    assert (error.code, error.what) == (
        ErrorCode.DEVICE_IN_USE,
        "mlx5_0 is in use by the host: eth0 is enslaved to bond0",
    )


def test_a_device_whose_routes_the_host_could_not_have_back_stays_there() -> None:
    kept, other = tied(nic(0)), nic(1)
    on = node((kept, other))
    (placed,) = place(on, everything(on), {}, (asking(),))
    assert placed.devices == (other,)
    (placed,) = place(on, everything(on), {}, (replace(named("mlx5_0"), mode=Mode.SHARED),))
    assert placed.devices == (kept,)
    error = refusal(on, named("mlx5_0"))
    assert (error.code, error.what) == (ErrorCode.DEVICE_IN_USE, f"mlx5_0 is in use by the host: {TIE}")
    assert "mode: shared" in error.hint


@pytest.mark.parametrize("mode", list(Mode))
def test_a_device_that_a_process_has_open_is_given_to_nobody(mode: Mode) -> None:
    opened = replace(nic(0), used_by_some=("process 7 (opensm) has it open",))
    error = refusal(node((opened,)), replace(named("mlx5_0"), mode=mode))
    assert error.what == "mlx5_0 is in use by the host: process 7 (opensm) has it open"


def test_who_has_a_device_open_that_pods_share_is_taken_for_one_of_them() -> None:
    opened = replace(nic(0), used_by_some=("process 7 (train.py) has it open",))
    on = node((opened,))
    shared = frozenset({Holding(owner="ns/other", mode=Mode.SHARED)})
    (placed,) = place(on, everything(on), {opened.id: shared}, (replace(named("mlx5_0"), mode=Mode.SHARED),))
    assert [device.name for device in placed.devices] == ["mlx5_0"]


def test_a_named_device_that_is_held_is_refused_with_the_holder() -> None:
    error = refusal(eight(), named("mlx5_3"), taken=held(3))
    assert (error.code, error.what) == (ErrorCode.DEVICE_IN_USE, "mlx5_3 is held by pod ns/other")


def test_a_device_without_its_netdev_is_refused() -> None:
    assert refusal(node((nic(0, has_netdev=False),)), asking()).detail == (
        "mlx5_0 is without its netdev, which is not on the host"
    )


def test_a_named_device_whose_netdev_may_be_in_the_pod_is_given() -> None:
    """A CNI plugin that runs before us moves netdevs too."""
    on = node((nic(0, has_netdev=False),))
    (placed,) = place(on, everything(on), {}, (named("mlx5_0"),))
    assert placed.reasons == (
        "mlx5_0: named by the request (device mlx5_0); its netdev is not on the host and has to be in the pod",
    )


def test_a_soft_device_is_not_given_alone_where_the_kernel_would_remove_it() -> None:
    soft = replace(nic(0), pci=None, driver="", kernel_index=3)
    error = refusal(node((soft,)), named("mlx5_0"))
    assert (error.code, error.what) == (
        ErrorCode.SOFT_DEVICE,
        "mlx5_0 is a soft device, which the kernel removes when its netdev leaves the host",
    )
    on = node((soft, nic(1)))
    (placed,) = place(on, everything(on), {}, (asking(),))
    assert [device.name for device in placed.devices] == ["mlx5_1"]


def test_a_soft_device_that_only_a_tree_of_files_describes_is_given() -> None:
    on = node((replace(nic(0), pci=None, driver=""),))
    (placed,) = place(on, everything(on), {}, (asking(),))
    assert [device.name for device in placed.devices] == ["mlx5_0"]


def test_where_the_kernel_cannot_tell_of_its_netdev_a_named_device_is_refused_too() -> None:
    blind = replace(node((nic(0, has_netdev=False),)), rdma_netns=RdmaNetns.NONE)
    assert refusal(blind, named("mlx5_0")).code is ErrorCode.DEVICE_IN_USE


def test_a_device_named_twice_in_a_pod_is_a_conflict() -> None:
    error = refusal(eight(), named("mlx5_0", "a"), named("mlx5_0", "b"))
    assert (error.code, error.where, error.what) == (
        ErrorCode.DEVICE_CONFLICT,
        "HERE[b]",
        "mlx5_0 is given to request a of this pod",
    )


def test_a_device_named_in_two_ways_is_a_conflict() -> None:
    error = refusal(eight(), named("mlx5_0", "a"), asking("b", match=Match(netdev="eth0")))
    assert error.code is ErrorCode.DEVICE_CONFLICT


def test_more_devices_than_are_free_tells_why_the_others_are_not() -> None:
    on = node((nic(0), nic(1, in_use=("bond0",)), nic(2)))
    error = refusal(on, asking(count=3), taken=held(2))
    assert error.code is ErrorCode.DEVICES_EXHAUSTED
    assert error.what == "asked 3, free 1 of 3 devices of pool default"
    assert error.detail == "mlx5_1 is in use by the host: bond0, mlx5_2 is held by pod ns/other"
    assert "Next: " in str(error)[:200]
    assert (
        error.hint == "ask for fewer devices, or free what the host uses, or wait until a pod that holds some has ended"
    )


@pytest.mark.parametrize("count", [8, None])
def test_nobody_is_told_to_wait_for_a_pod_that_has_nothing_to_do_with_it(count: int | None) -> None:
    dead, used = lost(eight(), 0), node((nic(0), nic(1, in_use=("bond0",))))
    instead = "ask for fewer devices" if count else "write count: free to get those that are free now"
    strict = asking(count=count, gpus=(0,), align=STRICT_GPU)
    assert refusal(dead, strict).hint == f"{instead}, or bring up the ports that are down"
    assert refusal(dead, strict, taken=held(1)).hint == (
        f"{instead}, or wait until a pod that holds some has ended, or bring up the ports that are down"
    )
    assert refusal(used, asking(count=count)).hint == f"{instead}, or free what the host uses"
    none = node((nic(1, in_use=("bond0",)), nic(2, in_use=("bond0",))))
    assert refusal(none, asking(count=count)).hint == "free what the host uses"


def test_a_dead_port_is_no_reason_to_leave_out_what_is_not_written() -> None:
    on = lost(eight(), 0)
    refusing = replace(everything(on), refusing_down=frozenset({"default"}))
    for asked in (named("mlx5_0"), asking(match=Match(device="mlx5_0"), gpus=(0,), align=STRICT_GPU)):
        with pytest.raises(PlacementError) as refused:
            place(on, refusing, {}, (asked,))
        assert refused.value.hint == "bring the port up on the node, or ask for another device"
    assert refusal(on, asked).hint.endswith("or leave strict out")


@pytest.mark.parametrize(
    ("on", "taken", "hint"),
    [
        (eight(), (0, 1, 2, 3), "wait until a pod that holds some has ended"),
        (lost(eight(), 0), (1, 2, 3), "bring up the ports that are down"),
        (
            replace(eight(), devices=(nic(0, in_use=("bond0",)), *eight().devices[1:])),
            (1, 2, 3),
            "free what the host uses",
        ),
    ],
)
def test_who_gets_no_near_device_is_told_how_a_nearer_one_can_be_had(
    on: Node, taken: tuple[int, ...], hint: str
) -> None:
    error = refusal(on, asking(gpus=(0,), align=STRICT_GPU), taken=held(*taken))
    assert error.hint.startswith(hint)


def test_all_of_a_list_of_names_are_all_or_a_refusal_that_says_which_name_nothing_has() -> None:
    two = Match(device=("mlx5_0", "mlx5_9"))
    error = refusal(eight(), asking(match=two, count=None))
    assert error.what == "asked all, free 1 of 1 devices of pool default that match"
    assert error.detail == "pool default has no device mlx5_9"
    assert error.hint == "write count: free to get those that are free now, or correct match"
    assert chosen(eight(), asking(match=two, count=None, if_free=True)) == (["mlx5_0"],)
    assert chosen(eight(), asking(match=two)) == (["mlx5_0"],)


def test_a_name_of_a_list_that_nothing_has_is_told_when_devices_are_too_few() -> None:
    match = Match(netdev=("eth0", "eth1", "eth9", "eth8"))
    error = refusal(eight(), asking(match=match, count=3), taken=held(1))
    assert error.detail == "mlx5_1 is held by pod ns/other, pool default has no netdev eth9 or eth8"


def test_a_listed_device_that_another_condition_leaves_out_is_not_missed() -> None:
    match = Match(device=("mlx5_0", "mlx5_7"), numa_node=0)
    assert chosen(eight(), asking(match=match, count=None)) == (["mlx5_0"],)


def test_more_devices_than_there_are_is_refused() -> None:
    error = refusal(eight(), asking(count=9))
    assert error.what == "asked 9, free 8 of 8 devices of pool default"
    assert error.hint == "ask for fewer devices: there are no more"


def test_more_devices_than_a_name_has_is_refused() -> None:
    error = refusal(eight(), asking(match=Match(device="mlx5_0"), count=2))
    assert (error.code, error.what) == (
        ErrorCode.DEVICES_EXHAUSTED,
        "asked 2, free 1 of 1 devices of pool default that match",
    )


def test_all_of_no_free_devices_is_refused() -> None:
    assert refusal(node((nic(0),)), asking(count=None), taken=held(0)).code is ErrorCode.DEVICES_EXHAUSTED


def test_a_device_without_the_node_that_is_asked_is_not_given() -> None:
    kinds = frozenset({CharKind.UMAD})
    on = node((nic(0), nic(1, chars=(uverbs(1), umad(1)))))
    assert chosen(on, asking(kinds=kinds)) == (["mlx5_1"],)
    error = refusal(on, asking(match=Match(device="mlx5_0"), kinds=kinds))
    assert (error.code, error.what) == (ErrorCode.DEVICE_UNKNOWN, "mlx5_0 is without a umad device node")


def test_a_refusal_of_many_devices_stays_short() -> None:
    many = node(tuple(nic(number, root=number % 200) for number in range(200)))
    assert len(refusal(many, asking(count=201), taken=held(*range(100))).what) < 1000
    told = [refusal(many, asking(count=201), taken=held(*range(number))).detail for number in (16, 17)]
    assert told[0].endswith(", mlx5_15 are held by pod ns/other")
    assert told[1].endswith(", mlx5_15, and 1 more are held by pod ns/other")
    every = {
        device.id: frozenset({Holding(owner=f"ns/{number:060}", mode=Mode.EXCLUSIVE)})
        for number, device in enumerate(many.devices)
    }
    told_of_each = refusal(many, asking(count=201), taken=every).detail
    assert len(told_of_each) < 650
    assert told_of_each.endswith(" more")


# Laws

# Pools

FIRST_TWO = Pool(name="rails", modes=(Mode.EXCLUSIVE,), select=(Selector(device=("mlx5_0", "mlx5_1")),))
STORAGE = Pool(name="storage", modes=(Mode.EXCLUSIVE,), select=(Selector(device=("mlx5_2",)),))
CONTESTING = Pool(name="other", modes=(Mode.EXCLUSIVE,), select=(Selector(device=("mlx5_1",)),))


def from_pool(
    item: Admitted, *pools: Pool, taken: Mapping[DeviceId, frozenset[Holding]] | None = None, on: Node | None = None
) -> list[str]:
    """The devices of a request to the first of these pools."""
    it = replace(item, request=replace(item.request, pool=pools[0].name))
    on = on or eight()
    (placed,) = place(on, offer(Policy(pools={pool.name: pool for pool in pools}), on), taken or {}, (it,))
    return [device.name for device in placed.devices]


def refusal_from_pool(item: Admitted, *pools: Pool, on: Node | None = None) -> PlacementError:
    with pytest.raises(PlacementError) as caught:
        from_pool(item, *pools, on=on)
    assert caught.value.hint
    return caught.value


def test_a_second_device_for_one_gpu_is_not_explained_by_other_gpus() -> None:
    on = eight()
    (placed,) = place(on, everything(on), {}, (asking(count=2, gpus=(0,)),))
    assert placed.reasons[0].startswith("mlx5_0: nearest free device to GPU")
    assert placed.reasons[1].endswith("; the request has the nearer devices already")


def test_a_pool_gives_its_own_devices_only() -> None:
    assert from_pool(asking(count=None), FIRST_TWO, STORAGE) == ["mlx5_0", "mlx5_1"]
    assert from_pool(asking(), STORAGE, FIRST_TWO) == ["mlx5_2"]


def test_a_pool_that_has_too_few_says_so_of_itself() -> None:
    error = refusal_from_pool(asking(count=3), FIRST_TWO)
    assert (error.code, error.what) == (ErrorCode.DEVICES_EXHAUSTED, "asked 3, free 2 of 2 devices of pool rails")


def test_a_pool_that_has_too_few_names_what_another_pool_selects_too() -> None:
    other = replace(FIRST_TWO, name="other", select=(Selector(device=("mlx5_1",)),))
    error = refusal_from_pool(asking(count=2), FIRST_TWO, other)
    assert (error.code, error.what) == (ErrorCode.DEVICES_EXHAUSTED, "asked 2, free 1 of 1 devices of pool rails")
    assert error.detail == "mlx5_1 is selected by the pools rails and other, so that none of them has it"
    assert error.hint == "ask for fewer devices, or have the administrator let only one pool select them"


def test_a_device_of_another_pool_is_named_with_its_pool() -> None:
    error = refusal_from_pool(named("mlx5_2"), FIRST_TWO, STORAGE)
    assert (error.code, error.where) == (ErrorCode.NOT_IN_POOL, "HERE[0].match")
    assert error.what == "pool rails has no device that matches device mlx5_2"
    assert (error.detail, error.hint) == (
        "mlx5_2 is in pool storage",
        "ask for pool storage; rails has mlx5_0, mlx5_1",
    )


def test_a_device_of_no_pool_is_named_so() -> None:
    error = refusal_from_pool(named("mlx5_7"), FIRST_TWO)
    assert (error.detail, error.hint) == (
        "mlx5_7 is in no pool",
        "the administrator puts it into a pool; rails has mlx5_0, mlx5_1",
    )


def test_a_device_that_two_pools_select_is_given_by_neither() -> None:
    assert from_pool(asking(count=None), FIRST_TWO, CONTESTING) == ["mlx5_0"]
    error = refusal_from_pool(named("mlx5_1"), FIRST_TWO, CONTESTING)
    assert error.detail == "mlx5_1 is selected by the pools rails and other, so that none of them has it"


def test_a_pool_without_devices_says_where_they_are() -> None:
    error = refusal_from_pool(asking(), CONTESTING, FIRST_TWO, on=node((nic(0), nic(1))))
    assert (error.code, error.what) == (ErrorCode.NOT_IN_POOL, "pool other has no device on this node")
    assert "mlx5_0 is in pool rails" in error.detail


def test_what_is_not_on_the_node_is_in_nobodys_pool() -> None:
    assert refusal_from_pool(named("mlx5_9"), FIRST_TWO).code is ErrorCode.DEVICE_UNKNOWN


def test_the_nearest_device_of_the_pool_is_given_not_the_nearest_of_the_node() -> None:
    assert from_pool(asking(gpus=(7,)), FIRST_TWO) == ["mlx5_0"]
    assert from_pool(asking(gpus=(1,)), FIRST_TWO) == ["mlx5_1"]


_REQUESTS = st.lists(
    st.builds(
        lambda match, count, gpus, align, mode: asking(
            match=match, count=count, gpus=tuple(gpus), align=align, mode=mode
        ),
        st.sampled_from(
            [Match(), Match(device="mlx5_0"), Match(netdev="eth1"), Match(numa_node=0), Match(vendor="15b3")]
        ),
        st.none() | st.integers(1, 3),
        st.sets(st.integers(0, 3), max_size=3),
        st.none()
        | st.builds(lambda to: Align(to=to), st.sampled_from(AlignTo))
        | st.sampled_from([STRICT_GPU, STRICT_NUMA]),
        st.sampled_from(Mode),
    ),
    max_size=3,
).map(tuple)


@st.composite
def _questions(draw: st.DrawFn) -> tuple[Node, dict[DeviceId, frozenset[Holding]], tuple[Admitted, ...]]:
    on = draw(NODES)
    holdings = st.frozensets(st.builds(Holding, owner=st.just("ns/other"), mode=st.sampled_from(Mode)), max_size=2)
    taken = {device.id: draw(holdings) for device in on.devices}
    return on, taken, draw(_REQUESTS)


def _place_or_refuse(
    question: tuple[Node, dict[DeviceId, frozenset[Holding]], tuple[Admitted, ...]],
) -> tuple[Placed, ...] | str:
    on, taken, requests = question
    try:
        return place(on, everything(on), taken, requests)
    except PlacementError as error:
        return str(error)


@given(_questions())
def test_what_is_given_is_free_and_given_once(
    question: tuple[Node, dict[DeviceId, frozenset[Holding]], tuple[Admitted, ...]],
) -> None:
    _, taken, requests = question
    placed = _place_or_refuse(question)
    if isinstance(placed, str):
        return
    assert tuple(item.admitted for item in placed) == requests
    given_ids = [device.id for item in placed for device in item.devices]
    assert len(set(given_ids)) == len(given_ids)
    for item in placed:
        assert len(item.devices) == len(item.reasons) == (item.admitted.request.count or len(item.devices))
        for device in item.devices:
            assert not device.in_use
            assert not any(Mode.EXCLUSIVE in {holding.mode, item.admitted.mode} for holding in taken[device.id])


@given(_questions())
def test_the_same_question_has_the_same_answer(
    question: tuple[Node, dict[DeviceId, frozenset[Holding]], tuple[Admitted, ...]],
) -> None:
    on, taken, requests = question
    assert _place_or_refuse(question) == _place_or_refuse((on, dict(reversed(taken.items())), requests))


@given(NODES, st.sets(st.integers(0, 3), min_size=1))
def test_strict_alignment_never_gives_what_is_far(on: Node, numbers: set[int]) -> None:
    placed = _place_or_refuse((on, {}, (asking(gpus=tuple(numbers), count=len(numbers), align=STRICT_GPU),)))
    if isinstance(placed, str):
        return
    for device in placed[0].devices:
        assert min(distance(device, on.gpus[number]) for number in numbers) <= Distance.PHB


def test_requests_of_a_pod_with_the_same_gpus_have_devices_next_to_different_ones() -> None:
    on = node(tuple(nic(number, root=number // 2) for number in range(4)), (gpu(0, root=0), gpu(1, root=1)))
    requests = [asking(name, gpus=(0, 1)) for name in ("a", "b")]
    assert chosen(on, *requests) == (["mlx5_0"], ["mlx5_2"])


# Lists and exclusion


def test_a_list_of_names_is_a_choice_among_them() -> None:
    among = Match(device=("mlx5_2", "mlx5_5"))
    assert chosen(eight(), asking(match=among)) == (["mlx5_2"],)
    assert chosen(eight(), asking(match=among), taken=held(2)) == (["mlx5_5"],)
    assert chosen(eight(), asking(match=Match(device=("mlx5_2", "mlx5_5"), numa_node=(1, 3)))) == (["mlx5_5"],)
    error = refusal(eight(), asking(match=Match(device=("mlx5_2", "mlx_9"))), taken=held(2))
    assert error.code is ErrorCode.DEVICES_EXHAUSTED
    error = refusal(eight(), asking(match=Match(device=("mlx_8", "mlx_9"))))
    assert error.what == "no RDMA device of this node matches device mlx_8 or mlx_9"


def test_a_refusal_says_that_all_devices_are_excluded_and_not_the_opposite() -> None:
    without = Match(numa_node=0, exclude=(Selector(device=("mlx5_0",)), Selector(numa_node=(0,))))
    error = refusal(eight(), asking(match=without))
    assert error.what == "no RDMA device of this node matches numaNode 0 and anything but device mlx5_0 or numaNode 0"


def test_what_match_excludes_is_not_given() -> None:
    without = Match(exclude=(Selector(device=("mlx5_0", "mlx5_1")), Selector(numa_node=(1,))))
    assert chosen(eight(), asking(match=without)) == (["mlx5_2"],)
    assert mismatch(without, eight().devices[0]) == "match excludes device mlx5_0 or mlx5_1 or numaNode 1"


def test_match_takes_the_conditions_of_pools() -> None:
    device, partition = replace(eight().devices[0], device_id="101d"), Match(pkey=(0x8001,))
    assert mismatch(Match(protocol=(Protocol.ROCE,)), device) == ""
    assert mismatch(Match(protocol=(Protocol.IB,)), device) == "protocol is roce, and match asks for ib"
    assert mismatch(Match(device_id=("1017",)), device) == "deviceID is 101d, and match asks for 1017"
    assert mismatch(partition, device) == "it has no pkey, and match asks for 0x8001"
    assert (
        mismatch(Match(pf_name=(FunctionsOf(function="ens1"),)), device) == "it has no pfName, and match asks for ens1"
    )

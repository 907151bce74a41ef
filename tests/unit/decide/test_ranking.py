"""Of the devices that a request may have, the nearest is taken, and the one that others miss least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.decide import ranking
from nri_rdma.decide.assignment import cheapest
from nri_rdma.decide.placement import Holding, place
from nri_rdma.decide.policy import Admitted
from nri_rdma.decide.topology import distance
from nri_rdma.errors import PlacementError
from nri_rdma.model.device import DeviceId, Node, VirtualFunction
from nri_rdma.model.request import Align, AlignTo, Match, Mode
from tests.unit.decide.placing import (
    NODES,
    STRICT_GPU,
    STRICT_NUMA,
    asking,
    chosen,
    everything,
    held,
    lost,
    named,
    set_down,
)
from tests.unit.model.hardware import eight, gpu, nic, node

NUMA = Align(to=AlignTo.NUMA)


def reasons(on: Node, request: Admitted) -> tuple[str, ...]:
    return place(on, everything(on), {}, (request,))[0].reasons


# GPUs


@pytest.mark.parametrize("number", range(8))
def test_a_pod_gets_the_nic_on_the_root_of_its_gpu(number: int) -> None:
    assert chosen(eight(), asking(gpus=(number,), align=STRICT_GPU)) == ([f"mlx5_{number}"],)


def test_devices_and_gpus_pair_up_in_the_order_of_the_gpus() -> None:
    assert chosen(eight(), asking(gpus=(6, 1), count=2)) == (["mlx5_6", "mlx5_1"],)


def test_two_nics_of_one_root_do_not_serve_one_gpu_while_another_has_none() -> None:
    on = node((nic(0, root=0), nic(1, root=0), nic(2, root=1)), (gpu(0, root=0), gpu(1, root=1)))
    assert chosen(on, asking(gpus=(0, 1), count=2)) == (["mlx5_0", "mlx5_2"],)


def test_more_devices_than_gpus_go_round_again() -> None:
    on = node((nic(0, root=0), nic(1, root=1), nic(2, root=0)), (gpu(0, root=0),))
    assert chosen(on, asking(gpus=(0,), count=2)) == (["mlx5_0", "mlx5_2"],)


def test_the_same_numa_node_is_next_best() -> None:
    assert chosen(eight(), asking(gpus=(5,)), taken=held(5)) == (["mlx5_4"],)


def test_the_next_request_of_a_pod_is_for_the_gpu_that_has_no_device_yet() -> None:
    assert chosen(eight(), asking("a", gpus=(0, 5)), asking("b", gpus=(0, 5))) == (["mlx5_0"], ["mlx5_5"])


def test_the_reason_of_a_device_that_no_idle_gpu_is_next_to_says_so() -> None:
    on = node((nic(0, root=0), nic(1, root=9)), (gpu(0, root=0),))
    assert reasons(on, asking()) == ("mlx5_1: not next to an idle GPU, of 2 free",)


def test_a_farther_device_is_better_than_none() -> None:
    assert chosen(eight(), asking(gpus=(5,)), taken=held(4, 5, 6, 7)) == (["mlx5_0"],)


def test_alignment_without_known_gpus_settles_for_one_numa_node() -> None:
    asked = asking(align=Align(to=AlignTo.GPU), count=2)
    assert reasons(eight(), asked) == tuple(f"mlx5_{n}: on NUMA node 0; no GPU is known" for n in range(2))


def test_no_alignment_takes_what_spoils_least_which_is_beside_its_own_gpu() -> None:
    assert chosen(eight(), asking(gpus=(5,), align=Align(to=AlignTo.NONE))) == (["mlx5_5"],)


def test_the_gpu_of_another_request_of_the_pod_is_not_idle() -> None:
    """Of the device that only an idle GPU is next to, and one whose GPU is the pod's own, the latter is taken."""
    on = node((nic(0, root=0), nic(1, root=1), nic(2, root=1)), (gpu(0, root=0), gpu(1, root=1)))
    assert chosen(on, asking("a", gpus=(1,)), asking("b")) == (["mlx5_1"], ["mlx5_2"])


def test_the_reason_names_gpu_and_distance() -> None:
    assert reasons(eight(), asking(gpus=(3,))) == (
        "mlx5_3: nearest free device to GPU 0001:13:00.0 (PHB, same root complex)",
    )


def test_the_reason_of_a_named_device_is_its_name() -> None:
    assert reasons(eight(), named("mlx5_3")) == ("mlx5_3: named by the request (device mlx5_3)",)


def test_an_intact_switch_counts_before_an_intact_root_complex() -> None:
    """The root complex of the first two is emptier than that of the last three, each of which has a switch alone."""
    switches = ("a", "a", "b", "c", "d")
    devices = [
        replace(nic(number), pci_root=root, pci_path=(root, "port", f"up-{switch}", f"down-{number}", f"nic{number}"))
        for number, (switch, root) in enumerate(zip(switches, ("r0", "r0", "r1", "r1", "r1"), strict=True))
    ]
    assert chosen(node(tuple(devices)), asking()) == (["mlx5_2"],)


# NUMA


def test_numa_alignment_takes_the_numa_nodes_of_the_gpus() -> None:
    assert chosen(eight(), asking(gpus=(5,), align=NUMA, count=2)) == (["mlx5_4", "mlx5_5"],)


def test_numa_alignment_without_gpus_keeps_a_request_on_one_numa_node() -> None:
    assert chosen(eight(), asking(align=NUMA, count=3), taken=held(0, 1)) == (["mlx5_4", "mlx5_5", "mlx5_6"],)


def test_strict_numa_alignment_without_anything_to_be_near_to_is_refused_with_what_to_do() -> None:
    with pytest.raises(PlacementError, match=r"NOT-ALIGNED: .* there is nothing to be near to") as refused:
        chosen(eight(), asking(align=STRICT_NUMA))
    assert "ask for whole CPUs" in str(refused.value)


def test_a_numa_node_that_the_request_names_is_something_to_be_near_to() -> None:
    assert chosen(eight(), asking(align=STRICT_NUMA, match=Match(numa_node=1))) == (["mlx5_4"],)


def test_numa_alignment_fills_the_fuller_numa_node_first() -> None:
    assert chosen(eight(), asking(align=NUMA, count=2), taken=held(6, 7)) == (["mlx5_4", "mlx5_5"],)


def test_numa_alignment_that_does_not_fit_goes_on_elsewhere() -> None:
    assert chosen(eight(), asking(align=NUMA, count=4), taken=held(0, 1, 4)) == (
        ["mlx5_5", "mlx5_6", "mlx5_7", "mlx5_2"],
    )


def test_a_gpu_without_a_numa_node_leaves_the_choice_of_one() -> None:
    on = node((nic(0, numa=0), nic(1, numa=1)), (gpu(0, root=7),))
    assert reasons(on, asking(gpus=(0,), align=NUMA)) == ("mlx5_0: on NUMA node 0",)


def test_numa_alignment_without_known_numa_nodes_settles_for_any() -> None:
    assert reasons(node((nic(0),)), asking(align=NUMA)) == ("mlx5_0: lowest index of 1 free; no NUMA node is known",)


@given(NODES, st.integers(0, 3))
def test_one_device_for_one_gpu_is_the_nearest_that_is_free(on: Node, number: int) -> None:
    free = [device for device in on.devices if not device.in_use]
    if not free:
        return
    (placed,) = place(on, everything(on), {}, (asking(gpus=(number,)),))
    near = on.gpus[number]
    assert distance(placed.devices[0], near) == min(distance(device, near) for device in free)


def test_devices_that_are_all_alike_do_not_make_the_search_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual functions by the hundred: as many of each kind as GPUs are looked at."""
    widths: list[int] = []

    def measured(costs: list[list[int]]) -> list[int]:
        widths.append(len(costs[0]))
        return cheapest(costs)

    monkeypatch.setattr(ranking, "cheapest", measured)
    pf = nic(0)
    assert pf.pci is not None
    virtual = VirtualFunction(pf=pf.pci, number=0)
    alike = tuple(replace(nic(it), virtual=virtual, pci_path=pf.pci_path, pci_root=pf.pci_root) for it in range(64))
    on = node(alike, (gpu(0), gpu(1)))
    assert chosen(on, asking(count=2, gpus=(0, 1)))
    assert widths
    assert max(widths) < 10


# Pods that share


def shared(*gpus: int, count: int = 1) -> Admitted:
    return asking(mode=Mode.SHARED, gpus=gpus, count=count)


def given_one_after_the_other(on: Node, *pods: Admitted) -> list[str]:
    """The devices of the first pod, the second, and so on, none of which ends."""
    taken: dict[DeviceId, frozenset[Holding]] = {}
    names: list[str] = []
    for number, admitted in enumerate(pods):
        (placed,) = place(on, everything(on), taken, (admitted,))
        names += [device.name for device in placed.devices]
        for device_id, holding in placed.holdings(f"ns/pod-{number}"):
            taken[device_id] = taken.get(device_id, frozenset()) | {holding}
    return names


def test_sixteen_pods_that_share_eight_devices_are_two_on_each() -> None:
    names = given_one_after_the_other(eight(), *[shared()] * 16)
    assert Counter(names) == {f"mlx5_{number}": 2 for number in range(8)}
    twos = given_one_after_the_other(eight(), *[shared(count=2)] * 8)
    assert Counter(twos) == {f"mlx5_{number}": 2 for number in range(8)}


def test_a_pod_that_shares_is_not_put_on_the_device_of_a_gpu_job_because_that_gpu_is_busy() -> None:
    names = given_one_after_the_other(eight(), shared(5), *[shared()] * 7)
    assert Counter(names) == {f"mlx5_{number}": 1 for number in range(8)}


@pytest.mark.parametrize("near", [{}, {"align": NUMA}, {"align": Align(to=AlignTo.GPU)}])
def test_pods_that_share_spread_over_both_numa_nodes(near: Mapping[str, Any]) -> None:
    names = given_one_after_the_other(eight(), *[asking(mode=Mode.SHARED, **near)] * 16)
    assert Counter(names) == {f"mlx5_{number}": 2 for number in range(8)}


def test_a_numa_node_with_enough_devices_comes_before_one_that_fewer_pods_share() -> None:
    on = node(tuple(nic(number, root=number, numa=number // 3) for number in range(4)), ())
    (three,) = chosen(on, asking(count=3, align=NUMA, mode=Mode.SHARED), taken=held(0, 1, 2, mode=Mode.SHARED))
    assert three == ["mlx5_0", "mlx5_1", "mlx5_2"]


def test_the_nearest_device_counts_more_than_the_pods_that_have_it() -> None:
    assert given_one_after_the_other(eight(), *[shared(5)] * 3) == ["mlx5_5"] * 3


def test_of_equally_near_devices_the_one_that_fewer_pods_have_is_taken() -> None:
    on = node((nic(0, root=0), nic(1, root=0), nic(2, root=1)), (gpu(0, root=0),))
    assert given_one_after_the_other(on, *[shared(0)] * 4) == ["mlx5_0", "mlx5_1", "mlx5_0", "mlx5_1"]


def test_the_reason_of_a_device_that_fewer_pods_have_says_so() -> None:
    (placed,) = place(eight(), everything(eight()), held(0, mode=Mode.SHARED), (shared(),))
    assert placed.reasons == ("mlx5_1: held by the fewest pods of 8 free",)


def test_a_pod_that_only_looks_on_does_not_count() -> None:
    looking = frozenset({Holding(owner="ns/monitor", mode=Mode.SHARED, looks_on=True)})
    assert chosen(eight(), shared(), taken={nic(0).id: looking}) == (["mlx5_0"],)


# Ports that are down


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("near", [{}, {"gpus": (0,)}, {"gpus": (0,), "align": NUMA}, {"align": NUMA}])
def test_a_device_whose_port_is_down_is_given_when_it_is_the_only_one_left(mode: Mode, near: Mapping[str, Any]) -> None:
    on, admitted = lost(eight(), 0), asking(mode=mode, **near)
    (one,) = chosen(on, admitted)
    assert one != ["mlx5_0"]
    assert chosen(on, admitted, taken=held(1, 2, 3, 4, 5, 6, 7)) == (["mlx5_0"],)
    (seven,) = chosen(on, asking(mode=mode, count=7))
    assert "mlx5_0" not in seven


def test_the_reason_says_that_the_port_is_down() -> None:
    assert reasons(lost(eight(), 0), asking()) == ("mlx5_1: lowest index of 7 free",)
    near = asking(gpus=(0,))
    on = lost(eight(), 0)
    (placed,) = place(on, everything(on), held(1, 2, 3, 4, 5, 6, 7), (near,))
    assert placed.reasons == (
        "mlx5_0: nearest free device to GPU 0001:10:00.0 (PHB, same root complex); its port is DOWN",
    )


@pytest.mark.parametrize("mode", Mode)
def test_who_asks_for_what_is_free_gets_what_can_carry_data_or_one_device(mode: Mode) -> None:
    every = asking(count=None, if_free=True, mode=mode)
    (six,) = chosen(lost(eight(), 0, 3), every)
    assert six == [f"mlx5_{number}" for number in (1, 2, 4, 5, 6, 7)]
    assert chosen(lost(eight(), *range(8)), every) == (["mlx5_0"],)


def test_the_numa_node_without_active_ports_is_not_the_one_that_is_chosen() -> None:
    assert chosen(lost(eight(), 0, 1, 2, 3), asking(count=3, align=NUMA)) == (["mlx5_4", "mlx5_5", "mlx5_6"],)


@pytest.mark.parametrize("align", [STRICT_GPU, STRICT_NUMA])
def test_a_strict_request_takes_no_device_whose_port_is_down(align: Align) -> None:
    on = lost(eight(), 0)
    with pytest.raises(PlacementError, match="mlx5_0 is without an active port: its port is DOWN"):
        chosen(on, asking(gpus=(0,), align=align), taken=held(1, 2, 3))
    with pytest.raises(PlacementError, match="PORT-DOWN: mlx5_0 is without an active port: its port is DOWN"):
        chosen(on, asking(gpus=(0,), align=align, match=Match(device="mlx5_0")))


def test_a_pool_that_refuses_dead_ports_gives_no_such_device() -> None:
    on = lost(eight(), 0)
    refusing = replace(everything(on), refusing_down=frozenset({"default"}))
    (seven,) = place(on, refusing, {}, (asking(count=None, if_free=True),))
    assert [device.name for device in seven.devices] == [f"mlx5_{number}" for number in range(1, 8)]
    with pytest.raises(PlacementError, match=r"asked all, free 7 of 8 .*mlx5_0 is without an active port"):
        place(on, refusing, {}, (asking(count=None),))


def test_a_device_that_is_down_with_its_netdev_is_as_good_as_any_for_who_gets_the_netdev() -> None:
    """The netdev is raised in the pod."""
    on, near = set_down(eight(), 0), asking(gpus=(0,))
    assert chosen(on, asking(gpus=(0,), align=STRICT_GPU)) == (["mlx5_0"],)
    assert chosen(on, near) == chosen(on, asking()) == (["mlx5_0"],)
    assert reasons(on, near)[0].endswith("its port is DOWN until the pod raises its netdev")


def test_a_device_that_is_down_with_its_netdev_is_the_last_choice_of_who_shares_it() -> None:
    on, strict = set_down(eight(), 0), asking(gpus=(0,), align=STRICT_GPU, mode=Mode.SHARED)
    assert chosen(on, asking(gpus=(0,), mode=Mode.SHARED)) == (["mlx5_1"],)
    with pytest.raises(PlacementError, match=r"NOT-ALIGNED.*mlx5_0 is without an active port"):
        chosen(on, strict)
    this = replace(strict, request=replace(strict.request, match=Match(device="mlx5_0")))
    with pytest.raises(PlacementError, match=r"PORT-DOWN: mlx5_0 .*ip link set eth0 up"):
        chosen(on, this)

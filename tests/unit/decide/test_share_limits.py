"""Limits of shares that nobody wrote: equal parts of what a device can have."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.attach.plan import Plan
from nri_rdma.attach.survey import attached_requests
from nri_rdma.decide.decision import Question, decide
from nri_rdma.decide.inject import rdma_max
from nri_rdma.decide.placement import Placed
from nri_rdma.decide.policy import offer, policy_of
from nri_rdma.decide.share_limits import ShareLimits, share_limits
from nri_rdma.decide.share_requests import share_requests
from nri_rdma.errors import ErrorCode
from nri_rdma.model.allocation import ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.capacity import RdmaCapacity
from nri_rdma.model.device import Node
from nri_rdma.model.pool import LEAST_OBJECTS, Asker, Pool, PoolDoor, Rule, ShareGives
from nri_rdma.model.request import Mode, PodRequest, RdmaLimits
from tests.unit.model.hardware import nic, node

RESOURCE = "rdma/hca"
CAPACITY = RdmaCapacity(qp=131072, cq=16777216, mr=16777216, mw=16777216, pd=8388608, ah=2147483647, srq=8388608)
FAIR = {8: (113, 14563), 1: (512, 65536)}
"""By the number of a device's shares: contexts and objects of each, worked out by hand."""


def pool(shares: int = 16, gives: ShareGives = ShareGives.ONE, **written: RdmaLimits) -> Pool:
    return Pool(
        name="hcas",
        modes=(Mode.SHARED,),
        door=PoolDoor.RESOURCE,
        resource=RESOURCE,
        shares=shares,
        gives=gives,
        limits=written.get("limits"),
        max_limits=written.get("max_limits"),
    )


def known(capacity: RdmaCapacity = CAPACITY, *, rdma_cgroup: bool = True) -> Node:
    """Two devices that have answered."""
    made = node((nic(0), nic(1)), rdma_cgroup=rdma_cgroup)
    return replace(made, capacities={device.id: capacity for device in made.devices})


def limits(on: Node, of: Pool) -> ShareLimits:
    """The limits on the first device."""
    return share_limits(on, offer(policy_of((of,), (), allow_default_pool=False), on), of, on.devices[0])


def given_to(on: Node, of: Pool, *rules: Rule, **containers: int) -> tuple[Placed, ...]:
    """What containers get that have so many shares each."""
    told, first = [], 0
    for name, number in containers.items():
        width = len(str(of.shares - 1))
        ids = tuple(f"hcas-{index:0{width}}" for index in range(first, first + number))
        told.append(ContainerAllocation(name=name, resources=(DeviceIds(resource=RESOURCE, ids=ids),)))
        first += number
    policy = policy_of((of,), rules, allow_default_pool=False)
    asked = PodRequest(requests=share_requests({of.name: of}, PodAllocation(containers=tuple(told))))
    question = Question(
        owner="default/pod", asker=Asker(), request=asked, node=on, policy=policy, offer=offer(policy, on)
    )
    decision = decide(question, {})
    if decision.refusal is not None:
        raise decision.refusal
    return decision.placed


def lines(placed: tuple[Placed, ...], container: str) -> tuple[str, ...]:
    """The container's rdma.max."""
    return rdma_max(attached_requests(placed, Plan()), container)


@pytest.mark.parametrize("shares", FAIR)
def test_a_share_has_its_part_of_the_scarcest_kind_and_the_host_has_one_too(shares: int) -> None:
    handles, objects = FAIR[shares]
    found = limits(known(), pool(2 * shares))
    assert found.limits == RdmaLimits(hca_handles=handles, hca_objects=objects)
    assert found.why == f"131072 qp among {shares} share{'s' * (shares > 1)} and the host"


def test_where_a_share_gives_all_devices_each_device_has_all_shares() -> None:
    assert limits(known(), pool(8, ShareGives.ALL)).limits == RdmaLimits(hca_handles=113, hca_objects=14563)


@given(
    numbers=st.lists(st.integers(0, 1 << 31), min_size=7, max_size=7),
    shares=st.integers(1, 1000),
)
def test_when_all_but_one_share_have_all_they_may_the_last_and_the_host_have_as_much_of_each_kind(
    numbers: list[int], shares: int
) -> None:
    kinds = [field.name for field in fields(RdmaCapacity)]
    capacity = RdmaCapacity(**dict(zip(kinds, numbers, strict=True)))
    share = limits(known(capacity), pool(shares, ShareGives.ALL)).limits.hca_objects
    if share is None:
        assert any(0 < number < LEAST_OBJECTS * (shares + 1) for number in numbers) or not any(numbers)
        return
    for number in numbers:
        assert number == 0 or number - (shares - 1) * share >= 2 * share


def test_what_a_container_gets_is_in_its_rdma_max() -> None:
    placed = given_to(known(), pool(), a=1, b=1)
    assert lines(placed, "a") == ("mlx5_0 hca_handle=113 hca_object=14563",)
    assert lines(placed, "b") == ("mlx5_1 hca_handle=113 hca_object=14563",)
    assert lines(placed, "c") == ()


def test_devices_of_other_capacity_have_other_limits() -> None:
    on = known()
    on = replace(on, capacities={**on.capacities, on.devices[1].id: replace(CAPACITY, qp=18000)})
    assert lines(given_to(on, pool(8, ShareGives.ALL), a=1), "a") == (
        "mlx5_0 hca_handle=113 hca_object=14563",
        "mlx5_1 hca_handle=113 hca_object=2000",
    )


def test_two_shares_of_one_device_are_two_parts() -> None:
    on = replace(known(), devices=known().devices[:1])
    assert lines(given_to(on, pool(8, ShareGives.ALL), a=2), "a") == ("mlx5_0 hca_handle=226 hca_object=29126",)
    both = given_to(on, pool(8, ShareGives.ALL), a=2, b=1)
    assert lines(both, "a") == ("mlx5_0 hca_handle=113 hca_object=14563",), "which are whose is not known here"


def test_limits_that_the_pool_or_a_rule_says_win_and_the_rest_is_the_default() -> None:
    of = pool(limits=RdmaLimits(hca_objects=100000))
    assert lines(given_to(known(), of, a=1), "a") == ("mlx5_0 hca_handle=113 hca_object=100000",)
    assert limits(known(), of).limits == RdmaLimits(hca_handles=113, hca_objects=100000)
    of = pool(max_limits=RdmaLimits(hca_handles=700))
    assert lines(given_to(known(), of, a=1), "a") == ("mlx5_0 hca_handle=700 hca_object=14563",)
    rule = Rule(name="small", where="HERE", max_limits=RdmaLimits(hca_objects=50))
    assert lines(given_to(known(), pool(), rule, a=1), "a") == ("mlx5_0 hca_handle=113 hca_object=50",)
    of = pool(limits=RdmaLimits(hca_handles=3, hca_objects=4))
    assert limits(known(), of) == ShareLimits(limits=RdmaLimits(hca_handles=3, hca_objects=4), why="")


def test_without_a_capacity_there_is_no_default_and_the_reason_is_told() -> None:
    on = node((nic(0), nic(1)))
    assert limits(on, pool()) == ShareLimits(limits=RdmaLimits(), why="its capacity was not asked yet")
    on = replace(on, capacity_problems={on.devices[0].id: "pyverbs cannot be used"})
    assert limits(on, pool()) == ShareLimits(limits=RdmaLimits(), why="pyverbs cannot be used")
    assert lines(given_to(on, pool(), a=1), "a") == ()


def test_parts_that_are_too_small_for_a_job_are_no_limits() -> None:
    found = limits(known(replace(CAPACITY, qp=256)), pool(16))
    assert found == ShareLimits(
        limits=RdmaLimits(),
        why="256 qp among 8 shares and the host are 28 for each, fewer than 1024; write limits for the pool",
    )


def test_without_an_rdma_controller_the_default_is_left_out_and_a_written_limit_is_refused() -> None:
    on = known(rdma_cgroup=False)
    assert limits(on, pool()).why == "this node's cgroups have no rdma controller"
    assert lines(given_to(on, pool(), a=1), "a") == ()
    with pytest.raises(Exception, match="no rdma controller") as refused:
        given_to(on, pool(limits=RdmaLimits(hca_objects=4)), a=1)
    assert getattr(refused.value, "code", None) is ErrorCode.LIMITS_UNSUPPORTED


def test_requests_without_shares_have_no_default() -> None:
    of = replace(pool(shares=0), door=PoolDoor.ANNOTATIONS, resource="")
    policy = policy_of((of,), (), allow_default_pool=False)
    asked = replace(share_requests({"hcas": pool()}, PodAllocation(containers=_ONE))[0], shares=())
    question = Question(
        owner="default/pod",
        asker=Asker(),
        request=PodRequest(requests=(asked,)),
        node=known(),
        policy=policy,
        offer=offer(policy, known()),
    )
    assert lines(decide(question, {}).placed, "a") == ()


_ONE = (ContainerAllocation(name="a", resources=(DeviceIds(resource=RESOURCE, ids=("hcas-00",)),)),)

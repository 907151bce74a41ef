"""What pools say of the fabric, for each door, and of two pools that disagree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_rdma.cdi.grants import CdiGrant, Origin
from nri_rdma.cdi.meaning import CdiMeaning
from nri_rdma.decide.decision import Decision, Question, decide
from nri_rdma.decide.policy import Asker, offer, policy_of
from nri_rdma.decide.share_requests import share_requests
from nri_rdma.errors import ErrorCode
from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.allocation import ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.pool import Pool, PoolDoor, ShareGives
from nri_rdma.model.request import DeviceRequest, Mode, PodRequest, Scope, Use
from nri_rdma.model.selector import Selector
from tests.unit.model.hardware import nic, node

SHARED = (Mode.SHARED,)
RAILS = Pool(
    name="rails",
    modes=SHARED,
    select=(Selector(device=("mlx5_0", "mlx5_1")),),
    env=(("NCCL_IB_TC", "106"), ("NCCL_IB_SL", "3")),
)
DISKS = Pool(name="disks", modes=SHARED, select=(Selector(device=("mlx5_2",)),), use=Use.STORAGE)
ON = node((nic(0), nic(1), nic(2)))
STORAGE_CLASS = ("NCCL_IB_TC", "0")


def asking(name: str, pool: str, *containers: str, use: Use | None = None) -> DeviceRequest:
    scope = Scope(only=frozenset(containers) if containers else None)
    return DeviceRequest(name=name, where=f"HERE[{name}]", pool=pool, scope=scope, use=use)


def decided(*requests: DeviceRequest, pools: tuple[Pool, ...] = (RAILS, DISKS), **facts: object) -> Decision:
    policy = policy_of(pools, (), allow_default_pool=False)
    question = Question(
        owner="ns/pod",
        asker=Asker(),
        request=PodRequest(requests=requests),
        node=ON,
        policy=policy,
        offer=offer(policy, ON),
        **facts,  # type: ignore[arg-type]  # fields of Question, by name
    )
    return decide(question, {})


def granted(*numbers: int, container: str = "main") -> CdiGrant:
    """Another driver's CDI device with these NICs."""
    name = f"a.example.com/nic={'-'.join(map(str, numbers))}"
    meaning = CdiMeaning(name=name, devices=tuple(ON.devices[number] for number in numbers))
    return CdiGrant(container=container, name=name, origin=Origin.KUBELET, meaning=meaning)


COMPLETE = Adoption(others=VendorAdoption(adopt=Adopt.COMPLETE))


def test_a_pool_says_the_use_of_requests_that_name_none() -> None:
    items = decided(asking("0", "rails"), asking("1", "disks")).placed
    assert [item.admitted.request.use for item in items] == [None, Use.STORAGE]
    (item,) = decided(asking("0", "disks", use=Use.COMPUTE)).placed
    assert item.admitted.request.use is Use.COMPUTE


OLD = replace(RAILS, roce_version=1)


def test_a_pool_says_the_version_of_roce_of_requests_that_name_none() -> None:
    (item,) = decided(asking("0", "rails"), pools=(OLD,)).placed
    assert item.admitted.request.roce_version == 1
    (item,) = decided(replace(asking("0", "rails"), roce_version=2), pools=(OLD,)).placed
    assert item.admitted.request.roce_version == 2
    (gift,) = decided(grants=(granted(0, 1),), adoption=COMPLETE, pools=(replace(OLD, env=()),)).placed
    assert gift.admitted.request.roce_version == 1


def test_a_request_has_the_variables_of_its_pool() -> None:
    items = decided(asking("0", "rails"), asking("1", "disks")).placed
    assert [item.admitted.env for item in items] == [RAILS.env, ()]


def test_shares_and_whole_devices_have_what_their_pool_says() -> None:
    for gives, shares, ids in ((ShareGives.ONE, 4, ("s1",)), (ShareGives.DEVICE, 0, (str(nic(0).id),))):
        pool = replace(RAILS, door=PoolDoor.RESOURCE, resource="rdma/a", gives=gives, shares=shares, use=Use.STORAGE)
        asked = ContainerAllocation(name="main", resources=(DeviceIds(resource="rdma/a", ids=ids),))
        (item,) = decided(*share_requests({"rails": pool}, PodAllocation(containers=(asked,))), pools=(pool,)).placed
        assert (item.admitted.env, item.admitted.request.use) == (RAILS.env, Use.STORAGE)


def test_devices_that_others_gave_are_judged_by_the_pool_that_has_them() -> None:
    of_rails, of_disks = decided(grants=(granted(0), granted(2)), adoption=COMPLETE).placed
    assert (of_rails.admitted.env, of_rails.admitted.request.use) == (RAILS.env, None)
    assert (of_disks.admitted.env, of_disks.admitted.request.use) == ((), Use.STORAGE)


def test_a_gift_from_two_pools_is_for_storage_only_if_both_are() -> None:
    (both,) = decided(grants=(granted(0, 2),), adoption=COMPLETE).placed
    assert (both.admitted.env, both.admitted.request.use) == (RAILS.env, None)


def test_a_device_that_is_in_no_pool_brings_nothing() -> None:
    (one,) = decided(grants=(granted(2),), adoption=COMPLETE, pools=(RAILS,)).placed
    assert (one.admitted.env, one.admitted.request.use) == ((), None)


AT_ODDS = (RAILS, replace(DISKS, use=None, env=(STORAGE_CLASS,)))


@pytest.mark.parametrize(
    "asked",
    [
        (asking("0", "rails"), asking("1", "disks")),
        (asking("0", "rails", "a"), asking("1", "disks")),
        (asking("0", "rails", "a", "b"), asking("1", "disks", "b", "c")),
    ],
    ids=["both for all", "one for all", "both for b"],
)
def test_two_values_of_one_variable_in_one_container_are_refused(asked: tuple[DeviceRequest, ...]) -> None:
    refusal = decided(*asked, pools=AT_ODDS).refusal
    assert refusal is not None
    assert (refusal.code, refusal.where) == (ErrorCode.POOL_ENV, "HERE[1]")
    assert refusal.what.endswith("two pools that set NCCL_IB_TC differently: 106 and 0")


def test_containers_that_share_no_device_may_have_different_values() -> None:
    decision = decided(asking("0", "rails", "a"), asking("1", "disks", "b"), pools=AT_ODDS)
    assert decision.refusal is None


def test_values_that_a_request_for_storage_does_not_set_are_at_odds_with_nothing() -> None:
    pools = (RAILS, replace(DISKS, env=(STORAGE_CLASS,)))
    assert decided(asking("0", "rails"), asking("1", "disks"), pools=pools).refusal is None
    assert decided(asking("0", "rails"), grants=(granted(2),), adoption=COMPLETE, pools=pools).refusal is None
    refusal = decided(asking("0", "rails"), asking("1", "disks", use=Use.COMPUTE), pools=pools).refusal
    assert refusal is not None
    assert refusal.code is ErrorCode.POOL_ENV


def test_gifts_are_refused_too_whether_in_one_or_beside_an_annotation() -> None:
    for decision in (
        decided(grants=(granted(0, 2),), adoption=COMPLETE, pools=AT_ODDS),
        decided(asking("0", "rails"), grants=(granted(2),), adoption=COMPLETE, pools=AT_ODDS),
    ):
        assert decision.refusal is not None
        assert decision.refusal.code is ErrorCode.POOL_ENV

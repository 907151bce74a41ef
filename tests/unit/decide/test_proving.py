"""What is to be proven of a container, from what is attached for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_rdma.decide.inject import AttachedDevice, AttachedRequest
from nri_rdma.decide.policy import Admitted, Policy, is_proven
from nri_rdma.decide.proving import asks_proof, forced_index, port_tasks, proven_of
from nri_rdma.model.device import CharKind, LinkLayer
from nri_rdma.model.pool import Pool
from nri_rdma.model.proof import DeviceTask
from nri_rdma.model.request import DeviceRequest, Mode, Scope, Use
from tests.unit.decide.test_fabric import COMPLETE, SHARED, decided, granted
from tests.unit.model.hardware import nic

PROVING = Pool(name="rails", modes=SHARED, prove=True)
ASKED = DeviceRequest(name="a", where="HERE", pool="rails", prove=True)


def attached(*devices: int, request: DeviceRequest = ASKED, env: tuple[tuple[str, str], ...] = ()) -> AttachedRequest:
    given = tuple(AttachedDevice(device=nic(number), netdev_names=()) for number in devices)
    return AttachedRequest(admitted=Admitted(request=request, mode=Mode.SHARED, env=env), devices=given)


@pytest.mark.parametrize(
    ("request_", "wanted"),
    [
        (replace(ASKED, prove=None), True),
        (replace(ASKED, prove=False), False),
        (replace(ASKED, prove=None, char_kinds=frozenset({CharKind.UMAD})), False),
        (replace(ASKED, prove=None, admin_access=True), False),
    ],
    ids=["does not say it", "says no", "has nothing to prove", "looks on"],
)
def test_a_pool_proves_requests_that_do_not_say_it(request_: DeviceRequest, wanted: bool) -> None:
    assert is_proven(PROVING, request_) is wanted


def test_a_pods_own_requests_ask_for_the_hook_and_shares_bring_it() -> None:
    policy = Policy(pools={"rails": PROVING})
    own, share = replace(ASKED, prove=None), replace(ASKED, prove=None, shares=("rails-0",))
    assert asks_proof(policy, (share, own)) is own
    assert asks_proof(policy, (share, replace(own, pool="none"), replace(own, prove=False))) is None


def test_a_pool_proves_what_another_driver_gives_of_its_devices() -> None:
    (item,) = decided(pools=(PROVING,), grants=(granted(0),), adoption=COMPLETE).placed
    assert item.admitted.request.prove is True


def test_only_what_a_container_has_is_proven_in_it() -> None:
    own = replace(ASKED, scope=Scope(only=frozenset({"a"})))
    items = (attached(0, request=own), attached(1, request=replace(ASKED, prove=None)))
    assert proven_of(items, "a") == items[:1]
    assert proven_of(items, "b") == ()


def test_each_port_that_a_container_is_told_of_is_proven_once() -> None:
    (port,) = nic(0).ports
    down = replace(nic(0), ports=(port, replace(port, number=2, state="DOWN")))
    dead = replace(nic(1), ports=(replace(port, state="DOWN"),))
    given = replace(attached(), devices=tuple(AttachedDevice(device=it, netdev_names=()) for it in (down, dead)))
    assert port_tasks((given, given), {}) == (DeviceTask(device="mlx5_0"), DeviceTask(device="mlx5_1"))


def test_the_version_of_roce_is_that_of_the_request() -> None:
    assert [it.roce_version for it in port_tasks((attached(0),), {})] == [2]
    assert [it.roce_version for it in port_tasks((attached(0, request=replace(ASKED, roce_version=1)),), {})] == [1]


@pytest.mark.parametrize(
    ("variables", "index"),
    [
        ({}, None),
        ({"NCCL_IB_GID_INDEX": "3", "UCX_IB_GID_INDEX": "1"}, 3),
        ({"UCX_IB_GID_INDEX": "1"}, 1),
        ({"NCCL_IB_GID_INDEX": "-1", "UCX_IB_GID_INDEX": "auto"}, None),
        ({"NCCL_IB_GID_INDEX": "-1", "UCX_IB_GID_INDEX": " 0 "}, 0),
        ({"NCCL_IB_GID_INDEX": "9" * 5000}, None),
    ],
)
def test_an_entry_is_forced_by_a_number(variables: dict[str, str], index: int | None) -> None:
    assert forced_index(variables) == index


def test_the_containers_own_variable_goes_before_its_pools() -> None:
    of_pool = attached(0, env=(("NCCL_IB_GID_INDEX", "5"),))
    assert port_tasks((of_pool,), {})[0].gid_index == 5
    assert port_tasks((of_pool,), {"NCCL_IB_GID_INDEX": "3"})[0].gid_index == 3


def test_nccls_entry_is_not_for_infiniband_which_ucx_may_force() -> None:
    given = (AttachedDevice(device=nic(0, link_layer=LinkLayer.INFINIBAND), netdev_names=()), *attached(1).devices)
    item = replace(attached(), devices=given)
    assert [it.gid_index for it in port_tasks((item,), {"NCCL_IB_GID_INDEX": "3"})] == [None, 3]
    assert [it.gid_index for it in port_tasks((item,), {"NCCL_IB_GID_INDEX": "3", "UCX_IB_GID_INDEX": "1"})] == [1, 3]


def test_no_entry_is_forced_on_devices_for_storage() -> None:
    storage = attached(1, request=replace(ASKED, use=Use.STORAGE))
    forced = {"NCCL_IB_GID_INDEX": "3", "UCX_IB_GID_INDEX": "1"}
    assert [it.gid_index for it in port_tasks((attached(0), storage), forced)] == [3, None]


def test_what_is_proven_is_the_version_of_roce_that_was_asked_for() -> None:
    old = attached(0, request=replace(ASKED, roce_version=1))
    assert [it.roce_version for it in port_tasks((old, attached(1)), {})] == [1, 2]

"""Shares become requests: whose they are, how many devices they are, and where these are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from nri_rdma.decide.placement import Holding, Taken, place
from nri_rdma.decide.policy import Admitted, admit, offer, policy_of
from nri_rdma.decide.share_requests import known_shares, requests_for, share_name, share_requests
from nri_rdma.errors import PlacementError
from nri_rdma.model.allocation import ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.device import DeviceId, Node
from nri_rdma.model.pool import Asker, Pool, PoolDoor, ShareGives
from nri_rdma.model.request import DeviceRequest, Mode, PodRequest
from tests.unit.decide.placing import lost
from tests.unit.model.hardware import eight, gpu_address

RESOURCE = "rdma/hca_shared"


def pool(shares: int = 64, gives: ShareGives = ShareGives.ONE) -> Pool:
    return Pool(
        name="hcas", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource=RESOURCE, shares=shares, gives=gives
    )


def allocation(width: int = 2, /, **containers: int) -> PodAllocation:
    """The first `number` shares of each container are the next ones that nobody has; their numbers have that width."""
    given, first = [], 0
    for name, number in containers.items():
        ids = tuple(f"hcas-{index:0{width}}" for index in range(first, first + number))
        given.append(ContainerAllocation(name=name, resources=(DeviceIds(resource=RESOURCE, ids=ids),) * bool(ids)))
        first += number
    return PodAllocation(containers=tuple(given))


def requests(of: Pool, told: PodAllocation) -> tuple[DeviceRequest, ...]:
    return share_requests({of.name: of}, told)


def placed(of: Pool, on: Node, told: PodAllocation, taken: Taken, *gpus: int) -> list[list[str]]:
    asked = tuple(replace(it, gpus=tuple(map(gpu_address, gpus))) for it in requests(of, told))
    policy = policy_of((of,), (), allow_default_pool=False)
    admitted = admit(policy, on, PodRequest(requests=asked), Asker())
    return [[device.name for device in item.devices] for item in place(on, offer(policy, on), taken, admitted)]


def test_each_container_with_shares_asks_for_as_many_devices_and_others_for_none() -> None:
    one, three = requests(pool(), allocation(a=1, b=3, c=0))
    assert (one.count, one.scope.only, one.shares) == (1, frozenset({"a"}), ("hcas-00",))
    assert (three.count, three.scope.only, three.name) == (3, frozenset({"b"}), "hca-shared")
    assert three.shares == ("hcas-01", "hcas-02", "hcas-03")


def test_ids_that_several_containers_have_are_one_request_of_these_containers() -> None:
    """As `explain` has them of an init container and the one after it."""
    ids = {"a": ("0", "1"), "b": ("1", "2")}
    told = PodAllocation(
        containers=tuple(
            ContainerAllocation(name=name, resources=(DeviceIds(resource=RESOURCE, ids=them),))
            for name, them in ids.items()
        )
    )
    shared = [(sorted(it.scope.only or ()), it.shares, it.count) for it in requests(pool(), told)]
    assert shared == [(["a"], ("0",), 1), (["a", "b"], ("1",), 1), (["b"], ("2",), 1)]


def test_shares_that_give_all_devices_are_one_request_for_all_containers_that_have_some() -> None:
    (request,) = requests(pool(gives=ShareGives.ALL), allocation(a=1, b=2, c=0))
    assert (request.count, request.scope.only) == (None, frozenset({"a", "b"}))
    assert placed(pool(gives=ShareGives.ALL), eight(), allocation(a=1, b=1), {}) == [[f"mlx5_{n}" for n in range(8)]]


def test_resources_of_others_are_no_shares() -> None:
    other = DeviceIds(resource="rdma/other", ids=("hcas-00",))
    told = PodAllocation(containers=(ContainerAllocation(name="a", resources=(other,)),))
    assert [requests(pool(gives=gives), told) for gives in ShareGives] == [()] * len(ShareGives)


@pytest.mark.parametrize(
    ("resource", "name"),
    [("rdma/rdma_shared_device_a", "rdma-shared-device-a"), ("x.example/HCA.1_", "hca-1"), ("x/" + "a" * 63, "a" * 63)],
)
def test_a_request_is_called_as_its_resource(resource: str, name: str) -> None:
    assert share_name(resource) == name


def test_sixty_four_shares_of_eight_devices_are_eight_of_each_and_next_to_their_gpus() -> None:
    """Each GPU has eight pods: with the kubelet's order of ids anything, none is farther than its own device."""
    on, of = eight(), pool(64)
    taken: dict[DeviceId, frozenset[Holding]] = {}
    for number in range(64):
        told = PodAllocation(
            containers=(
                ContainerAllocation(name="a", resources=(DeviceIds(resource=RESOURCE, ids=(f"hcas-{number:02}",)),)),
            )
        )
        ((name,),) = placed(of, on, told, taken, number % 8)
        assert name == f"mlx5_{number % 8}"
        device = next(it for it in on.devices if it.name == name)
        holding = Holding(owner=f"ns/{number}", mode=Mode.SHARED, shares=frozenset({f"hcas-{number:02}"}))
        taken[device.id] = taken.get(device.id, frozenset()) | {holding}
    assert Counter(len(holders) for holders in taken.values()) == {8: 8}


def test_without_gpus_the_device_with_the_fewest_shares_is_next() -> None:
    on, taken = eight(), {}
    for number in (0, 1, 2, 4, 5, 6, 7):
        holding = Holding(owner=f"ns/{number}", mode=Mode.SHARED, shares=frozenset({f"hcas-{number + 10}"}))
        taken[on.devices[number].id] = frozenset({holding})
    assert placed(pool(), on, allocation(a=1), taken) == [["mlx5_3"]]


def test_sixteen_shares_of_pods_without_gpus_are_two_on_each_and_none_where_the_port_is_down() -> None:
    for on, expected in ((eight(), {0: 2}), (lost(eight(), 0), {0: 0, 1: 3, 2: 3})):
        taken: dict[DeviceId, frozenset[Holding]] = {device.id: frozenset() for device in on.devices}
        for number in range(16):
            ids = DeviceIds(resource=RESOURCE, ids=(f"hcas-{number:02}",))
            told = PodAllocation(containers=(ContainerAllocation(name="a", resources=(ids,)),))
            ((name,),) = placed(pool(), on, told, taken)
            device = next(it for it in on.devices if it.name == name)
            taken[device.id] |= {Holding(owner=f"ns/{number}", mode=Mode.SHARED, shares=frozenset(ids.ids))}
        numbers = dict.fromkeys(range(8), 2) | expected
        assert [len(taken[device.id]) for device in on.devices] == list(numbers.values())


def test_a_device_whose_shares_are_all_given_is_passed_over_although_it_is_the_nearest() -> None:
    on, of = eight(), pool(8)
    holding = Holding(owner="ns/other", mode=Mode.SHARED, shares=frozenset({"hcas-07"}))
    taken = {on.devices[0].id: frozenset({holding})}
    assert placed(of, on, allocation(1, a=1), taken, 0) == [["mlx5_1"]]


def test_a_device_without_an_active_port_is_passed_over_as_long_as_another_one_is_free() -> None:
    on = eight()
    down = replace(on.devices[0], ports=tuple(replace(it, state="DOWN") for it in on.devices[0].ports))
    on = replace(on, devices=(down, *on.devices[1:]))
    assert placed(pool(), on, allocation(a=1), {}, 0) == [["mlx5_1"]]
    alone = Holding(owner="ns/other", mode=Mode.EXCLUSIVE)
    others_taken = {device.id: frozenset({alone}) for device in on.devices[1:]}
    assert placed(pool(), on, allocation(a=1), others_taken, 0) == [["mlx5_0"]]


def test_a_share_that_the_kubelet_gave_to_somebody_else_is_no_longer_that_of_the_pod_before() -> None:
    """The devices of a pod that has just ended are on their way back while its share is in use again."""
    on, of = eight(), pool(8)
    holding = Holding(owner="ns/before", mode=Mode.SHARED, shares=frozenset({"hcas-0"}))
    taken = {on.devices[0].id: frozenset({holding})}
    assert placed(of, on, allocation(1, a=1), taken, 0) == [["mlx5_0"]]


def test_more_shares_than_devices_are_all_devices_and_each_counts_for_its_part() -> None:
    on, of = eight(), pool(64)
    (request,) = requests(of, allocation(a=10))
    (devices,) = placed(of, on, allocation(a=10), {})
    assert sorted(devices) == [f"mlx5_{number}" for number in range(8)]
    parts = [request.shares_of(index, 8) for index in range(8)]
    assert [len(part) for part in parts] == [2, 2, 1, 1, 1, 1, 1, 1]
    assert frozenset().union(*parts) == frozenset(request.shares)


def test_containers_of_one_pod_may_have_the_same_device_when_there_are_more_of_them() -> None:
    on, of = eight(), pool(64)
    found = Counter(name for (name,) in placed(of, on, allocation(**{f"c{n}": 1 for n in range(16)}), {}))
    assert found == {f"mlx5_{number}": 2 for number in range(8)}


def test_shares_that_an_init_container_had_stay_on_their_devices_also_where_none_is_left() -> None:
    """The kubelet reuses them for the containers that come later."""
    of, on = pool(shares=4), eight()
    on = replace(on, devices=on.devices[:2])
    first, second = (device.id for device in on.devices)
    holdings = {first: ("hcas-0", "hcas-1", "hcas-2"), second: ("hcas-3",)}
    taken = {
        device: frozenset({Holding(owner="ns/pod", mode=Mode.SHARED, shares=frozenset(shares))})
        for device, shares in holdings.items()
    }
    given = {"hcas-0": "mlx5_0", "hcas-1": "mlx5_0", "hcas-2": "mlx5_0", "hcas-3": "mlx5_1"}
    again = requests_for({of.name: of}, "late", [(RESOURCE, it) for it in given], given)
    assert [(it.match.device, it.count, it.shares) for it in again] == [
        ("mlx5_0", 1, ("hcas-0", "hcas-1", "hcas-2")),
        ("mlx5_1", 1, ("hcas-3",)),
    ]
    policy = policy_of((replace(of, shares=2),), (), allow_default_pool=False)  # fewer than were given before
    admitted = admit(policy, on, PodRequest(requests=again), Asker())
    assert [[it.name for it in item.devices] for item in place(on, offer(policy, on), taken, admitted)] == [
        ["mlx5_0"],
        ["mlx5_1"],
    ]


def test_an_annotation_cannot_ask_a_pool_of_shares() -> None:
    request = DeviceRequest(name="0", where="HERE", pool="hcas")
    with pytest.raises(PlacementError, match=r"POOL-DOOR: pool hcas is asked by the resource rdma/hca_shared") as error:
        admit(policy_of((pool(),), (), allow_default_pool=False), eight(), PodRequest(requests=(request,)), Asker())
    assert "resources.limits" in error.value.hint


def test_a_device_of_a_pod_that_has_it_alone_is_no_share() -> None:
    on, of = eight(), pool(8)
    taken = {device.id: frozenset({Holding(owner="ns/x", mode=Mode.EXCLUSIVE)}) for device in on.devices}
    with pytest.raises(PlacementError, match="DEVICES-EXHAUSTED"):
        placed(of, on, allocation(1, a=1), taken)


def test_what_a_request_holds_names_its_shares() -> None:
    on, of = eight(), pool(64)
    policy = policy_of((of,), (), allow_default_pool=False)
    admitted: tuple[Admitted, ...] = admit(policy, on, PodRequest(requests=requests(of, allocation(a=2))), Asker())
    (item,) = place(on, offer(policy, on), {}, admitted)
    shares = sorted(share for _, holding in item.holdings("ns/a") for share in holding.shares)
    assert shares == ["hcas-00", "hcas-01"]


def test_a_device_without_an_active_port_gets_no_share_while_another_can() -> None:
    on, of = eight(), pool(64)
    lost = tuple(replace(port, state="DOWN") for port in on.devices[0].ports)
    on = replace(on, devices=(replace(on.devices[0], ports=lost), *on.devices[1:]))
    assert placed(of, on, allocation(a=1), {}, 0) == [["mlx5_1"]]
    assert placed(of, on, allocation(a=1), {}) == [["mlx5_1"]]
    down = replace(on, devices=(on.devices[0],))
    assert placed(of, down, allocation(a=1), {}) == [["mlx5_0"]]


@pytest.mark.parametrize("gives", ShareGives)
def test_ids_that_are_no_shares_of_the_pool_ask_for_nothing(gives: ShareGives) -> None:
    ids = DeviceIds(resource=RESOURCE, ids=("hcas-64", "hcas-05", "other-05", "5"))
    strange = ContainerAllocation(name="strange", resources=(DeviceIds(resource=RESOURCE, ids=("x",)),))
    own = ContainerAllocation(name="main", resources=(ids,))
    of = pool(gives=gives)
    asked = requests(of, known_shares({of.name: of}, PodAllocation(containers=(own, strange))))
    if gives is ShareGives.DEVICE:  # devices that are not there are refused where they are looked for
        assert len(asked) == 5
    else:
        assert [(it.shares, it.scope.only) for it in asked] == [(("hcas-05",), frozenset({"main"}))]

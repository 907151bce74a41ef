"""What each container gets of the pod's devices."""

from __future__ import annotations

import timeit
from collections.abc import Collection, Mapping
from dataclasses import replace
from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.decide.inject import AttachedDevice, AttachedRequest, inject, rdma_max, refuse_two_pools, shown_as
from nri_rdma.decide.placement import place
from nri_rdma.decide.policy import Admitted, Asker, admit, offer
from nri_rdma.decide.port_gids import Gids, port_gid
from nri_rdma.errors import PlacementError
from nri_rdma.model.device import CharDevice, CharKind, LinkLayer, RdmaDevice
from nri_rdma.model.edits import ENV_PREFIXES, ContainerEdits
from nri_rdma.model.gid import Gid, GidType
from nri_rdma.model.request import DEFAULT_CHAR_KINDS, UNLIMITED, DeviceRequest, Mode, RdmaLimits, Scope, Use
from nri_rdma.text.annotations import PREFIX, parse_pod_request
from tests.unit.model.hardware import RDMA_CM, eight, gpu_address, nic, umad, uverbs
from tests.unit.rigs.policies import EXCLUSIVE_FIRST


def having(
    *devices: RdmaDevice,
    name: str = "0",
    kinds: frozenset[CharKind] = DEFAULT_CHAR_KINDS,
    scope: Scope | None = None,
    memlock: int | None = None,
    limits: RdmaLimits | None = None,
    netdevs: bool = True,
    use: Use | None = None,
    env: tuple[tuple[str, str], ...] = (),
    pod_interface: str | None = "eth0",
) -> AttachedRequest:
    """A request of that name with those devices attached: alone with their netdevs, shared without."""
    request = DeviceRequest(
        name=name,
        where="HERE",
        char_kinds=kinds,
        scope=scope or Scope(),
        memlock=memlock,
        limits=limits,
        use=use,
    )
    return AttachedRequest(
        admitted=Admitted(request=request, mode=Mode.EXCLUSIVE if netdevs else Mode.SHARED, env=env),
        pod_interface=pod_interface,
        devices=tuple(
            AttachedDevice(device=device, netdev_names=(f"rdma{device.index}",) if netdevs else ())
            for device in devices
        ),
    )


def edits(
    *attached: AttachedRequest,
    container: str = "a",
    rdma_cm: CharDevice | None = RDMA_CM,
    env: Collection[str] = (),
    devices: Mapping[str, tuple[int, int]] | None = None,
    default_memlock: int | None = None,
) -> ContainerEdits:
    return inject(attached, rdma_cm, container, env, devices or {}, default_memlock)


def paths(given_edits: ContainerEdits) -> list[str]:
    return [char.path for char in given_edits.char_devices]


def test_a_container_gets_the_nodes_of_its_device_and_rdma_cm() -> None:
    assert edits(having(nic(0))).char_devices == (uverbs(0), RDMA_CM)


def test_a_container_that_no_request_covers_gets_nothing() -> None:
    assert edits(having(nic(0), scope=Scope(only=frozenset({"b"}))), default_memlock=1) == ContainerEdits()


def test_a_container_of_a_pod_without_devices_gets_nothing() -> None:
    assert edits(default_memlock=1) == ContainerEdits()


def test_only_the_kinds_that_were_asked_are_given() -> None:
    device = nic(0, chars=(uverbs(0), umad(0)))
    assert paths(edits(having(device))) == [uverbs(0).path, RDMA_CM.path]
    assert paths(edits(having(device, kinds=frozenset({CharKind.UMAD})))) == [umad(0).path]


def test_a_node_without_rdma_cm_gives_none() -> None:
    assert paths(edits(having(nic(0)), rdma_cm=None)) == [uverbs(0).path]


def test_no_path_is_given_twice() -> None:
    assert paths(edits(having(nic(0)), having(nic(1), name="1"))) == [uverbs(0).path, RDMA_CM.path, uverbs(1).path]


def test_a_device_that_is_present_is_left_out() -> None:
    assert paths(edits(having(nic(0)), devices={uverbs(0).path: (231, 192)})) == [RDMA_CM.path]


def test_a_device_that_is_present_with_other_numbers_is_replaced() -> None:
    assert paths(edits(having(nic(0)), devices={uverbs(0).path: (231, 193)})) == [uverbs(0).path, RDMA_CM.path]


def test_a_device_that_is_shown_at_anothers_path_is_recognised_by_its_numbers() -> None:
    found = shown_as(uverbs(0).path, (231, 193), [nic(0), nic(1)])
    assert found == (nic(1), uverbs(1))


def test_numbers_of_nobody_or_of_the_path_itself_are_no_other_device() -> None:
    """The path's own may differ from what we give: the device was made anew and the node is read again soon."""
    assert shown_as(uverbs(0).path, (195, 0), [nic(0), nic(1)]) is None
    assert shown_as(uverbs(0).path, (231, 192), [nic(0), nic(1)]) is None


def test_the_environment_names_devices_and_netdevs() -> None:
    assert dict(edits(having(nic(0), nic(1), name="my-rails")).env) == {
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1,lo",
        "NVSHMEM_HCA_LIST": "mlx5_0:1,mlx5_1:1",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "RDMA_DEVICES_MY_RAILS": "mlx5_0,mlx5_1",
        "RDMA_NETDEVS_MY_RAILS": "rdma0,rdma1",
    }


def test_a_door_may_leave_out_the_variables_that_do_not_begin_like_ours() -> None:
    assert all(name.startswith(ENV_PREFIXES) for name, _ in edits(having(nic(0), nic(1), name="my-rails")).env)


def test_the_hints_name_the_devices_of_all_requests_of_the_container() -> None:
    env = dict(
        edits(having(nic(0)), having(nic(1), name="1"), having(nic(2), name="2", scope=Scope(only=frozenset()))).env
    )
    assert env["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert "RDMA_DEVICES_2" not in env


def test_the_hints_name_no_device_without_verbs() -> None:
    device = nic(0, chars=(umad(0),))
    env = edits(having(device, kinds=frozenset({CharKind.UMAD}))).env
    names = {name for name, _ in env}
    assert not names & {"NCCL_IB_HCA", "UCX_NET_DEVICES"}
    assert names >= {"RDMA_DEVICES_0", "RDMA_NETDEVS_0"}


def test_ucx_keeps_the_loopback_without_which_it_has_no_tcp() -> None:
    assert dict(edits(having(nic(0), netdevs=False)).env)["UCX_NET_DEVICES"] == "mlx5_0:1,lo"


def ports(number: int, *states: str, up: bool = True) -> RdmaDevice:
    """A NIC whose ports are in these states, with a netdev that the host has raised, or not."""
    device = nic(number)
    (port,), (netdev,) = device.ports, device.netdevs
    return replace(
        device,
        ports=tuple(replace(port, number=index, state=state) for index, state in enumerate(states, 1)),
        netdevs=(replace(netdev, up=up),),
    )


@pytest.mark.parametrize(
    ("devices", "nccl", "ucx"),
    [
        ((ports(0, "DOWN"), ports(1, "ACTIVE")), "=mlx5_1", "mlx5_1:1,lo"),
        ((ports(0, "INIT"), ports(1, "ACTIVE")), "=mlx5_1", "mlx5_1:1,lo"),
        ((ports(0, "ACTIVE", "ACTIVE"),), "=mlx5_0", "mlx5_0:1,mlx5_0:2,lo"),
        ((ports(0, "DOWN", "ACTIVE"), ports(1, "ACTIVE")), "=mlx5_0:2,mlx5_1", "mlx5_0:2,mlx5_1:1,lo"),
        ((ports(0, "DOWN"), ports(1, "DOWN")), "=mlx5_0,mlx5_1", "mlx5_0:1,mlx5_1:1,lo"),
        ((ports(0),), "=mlx5_0", "mlx5_0:1,lo"),
    ],
    ids=["down", "not yet active", "two ports", "one of two ports down", "none active", "ports unknown"],
)
def test_the_hints_name_active_ports_and_all_where_none_is(
    devices: tuple[RdmaDevice, ...], nccl: str, ucx: str
) -> None:
    env = dict(edits(having(*devices, netdevs=False)).env)
    assert (env["NCCL_IB_HCA"], env["UCX_NET_DEVICES"]) == (nccl, ucx)
    assert env["RDMA_DEVICES_0"] == ",".join(device.name for device in devices)


def test_a_port_that_is_a_limited_member_of_its_partitions_is_not_named_beside_a_full_one() -> None:
    device = ports(0, "ACTIVE", "ACTIVE")
    limited, full = device.ports
    device = replace(device, ports=(replace(limited, pkeys=(0x7FFF,)), replace(full, pkeys=(0xFFFF,))))
    assert dict(edits(having(device, netdevs=False)).env)["NCCL_IB_HCA"] == "=mlx5_0:2"


def test_a_port_that_is_down_with_its_netdev_on_the_host_comes_up_with_it_in_the_pod() -> None:
    devices = ports(0, "DOWN", up=False), ports(1, "ACTIVE")
    assert dict(edits(having(*devices)).env)["NCCL_IB_HCA"] == "=mlx5_0,mlx5_1"
    assert dict(edits(having(*devices, netdevs=False)).env)["NCCL_IB_HCA"] == "=mlx5_1"
    (port,) = devices[0].ports
    infiniband = replace(devices[0], ports=(replace(port, link_layer=LinkLayer.INFINIBAND),))
    assert dict(edits(having(infiniband, devices[1])).env)["NCCL_IB_HCA"] == "=mlx5_1"


def test_a_storage_nic_stays_out_of_the_hints_and_keeps_its_own_variable() -> None:
    storage = having(nic(6), name="disk", use=Use.STORAGE, netdevs=False)
    env = dict(edits(having(nic(0), nic(1), name="rails", use=Use.COMPUTE, netdevs=False), storage).env)
    assert env == {
        "NCCL_IB_HCA": "=mlx5_0,mlx5_1",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1,lo",
        "NVSHMEM_HCA_LIST": "mlx5_0:1,mlx5_1:1",
        "RDMA_DEVICES_RAILS": "mlx5_0,mlx5_1",
        "RDMA_DEVICES_DISK": "mlx5_6",
    }
    assert dict(edits(storage).env) == {"RDMA_DEVICES_DISK": "mlx5_6"}


def test_a_storage_pools_variables_for_nccl_and_ucx_stay_away_from_the_compute_nics() -> None:
    fabric = (("NCCL_IB_TC", "3"), ("UCX_IB_SL", "3"), ("MC_IB_TC", "3"))
    storage = having(nic(6), name="disk", use=Use.STORAGE, netdevs=False, env=fabric)
    assert dict(edits(having(nic(0), name="rails", netdevs=False), storage).env) == {
        "NCCL_IB_HCA": "=mlx5_0",
        "UCX_NET_DEVICES": "mlx5_0:1,lo",
        "NVSHMEM_HCA_LIST": "mlx5_0:1",
        "MC_IB_TC": "3",
        "RDMA_DEVICES_RAILS": "mlx5_0",
        "RDMA_DEVICES_DISK": "mlx5_6",
    }


def test_two_pools_disagree_only_over_what_the_container_does_not_set_itself() -> None:
    one = having(nic(0), name="a", netdevs=False, env=(("NCCL_IB_TC", "106"),))
    other = having(nic(1), name="b", netdevs=False, env=(("NCCL_IB_TC", "3"),))
    refuse_two_pools((one, other), "main", ("NCCL_IB_TC",))
    with pytest.raises(PlacementError, match="set NCCL_IB_TC differently"):
        refuse_two_pools((one, other), "main", ())


def test_variables_of_a_pool_are_set_once_for_all_its_requests_beside_those_of_others() -> None:
    one = having(nic(0), name="a", netdevs=False, env=(("NCCL_IB_TC", "106"), ("NCCL_IB_SL", "3")))
    other = having(nic(1), name="b", netdevs=False, env=(("NCCL_IB_TC", "106"), ("UCX_IB_TRAFFIC_CLASS", "106")))
    elsewhere = having(nic(2), name="c", scope=Scope(only=frozenset({"b"})), env=(("NVSHMEM_IB_TRAFFIC_CLASS", "1"),))
    env = edits(one, other, elsewhere, env=["NCCL_IB_SL"]).env
    own = {"NCCL_IB_HCA", "UCX_NET_DEVICES", "NVSHMEM_HCA_LIST"}
    assert sorted(pair for pair in env if not pair[0].startswith("RDMA_") and pair[0] not in own) == [
        ("GLOO_SOCKET_IFNAME", "eth0"),
        ("NCCL_IB_TC", "106"),
        ("NCCL_SOCKET_IFNAME", "=eth0"),
        ("UCX_IB_TRAFFIC_CLASS", "106"),
    ]


@pytest.mark.parametrize(
    ("own", "nccl", "gloo"),
    [("eth0", "=eth0", "eth0"), ("cilium0", "=cilium0", "cilium0"), ("", "=rdma0,rdma1", "rdma0,rdma1")],
    ids=["as runtimes name it", "another name", "no interface of its own"],
)
def test_where_netdevs_move_in_tcp_goes_over_the_pods_own_interface(own: str, nccl: str, gloo: str) -> None:
    env = dict(edits(having(nic(0), nic(1), pod_interface=own)).env)
    assert (env["NCCL_SOCKET_IFNAME"], env["GLOO_SOCKET_IFNAME"]) == (nccl, gloo)


def test_a_container_whose_devices_are_shared_is_told_of_netdevs_that_others_of_its_pod_brought_in() -> None:
    shared = having(nic(0), name="a", netdevs=False, pod_interface="eth0")
    moved = having(nic(1), name="b", scope=Scope(only=frozenset({"other"})), pod_interface="net7")
    assert dict(edits(shared, moved).env)["NCCL_SOCKET_IFNAME"] == "=net7"


def test_nothing_is_said_of_interfaces_where_none_moved_or_the_network_is_not_made_yet() -> None:
    for attached in (having(nic(0), netdevs=False), having(nic(0), pod_interface=None)):
        assert not dict(edits(attached).env).keys() & {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"}


def test_a_request_without_a_name_has_its_number_in_the_container_and_for_one_release_that_in_the_pod() -> None:
    left = having(nic(0), name="0", scope=Scope(only=frozenset({"left"})), netdevs=False)
    right = having(nic(1), name="1", scope=Scope(only=frozenset({"right"})), netdevs=False)
    assert numbered(left, right, container="left") == {"RDMA_DEVICES_0": "mlx5_0"}
    assert numbered(left, right, container="right") == {"RDMA_DEVICES_0": "mlx5_1", "RDMA_DEVICES_1": "mlx5_1"}


def test_of_two_requests_that_would_have_one_number_the_one_of_the_container_has_it() -> None:
    first = having(nic(0), name="0", scope=Scope(only=frozenset({"left"})), netdevs=False)
    second = having(nic(1), name="1", scope=Scope(only=frozenset({"right"})))
    third = having(nic(2), name="2", scope=Scope(only=frozenset({"right"})), netdevs=False)
    assert numbered(first, second, third, container="right") == {
        "RDMA_DEVICES_0": "mlx5_1",
        "RDMA_NETDEVS_0": "rdma1",
        "RDMA_DEVICES_1": "mlx5_2",
        "RDMA_DEVICES_2": "mlx5_2",
    }


def test_requests_with_names_count_and_keep_their_names() -> None:
    named = having(nic(0), name="rails", netdevs=False)
    assert numbered(named, having(nic(1), name="1", netdevs=False)) == {
        "RDMA_DEVICES_RAILS": "mlx5_0",
        "RDMA_DEVICES_1": "mlx5_1",
    }


def numbered(*attached: AttachedRequest, container: str = "a") -> dict[str, str]:
    """The variables that name devices and netdevs."""
    return {
        name: value
        for name, value in edits(*attached, container=container).env
        if name.startswith(("RDMA_D", "RDMA_N"))
    }


def test_a_request_without_netdevs_has_no_variable_for_them() -> None:
    assert "RDMA_NETDEVS_0" not in dict(edits(having(nic(0), netdevs=False)).env)


def test_a_variable_that_the_container_sets_stays() -> None:
    env = dict(edits(having(nic(0)), env=["NCCL_IB_HCA", "RDMA_DEVICES_0"]).env)
    left = ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "NVSHMEM_HCA_LIST", "RDMA_NETDEVS_0", "UCX_NET_DEVICES"]
    assert sorted(env) == left


def test_no_variable_of_ours_goes_over_the_containers_own() -> None:
    attached = having(nic(0), env=(("NCCL_IB_TC", "106"),))
    names = [name for name, _ in edits(attached).env]
    assert len(names) == 8
    for name in names:
        assert [it for it, _ in edits(attached, env=[name]).env] == [it for it in names if it != name]


def test_memlock_is_the_default_when_no_request_asks() -> None:
    assert edits(having(nic(0)), default_memlock=8 << 20).memlock == 8 << 20


def test_memlock_is_kept_when_there_is_no_default() -> None:
    assert edits(having(nic(0))).memlock is None


def test_memlock_is_the_largest_that_is_asked() -> None:
    attached = having(nic(0), memlock=1), having(nic(1), name="1", memlock=UNLIMITED), having(nic(2), name="2")
    assert edits(*attached, default_memlock=2).memlock == UNLIMITED


def test_memlock_below_the_default_is_given_as_asked() -> None:
    assert edits(having(nic(0), memlock=1), default_memlock=2).memlock == 1


def test_limits_are_a_line_per_device() -> None:
    attached = having(nic(0), nic(1), limits=RdmaLimits(hca_handles=2, hca_objects=100))
    lines = ("mlx5_0 hca_handle=2 hca_object=100", "mlx5_1 hca_handle=2 hca_object=100")
    assert edits(attached).rdma_max == rdma_max((attached,), "a") == lines


def test_each_request_limits_its_own_devices() -> None:
    attached = (
        having(nic(0), limits=RdmaLimits(hca_handles=2)),
        having(nic(1), name="1", limits=RdmaLimits(hca_objects=7)),
        having(nic(2), name="2", scope=Scope(only=frozenset({"b"})), limits=RdmaLimits(hca_objects=8)),
    )
    assert rdma_max(attached, "a") == ("mlx5_0 hca_handle=2 hca_object=max", "mlx5_1 hca_handle=max hca_object=7")


def test_a_limit_that_is_not_asked_is_max() -> None:
    attached = having(nic(0), limits=RdmaLimits(hca_objects=100)), having(nic(1), name="1")
    assert edits(*attached).rdma_max == ("mlx5_0 hca_handle=max hca_object=100",)


def test_no_limits_are_no_cgroup_value() -> None:
    assert edits(having(nic(0))).rdma_max == ()


# The four examples of the design, from annotation to edits


def injected(annotations: Mapping[str, str], container: str) -> list[str]:
    """The uverbs devices that a container of a pod with these annotations gets on the node of eight."""
    request = parse_pod_request(annotations)
    assert request is not None
    policy = EXCLUSIVE_FIRST
    placed = place(eight(), offer(policy, eight()), {}, admit(policy, eight(), request, Asker()))
    attached = tuple(
        having(*item.devices, name=item.admitted.request.name, scope=item.admitted.request.scope) for item in placed
    )
    return [
        path.removeprefix("/dev/infiniband/") for path in paths(edits(*attached, container=container, rdma_cm=None))
    ]


@given(st.permutations(range(8)), st.integers(1, 8))
def test_the_devices_of_a_request_are_named_in_the_order_of_its_gpus(order: list[int], count: int) -> None:
    """On this node the nearest device of each GPU has its number."""
    named = ", ".join(f'"{gpu_address(number)}"' for number in order[:count])
    request = parse_pod_request({f"{PREFIX}/pod": f"- {{name: rails, count: {count}, gpus: [{named}]}}"})
    assert request is not None
    (item,) = place(eight(), offer(EXCLUSIVE_FIRST, eight()), {}, admit(EXCLUSIVE_FIRST, eight(), request, Asker()))
    env = dict(edits(having(*item.devices, name="rails")).env)
    assert env["RDMA_DEVICES_RAILS"] == ",".join(f"mlx5_{number}" for number in order[:count])


def test_a_pods_list_gives_both_containers_the_same_device() -> None:
    assert injected({f"{PREFIX}/pod": "- {}"}, "a") == injected({f"{PREFIX}/pod": "- {}"}, "b") == ["uverbs0"]


def test_a_request_for_one_container_gives_the_other_nothing() -> None:
    annotations = {f"{PREFIX}/pod": "- containers: [a]"}
    assert (injected(annotations, "a"), injected(annotations, "b")) == (["uverbs0"], [])


def test_a_containers_own_list_gives_it_only_its_own() -> None:
    annotations = {f"{PREFIX}/container.a": "- match: {device: mlx5_5}", f"{PREFIX}/pod": "- match: {device: mlx5_2}"}
    assert (injected(annotations, "a"), injected(annotations, "b")) == (["uverbs5"], ["uverbs2"])


def test_one_word_gives_the_sidecar_the_device_too() -> None:
    assert injected({PREFIX: "1"}, "sidecar") == injected({PREFIX: "1"}, "main") == ["uverbs0"]


@given(
    st.lists(st.sets(st.integers(0, 3), min_size=1), max_size=4),
    st.sets(st.sampled_from(["NCCL_IB_HCA", "UCX_NET_DEVICES", "RDMA_DEVICES_0"])),
    st.dictionaries(
        st.integers(0, 3).map(lambda number: uverbs(number).path), st.tuples(st.just(231), st.integers(192, 195))
    ),
)
def test_nothing_is_given_twice_or_over_what_is_there(
    requests: list[set[int]], env: set[str], devices: dict[str, tuple[int, int]]
) -> None:
    attached = [having(*map(nic, sorted(numbers)), name=str(name)) for name, numbers in enumerate(requests)]
    result = edits(*attached, env=env, devices=devices)
    names = [name for name, _ in result.env]
    assert len(set(paths(result))) == len(paths(result))
    assert len(set(names)) == len(names)
    assert not env & set(names)
    assert all(devices.get(char.path) != (char.major, char.minor) for char in result.char_devices)


def test_injecting_one_device_takes_no_longer_than_to_make_twenty_small_dicts() -> None:
    """A machine may be slow or busy. It takes as long as ten of them on one where both were measured."""
    attached = having(nic(0))
    env = [f"VARIABLE_{number}" for number in range(30)]
    ours = min(timeit.repeat(lambda: edits(attached, env=env), number=200, repeat=20))
    dicts = min(timeit.repeat(lambda: {name: name for name in env}, number=4000, repeat=20))
    assert ours < dicts


GIDS = Gids.of(
    [
        port_gid(f"mlx5_{number}", 1, [Gid(index=3, value=IPv6Address("::ffff:10.1.0.2"), type=GidType.ROCE_V2)], (), 2)
        for number in range(2)
    ],
    ("mlx5_0", "mlx5_1"),
)


def with_gids(*attached: AttachedRequest, env: Collection[str] = (), container: str = "main") -> dict[str, str]:
    return dict(inject(attached, None, container, env, {}, None, (GIDS,)).env)


@pytest.mark.parametrize("own", ["NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE"])
def test_what_chooses_a_gid_for_nccl_is_the_containers_as_a_whole_or_ours(own: str) -> None:
    assert with_gids(having(nic(0)))["NCCL_IB_GID_INDEX"] == "3"
    told = with_gids(having(nic(0)), env=[own])
    assert "NCCL_IB_GID_INDEX" not in told  # it would overrule the container's family
    assert told["UCX_IB_GID_INDEX"] == "3"


def test_ucx_is_told_no_index_beside_a_choice_of_subnets() -> None:
    """UCX fails the interface where both are set."""
    subnets = "UCX_IB_ROCE_SUBNETS"
    for told in with_gids(having(nic(0)), env=[subnets]), with_gids(having(nic(0), env=((subnets, "10.1.0.0/16"),))):
        assert (told.get("NCCL_IB_GID_INDEX"), told.get("UCX_IB_GID_INDEX")) == ("3", None)


def test_nvshmem_is_told_no_list_beside_a_mapping() -> None:
    """NVSHMEM ignores the mapping where both are set."""
    mapping = "NVSHMEM_HCA_PE_MAPPING"
    elsewhere = having(nic(1), name="b", scope=Scope(only=frozenset({"other"})), env=((mapping, "mlx5_1:1:2"),))
    assert "NVSHMEM_HCA_LIST" in with_gids(having(nic(0)), elsewhere)
    for told in with_gids(having(nic(0)), env=[mapping]), with_gids(having(nic(0), env=((mapping, "mlx5_0:1:2"),))):
        assert "NVSHMEM_HCA_LIST" not in told
        assert told["NCCL_IB_HCA"] == "=mlx5_0"


def test_a_pools_choice_of_gids_counts_before_ours() -> None:
    told = with_gids(having(nic(0), env=(("NCCL_IB_GID_INDEX", "-1"), ("UCX_IB_GID_INDEX", "auto"))))
    assert (told["NCCL_IB_GID_INDEX"], told["UCX_IB_GID_INDEX"]) == ("-1", "auto")


def test_a_container_is_told_of_the_gids_of_its_own_devices() -> None:
    elsewhere = having(nic(1), name="b", scope=Scope(only=frozenset({"other"})))
    assert with_gids(having(nic(0)), elsewhere)["UCX_IB_GID_INDEX"] == "3"
    assert "UCX_IB_GID_INDEX" not in with_gids(having(nic(2)), elsewhere)

"""What each container gets of the pod's devices."""

from __future__ import annotations

import timeit
from collections.abc import Collection, Mapping

from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.decide.inject import ENV_PREFIXES, AttachedDevice, AttachedRequest, inject, rdma_max, shown_as
from nri_rdma.decide.placement import place
from nri_rdma.decide.policy import Admitted, Asker, admit, offer
from nri_rdma.model.device import CharDevice, CharKind, RdmaDevice
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.request import DEFAULT_CHAR_KINDS, UNLIMITED, DeviceRequest, Mode, RdmaLimits, Scope
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
) -> AttachedRequest:
    """A request of that name with those devices attached."""
    request = DeviceRequest(
        name=name,
        where="HERE",
        char_kinds=kinds,
        scope=scope or Scope(),
        memlock=memlock,
        limits=limits,
    )
    return AttachedRequest(
        admitted=Admitted(request=request, mode=Mode.EXCLUSIVE),
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
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1",
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
    assert [name for name, _ in env] == ["RDMA_DEVICES_0", "RDMA_NETDEVS_0"]


def test_a_request_without_netdevs_has_no_variable_for_them() -> None:
    assert "RDMA_NETDEVS_0" not in dict(edits(having(nic(0), netdevs=False)).env)


def test_a_variable_that_the_container_sets_stays() -> None:
    env = dict(edits(having(nic(0)), env=["NCCL_IB_HCA", "RDMA_DEVICES_0"]).env)
    assert sorted(env) == ["RDMA_NETDEVS_0", "UCX_NET_DEVICES"]


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


def test_injecting_one_device_takes_less_than_twenty_microseconds() -> None:
    attached = having(nic(0))
    env = [f"VARIABLE_{number}" for number in range(30)]
    fastest = min(timeit.repeat(lambda: edits(attached, env=env), number=200, repeat=20)) / 200
    assert fastest < 20e-6

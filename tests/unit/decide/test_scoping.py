"""Which container gets what of a pod's lists: four examples that pod authors go by, and the precedence of keys, as
`explain` says it and as the daemon's own handlers answer it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from nri_rdma.commands.explain.explanation import Explanation, explain
from nri_rdma.commands.explain.gather import gather
from nri_rdma.decide.scoping import scope_words
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.allocation import ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.request import DeviceRequest, Scope
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from tests.unit.rigs.inside_daemon import MEMLOCK, InsideDaemon
from tests.unit.rigs.nri_calls import NOTHING, Got, Handlers, of_explained

PREFIX = "rdma.noderesource.dev"
POD, OF_A = f"{PREFIX}/pod", f"{PREFIX}/container.a"


@pytest.fixture
def handlers(tmp_path: Path, eight: Path) -> Iterator[Handlers]:
    with InsideDaemon(tmp_path, eight) as inside:
        inside.make_cgroups()
        yield Handlers(inside)


class Pod:
    """A pod that runs, and what was said of it before."""

    def __init__(self, handlers: Handlers, annotations: Mapping[str, str], *containers: str) -> None:
        manifest = PodManifest(
            kind="Pod",
            namespace="default",
            name="one",
            annotations=annotations,
            containers=tuple(ContainerManifest(name=name) for name in containers or ("a", "b")),
        )
        self.explanation: Explanation = explain(manifest, gather(handlers.inside.settings).facts)
        assert self.explanation.refusal is None
        sandbox = handlers.run_pod(manifest)
        self.got: dict[str, Got] = {it.name: handlers.create(sandbox, it) for it in manifest.containers}
        namespace = handlers.inside.world.namespace("/run/netns/one")
        assert namespace is not None
        self.netdevs = sorted(link.name for link in namespace.links.values() if link.name not in {"lo", "eth0"})

    @property
    def explained(self) -> dict[str, Got]:
        return {item.name: of_explained(item) for item in self.explanation.containers}


def test_1_the_pods_list_is_for_every_container_and_the_netdev_is_the_pods(handlers: Handlers) -> None:
    pod = Pod(handlers, {POD: "[{match: {device: mlx5_2}}]"})
    assert pod.got["a"].names == pod.got["b"].names == ["uverbs2", "rdma_cm"]
    assert pod.got["a"].env == {
        "NCCL_IB_HCA": "=mlx5_2",
        "UCX_NET_DEVICES": "mlx5_2:1,lo",
        "NVSHMEM_HCA_LIST": "mlx5_2:1",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "RDMA_DEVICES_0": "mlx5_2",
        "RDMA_NETDEVS_0": "rdma0",
    }
    assert pod.got["a"].memlock == MEMLOCK
    assert pod.netdevs == ["rdma0"]
    assert pod.explained == pod.got


def test_2_a_request_for_some_containers_gives_only_them_nodes(handlers: Handlers) -> None:
    pod = Pod(handlers, {POD: "[{match: {device: mlx5_2}, containers: [a]}]"})
    assert pod.got["a"].names == ["uverbs2", "rdma_cm"]
    assert pod.got["b"] == NOTHING
    assert pod.netdevs == ["rdma0"]
    assert pod.explained == pod.got


def test_3_a_containers_own_list_takes_the_place_of_the_pods(handlers: Handlers) -> None:
    pod = Pod(handlers, {OF_A: "[{match: {device: mlx5_5}}]", POD: "[{match: {device: mlx5_2}}]"})
    assert pod.got["a"].names == ["uverbs5", "rdma_cm"]
    assert pod.got["b"].names == ["uverbs2", "rdma_cm"]
    assert pod.got["a"].env["NCCL_IB_HCA"] == "=mlx5_5"
    assert pod.netdevs == ["rdma0", "rdma1"]
    assert pod.explained == pod.got


def test_4_a_number_is_for_every_container_sidecars_too(handlers: Handlers) -> None:
    pod = Pod(handlers, {POD: "1"}, "trainer", "sidecar", "init")
    assert [got.names for got in pod.got.values()] == [["uverbs0", "rdma_cm"]] * 3
    assert pod.netdevs == ["rdma0"]
    assert pod.explained == pod.got


# Precedence


def test_the_bare_key_is_the_pods_list(handlers: Handlers) -> None:
    pod = Pod(handlers, {PREFIX: "[{match: {device: mlx5_2}}]"})
    assert pod.got["a"].names == pod.got["b"].names == ["uverbs2", "rdma_cm"]
    assert pod.explained == pod.got


@pytest.mark.parametrize("nothing", ["", "[]", "null"])
def test_an_empty_list_of_its_own_takes_the_pods_from_a_container(handlers: Handlers, nothing: str) -> None:
    pod = Pod(handlers, {OF_A: nothing, POD: "1"})
    assert (pod.got["a"], pod.got["b"].names) == (NOTHING, ["uverbs0", "rdma_cm"])
    assert pod.explained == pod.got


def test_a_list_of_its_own_counts_before_the_pods_that_names_the_container(handlers: Handlers) -> None:
    pod = Pod(handlers, {OF_A: "[{match: {device: mlx5_5}}]", POD: "[{match: {device: mlx5_2}, containers: [a, b]}]"})
    assert pod.got["a"].names == ["uverbs5", "rdma_cm"]
    assert pod.got["b"].names == ["uverbs2", "rdma_cm"]
    assert pod.explained == pod.got


def test_a_container_may_be_the_only_one_that_asks(handlers: Handlers) -> None:
    pod = Pod(handlers, {OF_A: "2"})
    assert (pod.got["a"].names, pod.got["b"]) == (["uverbs0", "uverbs1", "rdma_cm"], NOTHING)
    assert pod.netdevs == ["rdma0", "rdma1"]
    assert pod.explained == pod.got


@pytest.mark.parametrize(
    ("annotations", "where"),
    [
        ({POD: "1", PREFIX: "1"}, PREFIX),
        ({OF_A: "[{containers: [b]}]"}, f"{OF_A}[0].containers"),
        ({OF_A: "[{name: x}]", POD: "[{name: x}]"}, f"{OF_A}[0].name"),
    ],
    ids=["two lists of the pod", "a list of its own for others", "a name twice"],
)
def test_lists_that_contradict_each_other_are_refused_by_both(
    handlers: Handlers, annotations: dict[str, str], where: str
) -> None:
    containers = (ContainerManifest(name="a"), ContainerManifest(name="b"))
    manifest = PodManifest(kind="Pod", namespace="default", name="one", annotations=annotations, containers=containers)
    explanation = explain(manifest, gather(handlers.inside.settings).facts)
    with pytest.raises(RequestError) as caught:
        handlers.run_pod(manifest)
    assert (caught.value.code in set(ErrorCode), caught.value.where) == (True, where)
    assert str(explanation.refusal) == str(caught.value)


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (DeviceRequest(name="nic", where="w", scope=Scope(only=frozenset({"a"}))), "nic: the containers it names"),
        (
            DeviceRequest(name="", where="w", word=True, scope=Scope(only=frozenset({"a"}))),
            "w: the containers it names",
        ),
        (DeviceRequest(name="0", where="w", word=True), "0: the containers to which the kubelet gave devices: b, c"),
        (DeviceRequest(name="0", where="w"), "0: every container"),
    ],
)
def test_the_rule_that_decided_is_said(request_: DeviceRequest, words: str) -> None:
    given = DeviceIds(resource="nvidia.com/gpu", ids=("0",))
    containers = tuple(ContainerAllocation(name=name, resources=(given,)) for name in ("c", "b"))
    assert scope_words(request_, PodAllocation(containers=containers)) == words

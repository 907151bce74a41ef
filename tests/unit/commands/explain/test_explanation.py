"""What a pod would get and why, decided from values alone."""

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from nri_rdma.commands.common.local_node import read_local_node
from nri_rdma.commands.explain.explanation import Away, Explanation, Facts, HostNetwork, _link, explain
from nri_rdma.config.settings import Settings
from nri_rdma.decide.gpus import KnownGpus
from nri_rdma.decide.placement import Holding
from nri_rdma.decide.policy import policy_of
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.capacity import RdmaCapacity
from nri_rdma.model.device import DeviceId, LinkLayer, Node
from nri_rdma.model.link import Captured
from nri_rdma.model.network import RoutingRule
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.pool import Pool, PoolDoor, Rule, ShareGives
from nri_rdma.model.request import Mode
from nri_rdma.model.rights import InterfaceRight
from nri_rdma.model.routing import KnownRule
from nri_rdma.model.usage import Lifelines
from nri_rdma.text.manifest import ContainerManifest, PodManifest, read_pods
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.rigs.nri_calls import NOTHING, of_explained
from tests.unit.rigs.policies import EXCLUSIVE_FIRST

PREFIX = "rdma.noderesource.dev"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """The node "eight" with everything free."""
    work = tmp_path_factory.mktemp("eight")
    build_tree(load("eight"), work)
    node = read_local_node(Settings(sysfs_root=work, dev_root=work, cgroup_root=work)).node
    return Facts(node=node, policy=EXCLUSIVE_FIRST, taken={}, annotation_prefix=PREFIX)


def pod(annotation: str, *containers: str, key: str = f"{PREFIX}/pod", **fields: Any) -> PodManifest:
    names = containers or ("trainer", "sidecar")
    return PodManifest(
        kind="Pod",
        namespace="default",
        name="train-0",
        annotations={key: annotation},
        containers=tuple(ContainerManifest(name=name) for name in names),
        **fields,
    )


def given(explanation: Explanation) -> list[str]:
    return [it.device for request in explanation.requests for it in request.candidates if it.given]


def why(explanation: Explanation) -> Mapping[str, str]:
    (request,) = explanation.requests
    return {candidate.device: candidate.why for candidate in request.candidates}


def held(node: Node, name: str, owner: str) -> dict[DeviceId, frozenset[Holding]]:
    device = next(device for device in node.devices if device.name == name)
    return {device.id: frozenset({Holding(owner=owner, mode=Mode.EXCLUSIVE)})}


def test_a_pod_that_asks_for_nothing_gets_nothing(facts: Facts) -> None:
    asked = replace(pod(""), annotations={"other": "x"})
    explanation = explain(asked, facts)
    assert (explanation.requests, explanation.netdevs, explanation.refusal) == ((), (), None)
    assert [of_explained(item) for item in explanation.containers] == [NOTHING] * len(asked.containers)


def test_a_key_whose_prefix_has_a_typo_is_noted(facts: Facts) -> None:
    explanation = explain(pod("1", key="rdma.nodersource.dev/pod"), facts)
    assert explanation.notes == (f"Nothing reads rdma.nodersource.dev/pod. Write {PREFIX}/pod.",)
    assert explain(pod("1"), facts).notes == ()


def test_the_device_near_the_gpu_is_given_and_the_others_say_how_far_they_are(facts: Facts) -> None:
    explanation = explain(pod('[{gpus: ["0000:80:00.0"]}]'), facts)
    assert given(explanation) == ["mlx5_3"]
    assert why(explanation)["mlx5_3"] == "nearest free device to GPU 0000:80:00.0 (PHB, same root complex)"
    assert why(explanation)["mlx5_0"] == "free; from GPU 0000:80:00.0 it is NODE, same NUMA node"
    assert why(explanation)["mlx5_7"] == "free; from GPU 0000:80:00.0 it is SYS, elsewhere"


def without_port(on: Node, name: str) -> Node:
    devices = (
        replace(it, ports=tuple(replace(port, state="DOWN") for port in it.ports)) if it.name == name else it
        for it in on.devices
    )
    return replace(on, devices=tuple(devices))


def test_a_device_whose_port_is_down_is_left_and_told(facts: Facts) -> None:
    facts = replace(facts, node=without_port(facts.node, "mlx5_3"))
    explanation = explain(pod('[{gpus: ["0000:80:00.0"]}]'), facts)
    assert given(explanation) == ["mlx5_0"]
    assert why(explanation)["mlx5_3"] == "free; its port is DOWN; from GPU 0000:80:00.0 it is PHB, same root complex"
    strict = explain(pod('[{gpus: ["0000:80:00.0"], align: {to: numa, strict: true}}]'), facts)
    assert why(strict)["mlx5_3"] == "without an active port: its port is DOWN"
    named = explain(pod("[{match: {device: mlx5_3}}]"), facts)
    assert why(named)["mlx5_3"] == "named by the request (device mlx5_3); its port is DOWN"


STRICT = "[{align: {to: gpu, strict: true}}]"


@pytest.mark.parametrize("has", [{"resources": (("nvidia.com/gpu", "1"),)}, {"claims": ("gpu",)}])
def test_what_a_strict_request_gets_is_undetermined_until_its_gpus_are_known(facts: Facts, has: Any) -> None:
    asked = replace(pod(STRICT), containers=(ContainerManifest(name="trainer", **has),))
    explanation = explain(asked, facts)
    assert (explanation.refusal, explanation.undetermined, given(explanation)) == (None, True, [])
    assert any("here --gpu trainer=ID[,ID] names them" in note for note in explanation.notes)
    known = KnownGpus(gpus=(PciAddress(0, 0x80, 0, 0),), source="--gpu")
    told = explain(asked, replace(facts, gpus={"trainer": known}))
    assert (told.undetermined, given(told)) == (False, ["mlx5_3"])


def test_what_is_near_cpus_that_the_kubelet_chooses_is_undetermined_and_else_refused(facts: Facts) -> None:
    strict = "[{align: {to: numa, strict: true}}]"
    whole = ContainerManifest(name="trainer", has_whole_cpus=True)
    explanation = explain(replace(pod(strict), containers=(whole,)), facts)
    assert (explanation.refusal, explanation.undetermined) == (None, True)
    assert explanation.awaits_cpus
    assert any("The kubelet chooses the CPUs of container trainer" in note for note in explanation.notes)
    with_gpu = replace(whole, resources=(("nvidia.com/gpu", "2"),))
    for containers in ((replace(with_gpu, has_whole_cpus=False),), (with_gpu,), (whole, replace(with_gpu, name="b"))):
        told = explain(replace(pod(strict), containers=containers), facts)
        assert (told.undetermined, told.awaits_cpus) == (True, False), "it waits for the GPUs"
    refusal = explain(pod(strict), facts).refusal
    assert refusal is not None
    assert refusal.code is ErrorCode.NOT_ALIGNED


def test_a_strict_request_that_no_gpu_can_help_is_refused(facts: Facts) -> None:
    container = ContainerManifest(name="trainer", resources=(("nvidia.com/gpu", "1"),))
    for asked, has, code in (
        (pod(STRICT), facts, ErrorCode.NOT_ALIGNED),  # its containers have no GPU
        (replace(pod(STRICT), containers=(container,)), replace(facts, gpus_are_reported=False), ErrorCode.NOT_ALIGNED),
        (replace(pod("[{count: 9, align: {to: gpu, strict: true}}]"), containers=(container,)), facts,
         ErrorCode.DEVICES_EXHAUSTED),
    ):  # fmt: skip
        explanation = explain(asked, has)
        assert not explanation.undetermined
        assert explanation.refusal is not None
        assert explanation.refusal.code is code


def test_every_device_of_the_node_has_its_reason(facts: Facts) -> None:
    node = facts.node
    devices = (*node.devices[:2], replace(node.devices[2], in_use=("rail2 has an XDP program attached",)))
    busy = replace(
        facts, node=replace(node, devices=(*devices, *node.devices[3:])), taken=held(node, "mlx5_1", "default/other")
    )
    explanation = explain(pod("[{match: {numaNode: 0}}]"), busy)
    assert why(explanation) == {
        "mlx5_0": "lowest index of 2 free",
        "mlx5_1": "held by pod default/other",
        "mlx5_2": "in use by the host: rail2 has an XDP program attached",
        "mlx5_3": "free",
        **{f"mlx5_{number}": "numaNode is 1, and match asks for 0" for number in range(4, 8)},
    }


@pytest.mark.parametrize(
    ("match", "why_not"),
    [
        ("linkLayer: InfiniBand", "linkLayer is Ethernet, and match asks for InfiniBand"),
        ("minSpeedGbps: 800", "speed is 400 Gbit/s, and match asks for at least 800"),
        ("vendor: 14e4", "vendor is 15b3, and match asks for 14e4"),
        ("driver: bnxt_en", "driver is mlx5_core, and match asks for bnxt_en"),
        ("device: mlx5_1", "device is mlx5_0, and match asks for mlx5_1"),
        ("netdev: rail7", "netdev is rail0, and match asks for rail7"),
        ("pci: '0000:3f:00.0'", "pci is 0000:19:00.0, and match asks for 0000:3f:00.0"),
        ("vendor: 15b3, numaNode: 1, minSpeedGbps: 400", "numaNode is 0, and match asks for 1"),
        (
            "linkLayer: InfiniBand, numaNode: 1",
            "linkLayer is Ethernet, and match asks for InfiniBand; numaNode is 0, and match asks for 1",
        ),
    ],
)
def test_the_conditions_that_a_device_fails_are_named(facts: Facts, match: str, why_not: str) -> None:
    assert why(explain(pod(f"[{{match: {{{match}}}}}]"), facts))["mlx5_0"] == why_not


def test_what_a_device_does_not_have_is_named(facts: Facts) -> None:
    bare = replace(facts.node.devices[0], netdevs=(), numa_node=None, pci=None)
    node = replace(facts.node, devices=(bare, *facts.node.devices[1:]))
    explanation = explain(pod("[{match: {netdev: rail1, numaNode: 0}}]"), replace(facts, node=node))
    assert (
        why(explanation)["mlx5_0"]
        == "it has no netdev, and match asks for rail1; it has no numaNode, and match asks for 0"
    )


def test_what_another_request_of_the_pod_got_is_named(facts: Facts) -> None:
    explanation = explain(pod("[{name: a, match: {device: mlx5_4}}, {name: b}]"), facts)
    second = {it.device: it.why for it in explanation.requests[1].candidates}
    assert given(explanation) == ["mlx5_4", "mlx5_5"]  # the socket that is broken into already
    assert second["mlx5_4"] == "given to request a of this pod"


def test_containers_get_what_the_daemon_would_inject(facts: Facts) -> None:
    asked = pod("[{name: rails, match: {device: mlx5_2}, containers: [trainer], memlock: unlimited}]")
    trainer, sidecar = explain(asked, facts).containers
    assert trainer.env["RDMA_NETDEVS_RAILS"] == "rdma0"
    assert [char.path for char in trainer.char_devices] == ["/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"]
    assert trainer.asks_memlock
    assert (sidecar.requests, sidecar.char_devices) == ((), ())


def test_a_variable_that_the_container_sets_is_left_to_it(facts: Facts) -> None:
    container = ContainerManifest(name="trainer", env=frozenset({"NCCL_IB_HCA", "PATH"}))
    (told,) = explain(replace(pod("1"), containers=(container,)), facts).containers
    assert told.kept_env == ("NCCL_IB_HCA",)
    assert "NCCL_IB_HCA" not in told.env


def test_a_gid_is_chosen_for_the_roce_devices_that_libraries_are_told_of(facts: Facts) -> None:
    devices = tuple(
        replace(it, ports=tuple(replace(port, link_layer=LinkLayer.INFINIBAND) for port in it.ports))
        for it in facts.node.devices
    )
    infiniband = replace(facts, node=replace(facts.node, devices=devices))
    for asked, node in (("{count: 1}", infiniband), ("{count: 1, use: storage}", facts)):
        assert not any(it.chooses_gid for it in explain(pod(f"[{asked}]"), node).containers)
    trainer, sidecar = explain(pod("[{count: 1, containers: [trainer]}]"), facts).containers
    assert (trainer.chooses_gid, sidecar.chooses_gid) == (True, False)


def test_a_limit_that_the_runtime_would_lose_is_refused_as_the_daemon_does(facts: Facts) -> None:
    old = replace(facts, memlock_dropped_by="containerd v1.7.6")
    explanation = explain(pod("[{memlock: 65536}]"), old)
    assert explanation.refusal is not None
    assert explanation.refusal.code is ErrorCode.RUNTIME_TOO_OLD
    assert explain(pod("1"), old).refusal is None


@pytest.mark.parametrize(
    ("asked", "where"),
    [
        (pod("[{containers: [trainr]}]"), f"{PREFIX}/pod[0].containers"),
        (pod("1", key=f"{PREFIX}/container.trainr"), f"{PREFIX}/container.trainr"),
        (pod("", key=f"{PREFIX}/container.trainr"), f"{PREFIX}/container.trainr"),
    ],
)
def test_a_container_that_the_pod_does_not_have_is_refused(facts: Facts, asked: PodManifest, where: str) -> None:
    refusal = explain(asked, facts).refusal
    assert isinstance(refusal, RequestError)
    assert refusal.code is ErrorCode.ANNOTATION_VALUE
    assert refusal.where == where
    assert refusal.hint == "write trainer; the containers are sidecar, trainer"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (pod("[{count: 9}]"), ErrorCode.DEVICES_EXHAUSTED),
        (pod("gold"), ErrorCode.POOL_UNKNOWN),
        (pod("1", host_network=True), ErrorCode.HOST_NETWORK),
        (pod("[{limits: {hcaHandles: 1}}]"), ErrorCode.LIMITS_UNSUPPORTED),
        (pod("[{interface: {name: eth0}}]"), ErrorCode.NAME_CONFLICT),
        (pod("[{memlock: unlimited}]"), ErrorCode.MEMLOCK_LIMIT),
        (pod("{"), ErrorCode.ANNOTATION_SYNTAX),
    ],
)
def test_a_refusal_has_the_daemons_code_and_nothing_is_given(facts: Facts, asked: PodManifest, code: ErrorCode) -> None:
    explanation = explain(asked, replace(facts, memlock_ceiling=8 << 20))
    assert explanation.refusal is not None
    assert explanation.refusal.code is code
    assert (given(explanation), explanation.containers, explanation.netdevs) == ([], (), ())


def test_what_the_pod_holds_itself_is_given_back_before(facts: Facts) -> None:
    node = facts.node
    (netdev,) = node.devices[5].netdevs
    devices = tuple(replace(device, netdevs=()) if device.name == "mlx5_5" else device for device in node.devices)
    running = replace(
        facts,
        node=replace(node, devices=devices),
        taken=held(node, "mlx5_5", "default/train-0"),
        away=(Away(owner="default/train-0", device="mlx5_5", netdev=netdev),),
    )
    explanation = explain(pod("[{match: {device: mlx5_5}}]"), running)
    assert explanation.holds == ("mlx5_5",)
    assert [(netdev.host_name, netdev.pod_name) for netdev in explanation.netdevs] == [("rail5", "rdma0")]


def test_what_the_pods_own_processes_have_open_does_not_keep_it_from_starting_anew(facts: Facts) -> None:
    node = facts.node
    opened = replace(node.devices[5], used_by_some=("process 7 (train.py) has it open",))
    devices = (*node.devices[:5], opened, *node.devices[6:])
    asked = pod("[{match: {device: mlx5_5}, mode: shared}]")
    busy = replace(facts, node=replace(node, devices=devices))
    assert "process 7 (train.py) has it open" in str(explain(asked, busy).refusal)
    shared = {opened.id: frozenset({Holding(owner="default/train-0", mode=Mode.SHARED)})}
    assert explain(asked, replace(busy, taken=shared)).refusal is None


# Manifests


def workload(kind: str, *path: str) -> dict[str, Any]:
    template: dict[str, Any] = {"metadata": {"annotations": {"a": "b"}}, "spec": {"containers": [{"name": "c"}]}}
    for key in reversed(path):
        template = {key: template}
    return {"kind": kind, "metadata": {"name": "w", "namespace": "prod"}, **template}


@pytest.mark.parametrize(
    "document",
    [
        workload("Deployment", "spec", "template"),
        workload("Job", "spec", "template"),
        workload("StatefulSet", "spec", "template"),
        workload("DaemonSet", "spec", "template"),
        workload("CronJob", "spec", "jobTemplate", "spec", "template"),
        workload("PodTemplate", "template"),
    ],
)
def test_the_pod_of_a_workload_is_found(document: dict[str, Any]) -> None:
    (found,) = read_pods(document, "w.yaml")
    assert (found.kind, str(found), found.annotations) == (document["kind"], "prod/w", {"a": "b"})
    assert [container.name for container in found.containers] == ["c"]


def test_the_items_of_a_list_are_read() -> None:
    items = [workload("Job", "spec", "template"), {"kind": "Service"}, workload("Job", "spec", "template")]
    assert len(read_pods({"kind": "List", "items": items}, "w.yaml")) == 2


@pytest.mark.parametrize("document", [None, 3, [], "text", {"kind": "Service"}, {}])
def test_what_is_no_workload_has_no_pod(document: object) -> None:
    assert read_pods(document, "w.yaml") == ()


def test_init_containers_are_containers_of_the_pod() -> None:
    spec = {"initContainers": [{"name": "i"}], "containers": [{"name": "c", "securityContext": {"privileged": True}}]}
    (found,) = read_pods({"kind": "Pod", "spec": {**spec, "hostNetwork": True}}, "w.yaml")
    assert [(it.name, it.privileged) for it in found.containers] == [("i", False), ("c", True)]
    assert found.host_network


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"kind": "Pod", "metadata": {"annotations": {"a": 1}}}, "w.yaml.metadata.annotations"),
        ({"kind": "Pod", "metadata": {"annotations": {True: "x"}}}, "w.yaml.metadata.annotations"),
        ({"kind": "Pod", "metadata": [1]}, "w.yaml.metadata"),
        ({"kind": "Pod", "spec": {"containers": {"name": "c"}}}, "w.yaml.spec.containers"),
        ({"kind": "Pod", "spec": {"containers": ["c"]}}, "w.yaml.spec.containers[0]"),
        ({"kind": "Job", "spec": 3}, "w.yaml.spec"),
        ({"kind": "List", "items": 3}, "w.yaml.items"),
    ],
)
def test_what_kubernetes_would_not_take_is_refused_with_its_place(document: dict[str, Any], where: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_pods(document, "w.yaml")
    assert caught.value.where == where


def test_a_resource_that_only_the_scheduler_counts_makes_no_container_one_with_devices_of_the_kubelet(
    facts: Facts,
) -> None:
    counting = ContainerManifest(name="trainer", resources=((f"{PREFIX}/nic", "2"),))
    counted = replace(pod("2"), containers=(counting, ContainerManifest(name="sidecar")))
    told = replace(facts, kubelet_tells=True)
    assert [bool(item.char_devices) for item in explain(counted, told).containers] == [True, True]
    plugged = replace(counted, containers=(replace(counting, resources=(("rdma/nic", "2"),)), counted.containers[1]))
    assert [bool(item.char_devices) for item in explain(plugged, told).containers] == [True, False]


@pytest.mark.parametrize(
    ("tells", "note"),
    [
        (
            True,
            "0 is one word: here it is for trainer only, the containers to which the kubelet gives devices; where the"
            " daemon does not ask the kubelet, it is for every container. {count: 2, containers: [trainer]} is the"
            " same everywhere.",
        ),
        (
            False,
            "0 is one word: here it is for every container; where the daemon asks the kubelet, it is for trainer only,"
            " the containers to which the kubelet gives devices. {count: 2, containers: [trainer]} is the same"
            " everywhere.",
        ),
    ],
)
def test_a_request_of_one_word_whose_containers_depend_on_the_node_has_a_note(
    tells: bool, note: str, facts: Facts
) -> None:
    trainer = ContainerManifest(name="trainer", resources=(("example.com/fpga", "1"),))
    some = replace(pod("2"), containers=(trainer, ContainerManifest(name="sidecar")))
    here = replace(facts, kubelet_tells=tells)
    assert explain(some, here).notes == (f"Request {note}",)
    for same_everywhere in (
        pod("2"),  # no container has devices of the kubelet
        replace(some, containers=(trainer,)),
        replace(some, annotations={f"{PREFIX}/pod": "{count: 2}"}),
    ):
        assert explain(same_everywhere, here).notes == ()


def test_addresses_that_several_pods_would_have_are_noted(facts: Facts) -> None:
    one = pod("{mode: exclusive, interface: {addresses: [10.0.0.2/24]}}")
    assert explain(one, facts).notes == ()
    (note,) = explain(replace(one, kind="Deployment", is_of_several=True), facts).notes
    assert note.startswith("Every pod of this Deployment would have the same addresses (")


SERVICES = Lifelines(service_range=(ip_network("10.96.0.0/12"),), api_server=ip_address("10.96.0.1"))


def test_what_stays_on_the_host_is_told_with_its_reason(facts: Facts) -> None:
    """The route that covers the service range, and the rule that names a link of the host."""
    explained = explain(pod("{mode: exclusive}"), facts).netdevs
    (netdev,) = next(it for it in facts.node.devices if it.name == explained[0].device).netdevs
    route = Captured(text="10.0.0.0/8 type 1 proto 3 scope 0 tos 0 via 10.9.0.9 table 254", raw=b"", kernel_made=False)
    own = Captured(text="10.9.0.1/24 peer 10.9.0.1 scope 0 flags 0x80", raw=b"", kernel_made=False)
    link = replace(_link(netdev), addresses=(own,), routes=(route,))
    rule = RoutingRule(version=4, priority=9, table=7, source=ip_network("10.9.0.1/32"), iif="eth7")
    host = HostNetwork(carried={link.ifindex: link}, rules=(KnownRule(rule=rule),))
    explanation = explain(pod("{mode: exclusive}"), replace(facts, host=host, lifelines=SERVICES))
    left_out = (
        f"the rule {rule}: it names the host's link eth7",
        "the route 10.0.0.0/8 via 10.9.0.9: it covers the service range 10.96.0.0/12",
    )
    assert explanation.netdevs == (replace(explained[0], left_out=left_out),)
    (alone,) = explain(pod("{mode: exclusive, interface: {inherit: false}}"), replace(facts, host=host)).netdevs
    assert (alone.left_out, explained[0].left_out) == ((), None)


def test_routes_of_the_request_that_cover_the_cluster_network_are_noted(facts: Facts) -> None:
    text = "{mode: exclusive, interface: {addresses: [10.9.0.2/24]}, routes: [{destination: %s, gateway: 10.9.0.9}]}"
    right = Rule(name="routes", where="here", interface=frozenset({InterfaceRight.ADDRESSES, InterfaceRight.ROUTES}))
    policy = policy_of((*facts.policy.pools.values(),), (right,), allow_default_pool=False)
    granted = replace(facts, policy=policy, lifelines=SERVICES)
    explanation = explain(pod(text % "10.0.0.0/8"), granted)
    assert explanation.refusal is None
    assert explanation.notes == (
        "The route 10.0.0.0/8 via 10.9.0.9 covers the service range 10.96.0.0/12, the API server 10.96.0.1: as asked,"
        f" the pod reaches that over the netdev ({PREFIX}/pod).",
    )
    assert explain(pod(text % "10.9.0.0/16"), granted).notes == ()


def test_shares_are_placed_as_the_daemon_would_and_those_that_others_have_count(facts: Facts) -> None:
    pool = Pool(
        name="hcas", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource="rdma/hca", shares=16, gives=ShareGives.ONE
    )
    policy = policy_of((pool,), (), allow_default_pool=False)
    first = facts.node.devices[0].id
    others = [Holding(owner=f"ns/{it}", mode=Mode.SHARED, shares=frozenset({f"hcas-{it:02}"})) for it in range(2)]
    taken = {first: frozenset(others)}
    asked = replace(
        pod(""),
        annotations={},
        containers=(
            ContainerManifest(name="trainer", resources=(("rdma/hca", "2"), ("rdma/other", "1"))),
            ContainerManifest(name="sidecar"),
        ),
    )
    explanation = explain(asked, replace(facts, policy=policy, taken=taken))
    assert given(explanation) == ["mlx5_1", "mlx5_2"]
    assert why(explanation)["mlx5_0"] == "with all of its 2 shares given"
    trainer, sidecar = explanation.containers
    assert trainer.env["RDMA_DEVICES_HCA"] == "mlx5_1,mlx5_2"
    assert of_explained(sidecar) == NOTHING


def test_what_a_share_may_have_of_its_device_is_shown_with_the_reason(facts: Facts) -> None:
    pool = Pool(name="hcas", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource="rdma/hca", shares=64)
    first, second, *_ = facts.node.devices
    problem = {second.id: "Failed to open device"}
    known = replace(
        facts.node, rdma_cgroup=True, capacities={first.id: RdmaCapacity(qp=131072)}, capacity_problems=problem
    )
    policy = policy_of((pool,), (), allow_default_pool=False)
    trainer = ContainerManifest(name="trainer", resources=(("rdma/hca", "2"),))
    explanation = explain(
        replace(pod(""), annotations={}, containers=(trainer,)), replace(facts, node=known, policy=policy)
    )
    assert explanation.notes == (
        "A share of pool hcas: hca_handle=113 hca_object=14563 (131072 qp among 8 shares and the host), on mlx5_0.",
        "A share of pool hcas: no limits (Failed to open device), on mlx5_1.",
    )
    (container,) = explanation.containers
    assert container.unified == {"rdma.max": "mlx5_0 hca_handle=113 hca_object=14563"}


def test_two_containers_with_shares_of_one_pool_have_a_table_each(facts: Facts) -> None:
    pool = Pool(name="hcas", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource="rdma/hca", shares=16)
    policy = policy_of((pool,), (), allow_default_pool=False)
    both = tuple(ContainerManifest(name=name, resources=(("rdma/hca", "1"),)) for name in ("one", "two"))
    explanation = explain(replace(pod(""), annotations={}, containers=both), replace(facts, policy=policy))
    tables = [
        {it.device: ("given" if it.given else it.why) for it in request.candidates} for request in explanation.requests
    ]
    first, second = given(explanation)
    assert [it.env["RDMA_DEVICES_HCA"] for it in explanation.containers] == [first, second]
    assert (tables[0][first], tables[1][second]) == ("given", "given")
    assert tables[0][second] == "given to request hca (rdma/hca of two) of this pod"
    assert tables[1][first] == "given to request hca (rdma/hca of one) of this pod"
    assert [len(request.candidates) for request in explanation.requests] == [8, 8]


def test_a_device_that_two_requests_share_is_one_row_of_each(facts: Facts) -> None:
    pool = Pool(name="hcas", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource="rdma/hca", shares=16)
    policy = policy_of((pool,), (), allow_default_pool=False)
    both = tuple(ContainerManifest(name=name, resources=(("rdma/hca", "5"),)) for name in ("one", "two"))
    explanation = explain(replace(pod(""), annotations={}, containers=both), replace(facts, policy=policy))
    assert len(set(given(explanation))) == 8
    assert [sorted(it.device for it in request.candidates) for request in explanation.requests] == [
        [f"mlx5_{number}" for number in range(8)]
    ] * 2


@pytest.mark.parametrize("number", ["0", "-1", "1.5", "", "all", "\u0661"])
def test_a_resource_that_is_no_number_of_shares_is_none(facts: Facts, number: str) -> None:
    pool = Pool(name="hcas", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource="rdma/hca", shares=16)
    asked = replace(
        pod(""), annotations={}, containers=(ContainerManifest(name="a", resources=(("rdma/hca", number),)),)
    )
    policy = policy_of((pool,), (), allow_default_pool=False)
    assert explain(asked, replace(facts, policy=policy)).requests == ()


def test_of_a_pool_of_devices_free_ones_that_go_well_together_are_shown_and_too_few_are_refused(facts: Facts) -> None:
    pool = Pool(
        name="nics", modes=(Mode.EXCLUSIVE,), door=PoolDoor.RESOURCE, resource="rdma/nic", gives=ShareGives.DEVICE
    )
    ids = [device.id for device in facts.node.devices]
    others = {
        it: frozenset({Holding(owner="ns/other", mode=Mode.EXCLUSIVE, shares=frozenset({str(it)}), is_sole=True)})
        for it in ids[:3]
    }
    facts = replace(facts, policy=policy_of((pool,), (), allow_default_pool=False), taken=others)

    def asking(*numbers: str) -> PodManifest:
        containers = (
            ContainerManifest(name=f"c{at}", resources=(("rdma/nic", number),)) for at, number in enumerate(numbers)
        )
        return replace(pod(""), annotations={}, containers=tuple(containers))

    explanation = explain(asking("2", "1"), facts)
    assert explanation.refusal is None
    assert [it.env["RDMA_DEVICES_NIC"] for it in explanation.containers] == ["mlx5_4,mlx5_5", "mlx5_3"]
    shown = [[it.device for it in request.candidates if it.given] for request in explanation.requests]
    assert shown == [["mlx5_3"], ["mlx5_4"], ["mlx5_5"]]
    refused = explain(asking("6"), facts).refusal
    assert refused is not None
    assert str(refused).startswith("nri-rdma: DEVICE-IN-USE: mlx5_0 is held by pod ns/other")
    assert str(explain(asking("8", "1"), replace(facts, taken={})).refusal) == (
        "nri-rdma: DEVICES-EXHAUSTED: asked more rdma/nic than the 8 that the node has, so that no scheduler chooses"
        " it, rdma/nic of c0, c1. Next: ask for at most 8."
    )


def test_more_shares_than_the_node_has_are_refused(facts: Facts) -> None:
    pool = Pool(name="hcas", modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource="rdma/hca", shares=9)
    facts = replace(facts, policy=policy_of((pool,), (), allow_default_pool=False))
    assert explain(initialized("rdma/hca", "9", "9"), facts).refusal is None
    refused = explain(initialized("rdma/hca", "10", "1"), facts).refusal
    assert refused is not None
    assert refused.what.startswith("asked more rdma/hca than the 9 that the node has,")


@pytest.mark.parametrize(("gpus", "count"), [(1, 2), (3, 6)])
def test_devices_per_gpu_are_as_many_as_the_gpus_of_the_manifest_need(facts: Facts, gpus: int, count: int) -> None:
    asking = pod("{perGPU: 2}")
    container = ContainerManifest(name="main", resources=(("nvidia.com/gpu", str(gpus)),))
    assert len(given(explain(replace(asking, containers=(container,)), facts))) == count
    refused = explain(replace(asking, containers=(ContainerManifest(name="main"),)), facts).refusal
    assert refused is not None
    assert refused.code is ErrorCode.NOT_ALIGNED


def test_devices_for_each_gpu_of_a_claim_cannot_be_told(facts: Facts) -> None:
    """The kubelet reports the GPUs of claims, and the manifest does not say how many they are."""
    asking = replace(pod("{perGPU: 2}"), containers=(ContainerManifest(name="main", claims=("gpus",)),))
    told = explain(asking, facts)
    assert (told.refusal, told.undetermined) == (None, True)
    assert "Claim gpus of container main does not say which GPUs it has" in " ".join(told.notes)
    gpus = {"main": KnownGpus(gpus=tuple(gpu.pci for gpu in facts.node.gpus[:2]), source="--gpu")}
    assert len(given(explain(asking, replace(facts, gpus=gpus)))) == 4
    assert explain(asking, replace(facts, gpus_are_reported=False)).refusal is not None


@pytest.mark.parametrize("annotation", ["{perGPU: 1}", "{align: {to: gpu, strict: true}}"])
def test_a_mig_device_names_no_gpu_as_on_the_node(facts: Facts, annotation: str) -> None:
    container = ContainerManifest(name="main", resources=(("nvidia.com/mig-1g.10gb", "2"),))
    asking = replace(pod(annotation), containers=(container,))
    refused = explain(asking, facts).refusal
    assert refused is not None
    assert refused.code is ErrorCode.NOT_ALIGNED
    assert "nvidia.com/mig-1g.10gb of container main is a part of a GPU" in refused.what
    named = {"main": KnownGpus(gpus=(facts.node.gpus[0].pci,), source="--gpu")}
    assert len(given(explain(asking, replace(facts, gpus=named)))) == 1


def initialized(resource: str, first: str, then: str) -> PodManifest:
    """A pod whose init container and whose only other container ask for so many of a resource."""
    kinds = (("init", first, ("spec", "initContainers", 0)), ("main", then, ("spec", "containers", 0)))
    containers = tuple(
        ContainerManifest(name=name, resources=((resource, number),), way=way) for name, number, way in kinds
    )
    return replace(pod(""), annotations={}, containers=containers)


@pytest.mark.parametrize("gives", [ShareGives.ONE, ShareGives.DEVICE])
@pytest.mark.parametrize(("first", "then", "devices"), [("1", "1", 1), ("2", "1", 2), ("1", "2", 2)])
def test_what_an_init_container_has_is_given_again_to_the_container_after_it(
    facts: Facts, gives: ShareGives, first: str, then: str, devices: int
) -> None:
    """As docs/configuration.md says; the kubelet allocates the same ids again."""
    shared = gives is ShareGives.ONE
    few = Pool(
        name="nics",
        modes=(Mode.SHARED if shared else Mode.EXCLUSIVE,),
        door=PoolDoor.RESOURCE,
        resource="rdma/nic",
        gives=gives,
        shares=devices if shared else 0,
    )
    told = explain(
        initialized("rdma/nic", first, then), replace(facts, policy=policy_of((few,), (), allow_default_pool=False))
    )
    assert told.refusal is None
    assert len(set(given(told))) <= devices
    assert [len(it.env["RDMA_DEVICES_NIC"].split(",")) for it in told.containers] == [int(first), int(then)]


def test_gpus_of_an_init_container_are_not_counted_again(facts: Facts) -> None:
    told = explain(
        replace(initialized("nvidia.com/gpu", "2", "2"), annotations={PREFIX: "[{perGPU: 1}]"}),
        replace(facts, gpus_are_reported=True),
    )
    assert len(given(told)) == 2


def test_one_word_is_for_no_init_container_of_a_gpu_job_because_the_kubelet_reports_none(facts: Facts) -> None:
    asked = replace(initialized("nvidia.com/gpu", "1", "1"), annotations={PREFIX: "1"})
    told = explain(asked, replace(facts, kubelet_tells=True))
    assert [(it.name, bool(it.char_devices)) for it in told.containers] == [("init", False), ("main", True)]
    assert "it is for main only" in " ".join(told.notes)

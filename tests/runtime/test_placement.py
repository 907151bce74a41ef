"""NICs next to the GPUs that a kubelet gave, on real runtimes. The kubelet answers over gRPC, or does not as it should.

What is next to what is told by the node's description, and which NIC a pod has by `ip` in its namespace.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import described_root, look, tree_number
from tests.rig.fabric import Fabric
from tests.rig.kubelet import PATIENT, Claim, Claimed, FakeKubelet, Given, Mode, message, pod_message
from tests.rig.node import Netdev, Node
from tests.rig.podworker import run_insistently
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

POD = "rdma.noderesource.dev/pod"
ONE, THREE = {POD: "1"}, {POD: "3"}
STRICT = {POD: "[{align: {to: gpu, strict: true}}]"}
NAMED = "[{match: {device: mlx5_0}, align: {to: gpu, strict: true}}]"
NVIDIA, AMD = "nvidia.com/gpu", "amd.com/gpu"
NVIDIA_MAJOR = 195
GIVEN_ORDER = (5, 2, 7, 0, 3, 6, 1, 4)
"""In which a kubelet gives the node's GPUs away."""


@pytest.fixture(scope="module")
def kubelet() -> Iterator[FakeKubelet]:
    with FakeKubelet() as running:
        yield running


@pytest.fixture(scope="module")
def told(runtime: Runtime, node: Fabric, kubelet: FakeKubelet) -> Iterator[Daemon]:
    """A daemon that a kubelet tells what it allocates."""
    with Daemon(runtime, node, kubelet=kubelet.socket, extra=(*EXCLUSIVE_FIRST, *PATIENT)) as running:
        wait_until(
            lambda: "kubelet reports" in running.log, lambda: f"the kubelet to be asked; its log:\n{running.log}", 10
        )
        yield running


@pytest.fixture
def gave(kubelet: FakeKubelet, told: Daemon) -> Iterator[FakeKubelet]:
    """That kubelet; after the test it is there, answers and has no pods."""
    yield kubelet
    kubelet.mode = Mode.ANSWERS
    kubelet.payloads.clear()
    kubelet.pods.clear()
    if not kubelet.socket.exists():
        kubelet.start()


def gpu(node: Fabric, number: int) -> str:
    """The PCI address of one of the node's GPUs, which are described in PCI order."""
    return node.node.gpus[number].function


def uuid(node: Fabric, number: int) -> str:
    return node.node.gpus[number].uuid


def allocate(kubelet: FakeKubelet, pod: str, *ids: str, resource: str = NVIDIA) -> None:
    kubelet.add_pod("default", pod, Given(name="sidecar"), Given(name="trainer", resources={resource: ids}))


def nics(cri: Cri, pod: Sandbox, node: Node, count: int = 1) -> list[Netdev]:
    """The netdevs of the node that are in a pod, by their MACs, as soon as they are so many."""
    netns = cri.pod_status(pod).netns
    assert netns is not None
    by_mac = {netdev.mac: netdev for netdev in node.netdevs}

    def found() -> list[Netdev] | None:
        command = ["nsenter", f"--net={netns}", "ip", "-j", "link", "show"]
        shown = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        inside = [by_mac[link["address"]] for link in shown if link["address"] in by_mac]
        return inside if len(inside) == count else None

    return wait_until(found, f"{count} NICs in pod {pod.name}")


def nic(cri: Cri, pod: Sandbox, node: Node) -> Netdev:
    (netdev,) = nics(cri, pod, node)
    return netdev


def is_next_to(node: Node, netdev: Netdev, function: str) -> bool:
    """Whether both are below one root of the described node."""
    return described_root(node, netdev.function) == described_root(node, function)


def socket_of(node: Node, function: str) -> int:
    """The NUMA node of a described function."""
    return next(it.numa_node for it in node.functions if it.address == function)


def sockets_of(node: Node, netdevs: list[Netdev]) -> set[int]:
    return {socket_of(node, netdev.function) for netdev in netdevs}


def refusal(cri: Cri, name: str, annotations: dict[str, str]) -> str:
    with pytest.raises(CriError) as refused:
        cri.run_pod(name, annotations=annotations)
    return refused.value.text


def spans(daemon: Daemon, pod: str) -> dict[str, dict[str, Any]]:
    """The attributes of what the daemon did for a pod, by the step's name."""
    done = daemon.cli("trace", f"default/{pod}", "-o", "json")
    assert done.returncode == 0, done.stderr
    return {span["name"]: span["attributes"] for span in json.loads(done.stdout)["spans"]}


def test_eight_pods_have_the_nics_next_to_their_gpus_and_the_ninth_is_told_what_is_left(
    host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, told: Daemon
) -> None:
    pods: dict[int, Sandbox] = {}
    for number in GIVEN_ORDER:
        allocate(gave, f"job-{number}", uuid(node, number))
        asked = STRICT if number == GIVEN_ORDER[-1] else ONE
        pods[number] = cri.run_pod(f"job-{number}", annotations=asked)
    got = {number: nic(cri, pod, node.node) for number, pod in pods.items()}
    assert len({netdev.name for netdev in got.values()}) == len(node.node.gpus) == 8
    assert [number for number in got if not is_next_to(node.node, got[number], gpu(node, number))] == [], told.log
    full = refusal(cri, "ninth", ONE)
    assert "nri-rdma: DEVICES-EXHAUSTED: asked 1, free 0 of 8 devices of pool default" in full
    assert full.count("is held by another pod") == len(pods)
    assert all(f"is held by pod default/job-{number}" in told.log for number in pods)
    cri.delete_pod(pods[4])  # its NIC is left, on another socket than the GPU of the next one
    allocate(gave, "ninth", uuid(node, 0))
    left = f"NOT-ALIGNED: not aligned to gpu: the nearest free device to GPU {gpu(node, 0)} is mlx5_4 (SYS, elsewhere)"
    assert f"nri-rdma: {left}; mlx5_0 is held by another pod" in refusal(cri, "ninth", STRICT)


def test_a_pod_has_a_nic_for_each_of_its_gpus_however_many_these_are_but_none_that_it_excludes(
    host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, told: Daemon
) -> None:
    each = {POD: "{perGPU: 1, mode: exclusive, match: {exclude: {device: mlx5_7}}}"}
    allocate(gave, "three", *(uuid(node, number) for number in (1, 4, 6)))
    got = nics(cri, cri.run_pod("three", annotations=each), node.node, 3)
    for number in (1, 4, 6):
        assert any(is_next_to(node.node, netdev, gpu(node, number)) for netdev in got), told.log
    allocate(gave, "last", uuid(node, 7))
    other = nic(cri, cri.run_pod("last", annotations=each), node.node)
    assert not is_next_to(node.node, other, gpu(node, 7))
    assert "perGPU counts the GPUs of the containers: no GPU is known" in refusal(cri, "without", each)


def test_the_container_with_the_gpu_has_the_nic_and_the_trace_says_who_told(
    host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, told: Daemon
) -> None:
    allocate(gave, "traced", uuid(node, 6))
    pod = cri.run_pod("traced", annotations=ONE)
    seen = look(cri, cri.run_container(pod, "trainer"))
    assert (seen.nodes["uverbs6"], seen.env["NCCL_IB_HCA"]) == (tree_number(node, "uverbs6"), "=mlx5_6")
    assert look(cri, cri.run_container(pod, "sidecar")).nodes == {}
    steps = spans(told, "traced")
    assert (steps["kubelet"]["rdma.gpus"], steps["kubelet"]["rdma.gpus.source"]) == (gpu(node, 6), "the kubelet")
    nearest = f"mlx5_6: nearest free device to GPU {gpu(node, 6)} (PHB, same root complex), told by the kubelet"
    assert steps["place"]["reason"] == nearest


def test_what_a_container_shows_of_its_gpu_is_held_against_what_the_kubelet_told(
    host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, told: Daemon, tmp_path: Path
) -> None:
    allocate(gave, "shown", uuid(node, 1))
    pod = cri.run_pod("shown", annotations=STRICT)
    contradiction = f"show GPU {gpu(node, 6)}, and the kubelet reported {gpu(node, 1)}"
    far = f"nri-rdma: NOT-ALIGNED: not aligned to gpu: mlx5_1 is SYS from GPU {gpu(node, 6)}"
    with pytest.raises(CriError) as refused:
        cri.create_container(pod, "trainer", devices=[nvidia_node(tmp_path, 6)])
    assert f"{far}; its device nodes {contradiction}" in refused.value.text
    with pytest.raises(CriError) as refused:
        cri.create_container(pod, "trainer", env={"NVIDIA_VISIBLE_DEVICES": uuid(node, 6)})
    assert f"{far}; NVIDIA_VISIBLE_DEVICES {contradiction}" in refused.value.text
    container = cri.run_container(pod, "trainer", devices=[nvidia_node(tmp_path, 1)])
    assert look(cri, container).nodes["uverbs1"] == tree_number(node, "uverbs1")
    (aligned,) = told.status()["alignment"]
    assert (aligned["container"], aligned["gpus"], aligned["words"]) == ("trainer", [gpu(node, 1)], "aligned: PHB")


def holders(daemon: Daemon) -> dict[str, int]:
    """How many pods have each device, by `status`."""
    return {device["name"]: len(device["holders"]) for device in daemon.status()["devices"]}


def test_sixteen_pods_that_share_are_two_on_each_of_eight_nics(
    host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, told: Daemon
) -> None:
    for number in range(16):
        cri.run_pod(f"sharing-{number}", annotations={POD: "[{mode: shared}]"})
    assert holders(told) == {f"mlx5_{number}": 2 for number in range(8)}


@pytest.fixture
def without_port(node: Fabric, told: Daemon) -> Iterator[None]:
    """The port of mlx5_0 is down while the daemon reads the node, and active afterwards."""
    state = node.sysfs / "class/infiniband/mlx5_0/ports/1/state"
    active = state.read_text()
    told.stop()
    state.write_text("1: DOWN\n")
    told.start()
    yield
    told.stop()
    state.write_text(active)
    told.start()


def test_nobody_is_on_the_nic_whose_port_is_down_until_it_is_the_only_one(
    without_port: None, host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, told: Daemon
) -> None:
    pods = [cri.run_pod(f"sharing-{number}", annotations={POD: "[{mode: shared}]"}) for number in range(8)]
    assert holders(told) == {"mlx5_0": 0, "mlx5_1": 2} | {f"mlx5_{number}": 1 for number in range(2, 8)}
    for pod in pods:
        cri.delete_pod(pod)
    allocate(gave, "near", uuid(node, 0))
    assert "mlx5_0 is without an active port: its port is DOWN" in refusal(cri, "near", {POD: NAMED})
    for number in range(1, 8):
        cri.run_pod(f"alone-{number}", annotations=ONE)
    assert holders(told) == {"mlx5_0": 0} | {f"mlx5_{number}": 1 for number in range(1, 8)}
    cri.run_pod("near", annotations=ONE)
    assert holders(told)["mlx5_0"] == 1
    assert spans(told, "near")["place"]["reason"].endswith("told by the kubelet; its port is DOWN")


def test_a_pod_with_cpus_of_its_own_gets_a_nic_of_their_socket(
    host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, told: Daemon
) -> None:
    cpu = node.node.cpus_per_socket + 2  # of the second socket
    gave.add_pod("default", "pinned", Given(name="trainer", cpus=(cpu, cpu + 1)))
    asked = {POD: "[{align: {to: numa, strict: true}}]"}
    pod = cri.run_pod("pinned", annotations=asked)
    assert sockets_of(node.node, nics(cri, pod, node.node)) == {1}
    gave.add_pod("default", "floating", Given(name="trainer"))
    assert "NOT-ALIGNED: not aligned to numa: there is nothing to be near to" in refusal(cri, "floating", asked)


def nvidia_node(folder: Path, minor: int) -> str:
    """A device file with the numbers that NVIDIA's driver has for a GPU."""
    path = folder / f"nvidia{minor}"
    os.mknod(path, 0o020666, os.makedev(NVIDIA_MAJOR, minor))
    return str(path)


@pytest.mark.parametrize(
    ("resource", "number"), [(NVIDIA, 3), (AMD, 2)], ids=["by NVIDIA's index", "by AMD's PCI address"]
)
def test_device_plugins_have_other_names_for_a_gpu(
    host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, resource: str, number: int
) -> None:
    device_id = str(number) if resource == NVIDIA else gpu(node, number)
    allocate(gave, "named", device_id, resource=resource)
    pod = cri.run_pod("named", annotations=STRICT)
    assert is_next_to(node.node, nic(cri, pod, node.node), gpu(node, number))


@pytest.fixture
def claimed(runtime: Runtime, node: Fabric) -> Iterator[str]:
    """The CDI device of a claim for GPU 3, as a DRA driver writes it: the device file is known by its path."""
    kind, device = "k8s.gpu.nvidia.com/claim", "8d4e-gpu-3"
    nodes = [{"path": f"/dev/{name}"} for name in ("nvidiactl", f"nvidia{node.node.gpus[3].minor}")]
    path = runtime.cdi_dir / f"k8s.gpu.nvidia.com-claim_{device}.json"
    beside = path.with_suffix(".tmp")
    devices = [{"name": device, "containerEdits": {"deviceNodes": nodes}}]
    beside.write_text(json.dumps({"cdiVersion": "0.6.0", "kind": kind, "devices": devices}))
    beside.rename(path)
    yield f"{kind}={device}"
    path.unlink()


def test_the_gpu_of_a_claim_is_known_by_the_device_files_in_its_spec(
    host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, claimed: str
) -> None:
    gpu_of_claim = Claimed(driver="gpu.nvidia.com", pool="node", device="gpu-3", cdi=(claimed,))
    claim = Claim(namespace="default", name="one-gpu", devices=(gpu_of_claim,))
    gave.add_pod("default", "claiming", Given(name="trainer", claims=(claim,)))
    pod = cri.run_pod("claiming", annotations=STRICT)
    assert is_next_to(node.node, nic(cri, pod, node.node), gpu(node, 3))


def hangs(kubelet: FakeKubelet, _node: Fabric) -> str:
    kubelet.mode = Mode.HANGS
    return "the kubelet did not report the pod's devices: no answer within 1000 ms (KUBELET-LATE)"


def fails(kubelet: FakeKubelet, _node: Fabric) -> str:
    kubelet.mode = Mode.FAILS
    return "the kubelet's answer cannot be used: it is the error INTERNAL (KUBELET-ANSWER)"


def tells_of_another_pod(kubelet: FakeKubelet, node: Fabric) -> str:
    other = Given(name="trainer", resources={NVIDIA: (uuid(node, 7),)})
    kubelet.payloads["Get"] = message(1, pod_message("default", "other", [other]))
    return "the kubelet's answer cannot be used: it is about default/other (KUBELET-ANSWER)"


def names_an_unknown_gpu(kubelet: FakeKubelet, _node: Fabric) -> str:
    stranger = "GPU-00000000-1111-2222-3333-444444444444"
    kubelet.pods.clear()
    for pod in ("wary", "easy"):
        allocate(kubelet, pod, stranger)
    return f"{NVIDIA} {stranger} of container trainer is no GPU that this node is known to have"


@pytest.mark.parametrize("trouble", [hangs, fails, tells_of_another_pod, names_an_unknown_gpu])
def test_while_the_gpus_are_not_known_strict_is_refused_and_others_have_nics_of_one_socket(
    host_equal: None,
    node: Fabric,
    cri: Cri,
    gave: FakeKubelet,
    told: Daemon,
    trouble: Callable[[FakeKubelet, Fabric], str],
) -> None:
    for pod in ("wary", "easy"):
        allocate(gave, pod, uuid(node, 7))
    why = trouble(gave, node)
    assert f"nri-rdma: NOT-ALIGNED: not aligned to gpu: {why}" in refusal(cri, "wary", STRICT)
    sandbox = cri.run_pod("easy", annotations=THREE)
    assert len(sockets_of(node.node, nics(cri, sandbox, node.node, 3))) == 1
    steps = spans(told, "easy")
    assert steps["kubelet"]["rdma.gpus.problem"] == why
    assert steps["place"]["reason"].count(f"on NUMA node 0; {why}") == 3


def test_a_kubelet_that_contradicts_the_annotation_is_told_to_who_is_strict_and_believed_for_others(
    host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, told: Daemon
) -> None:
    own, given = gpu(node, 1), gpu(node, 6)
    for pod in ("wary", "easy"):
        allocate(gave, pod, uuid(node, 6))
    why = f"the kubelet says that the pod has GPU {given}, the request says {own}"
    strict = {POD: f'[{{gpus: ["{own}"], align: {{to: gpu, strict: true}}}}]'}
    assert f"nri-rdma: NOT-ALIGNED: not aligned to gpu: {why}" in refusal(cri, "wary", strict)
    sandbox = cri.run_pod("easy", annotations={POD: f'[{{gpus: ["{own}"]}}]'})
    assert sockets_of(node.node, nics(cri, sandbox, node.node)) == {socket_of(node.node, given)}
    assert spans(told, "easy")["place"]["reason"].endswith(f"on NUMA node 1; {why}")


def test_a_kubelet_that_is_not_there_is_asked_when_it_comes_and_when_it_comes_again(
    host_equal: None, node: Fabric, cri: Cri, gave: FakeKubelet, told: Daemon
) -> None:
    told.stop()
    gave.stop()
    told.start()
    for pod in ("first", "second", "third"):
        allocate(gave, pod, uuid(node, 5))
    assert "NOT-ALIGNED: not aligned to gpu: the pod's GPUs are not known" in refusal(cri, "first", STRICT)
    pair = cri.run_pod("unasked", annotations={POD: "[{count: 3, align: gpu}]"})
    assert len(sockets_of(node.node, nics(cri, pair, node.node, 3))) == 1
    assert spans(told, "unasked")["place"]["reason"].count("on NUMA node 0; no GPU is known") == 3
    gave.start()
    first = run_insistently(cri, "first", STRICT, "NOT-ALIGNED")
    assert is_next_to(node.node, nic(cri, first, node.node), gpu(node, 5))
    cri.delete_pod(first)
    gave.stop()
    gone = refusal(cri, "second", STRICT)
    assert "NOT-ALIGNED: not aligned to gpu: the kubelet cannot be asked at" in gone
    assert "(KUBELET-UNREACHABLE)" in gone
    gave.start()
    third = run_insistently(cri, "third", STRICT, "NOT-ALIGNED")
    assert is_next_to(node.node, nic(cri, third, node.node), gpu(node, 5))

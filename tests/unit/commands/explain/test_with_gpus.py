"""`nri-rdma explain` says of every node we have, for the examples of the documentation, which NIC and why.

What is nearest is computed here from the node's description, by the names of its bridges alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.node import NODES, Function, Node, load
from tests.rig.systree import build_proc, build_tree
from tests.unit.commands.cli.program import assert_one_error, nri_rdma

EXAMPLES = Path(__file__).resolve().parents[4] / "docs/examples"
NAMES = sorted(path.stem for path in NODES.glob("*.toml") if path.stem != "lab-systemd")  # its hardware is lab-small's
ORDER = ("PIX", "PXB", "PHB", "NODE", "SYS")
CLAIM = "dra.example.com/nic=claim-1"
CLAIMING = """kind: Pod
metadata: {name: claiming}
spec:
  resourceClaims: [{name: nic, resourceClaimName: of-another-driver}]
  containers: [{name: trainer, resources: {claims: [{name: nic}]}}]
"""


def _way(node: Node, address: str) -> list[str]:
    """Root, bridges, function."""
    parents = {function.address: function.under for function in node.functions}
    way = [address]
    while way[0] in parents:
        way.insert(0, parents[way[0]])
    return way


def _far(node: Node, device: str, gpu: str) -> str:
    functions = {function.address: function for function in node.functions}
    own = node.device(device).function or next(
        (netdev.function for netdev in (node.netdev_of(node.device(device)),) if netdev is not None), ""
    )
    if own not in functions:
        return "SYS"
    one, other = _way(node, own), _way(node, gpu)
    if one[0] == other[0]:
        shared = sum(1 for a, b in zip(one, other, strict=False) if a == b)
        if shared == 1:
            return "PHB"
        return "PIX" if max(len(one), len(other)) - shared <= 2 else "PXB"
    return "NODE" if functions[own].numa_node == functions[gpu].numa_node >= 0 else "SYS"


def _gpus(node: Node) -> list[Function]:
    return [it for it in node.functions if it.pci_class.startswith(("0x0302", "0x0380"))]


class Machine:
    """A snapshot of a described node."""

    def __init__(self, name: str, work: Path) -> None:
        self.node = load(name)
        self.gpus = [function.address for function in _gpus(self.node)]
        self._work = work
        build_tree(self.node, work / "sys")
        build_proc(self.node, work / "proc")
        self.file = work / "node.json"
        self._saved = nri_rdma("snapshot", "--sysfs-root", work / "sys", "--proc-root", work / "proc", "-o", self.file)
        assert self._saved.returncode == 0, self._saved.stderr

    def explain(self, example: str | Path, *flags: str | Path, code: int = 0) -> list[dict[str, Any]]:
        """The pods of an example, on this node."""
        where = ("--snapshot", self.file, "--allow-default-pool", "--state-dir", self._work)
        done = nri_rdma("explain", EXAMPLES / example, *where, *flags, "-o", "json")
        assert done.returncode == code, done.stdout + done.stderr
        pods: list[dict[str, Any]] = json.loads(done.stdout)["pods"]
        return pods

    def nearest(self, gpu: str) -> tuple[str, list[str]]:
        """How near the nearest devices are, and which these are, of those that can be given."""
        far = {
            device.name: _far(self.node, device.name, gpu) for device in self.node.rdma if self._is_whole(device.name)
        }
        best = min(far.values(), key=ORDER.index)
        return best, [name for name, own in far.items() if own == best]

    def _is_whole(self, device: str) -> bool:
        """A physical function with virtual ones is nobody's."""
        own = self.node.device(device).function
        return not any(function.address == own and function.sriov_numvfs for function in self.node.functions)


@pytest.fixture(scope="module", params=NAMES)
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    yield Machine(request.param, tmp_path_factory.mktemp(request.param))


def _given(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [it for request in pod["requests"] for it in request["candidates"] if it["given"]]


def test_a_pod_with_a_gpu_gets_the_nearest_and_is_told_why(machine: Machine) -> None:
    for number, gpu in enumerate(machine.gpus):
        (pod,) = machine.explain("aligned-pod.yaml", "--gpu", f"trainer={gpu}")
        (request,), (given,) = pod["requests"], _given(pod)
        far, devices = machine.nearest(gpu)
        assert given["device"] in devices
        assert (given["gpu"], given["distance"]) == (gpu, far)
        assert given["why"].startswith(f"nearest free device to GPU {gpu} ({far}, ")
        assert (request["gpus"], request["gpus_from"], request["gpus_problem"]) == ([gpu], "--gpu", "")
        assert pod["notes"] == []
        if number > 1:
            break  # the others are like these


def test_a_pod_whose_gpu_nobody_names_is_told_so(machine: Machine) -> None:
    (pod,) = machine.explain("aligned-pod.yaml")
    assert pod["notes"] == [
        "Container trainer gets nvidia.com/gpu: 1. The kubelet chooses the GPUs and reports them to the daemon;"
        " here --gpu trainer=ID[,ID] names them, and without it the devices are a guess."
    ]
    (given,) = _given(pod)
    assert (given["gpu"], given["distance"]) == (None, None)
    assert "no GPU is known" in given["why"]


def test_a_strict_ray_worker_gets_the_two_nearest_once_its_gpus_are_named(machine: Machine) -> None:
    is_short = len([it for it in machine.node.rdma if machine._is_whole(it.name)]) < 2
    head, worker = machine.explain("ray-cluster.yaml", code=1 if is_short else 0)
    assert (head["pod"], head["requests"], head["refusal"]) == ("default/training-head", [], None)
    assert (worker["pod"], worker["undetermined"]) == ("default/training-gpus-worker", not is_short)
    assert (worker["refusal"] or {}).get("code") == ("DEVICES-EXHAUSTED" if is_short else None)
    assert _given(worker) == []
    if len(machine.gpus) < 2:
        return
    first, last = machine.gpus[0], machine.gpus[-1]
    (_, worker) = machine.explain("ray-cluster.yaml", "--gpu", f"ray-worker={last},{first}")
    assert [(it["gpu"], it["distance"]) for it in _given(worker)] == [
        (gpu, machine.nearest(gpu)[0]) for gpu in (first, last)
    ]
    assert all(it["device"] in machine.nearest(it["gpu"])[1] for it in _given(worker))


def _mode(node: Node) -> str:
    """A kernel that hides RDMA devices from other namespaces gives none to several pods."""
    return "exclusive" if node.rdma_netns_mode == "exclusive" else "shared"


def test_a_claims_device_is_told_with_its_distance(machine: Machine, tmp_path: Path) -> None:
    """A claim of another driver, which chose the device and wrote its spec."""
    chosen = machine.nearest(machine.gpus[0])[1][0] if machine.gpus else machine.node.rdma[-1].name
    uverbs = machine.node.device(chosen).uverbs
    assert uverbs is not None
    device = {
        "name": "claim-1",
        "annotations": {"rdma.noderesource.dev": f"mode: {_mode(machine.node)}"},
        "containerEdits": {"deviceNodes": [{"path": f"/dev/infiniband/{uverbs.name}"}]},
    }
    spec = {"cdiVersion": "0.6.0", "kind": "dra.example.com/nic", "devices": [device]}
    (tmp_path / "claim.json").write_text(json.dumps(spec))
    told = ["--cdi-dirs", str(tmp_path), "--cdi-device", f"trainer={CLAIM}"]
    told += ["--gpu", f"trainer={machine.gpus[0]}"] if machine.gpus else []
    manifest = tmp_path / "pod.yaml"
    manifest.write_text(CLAIMING)
    (pod,) = machine.explain(manifest, *told)
    (given,) = _given(pod)
    assert given["device"] == chosen
    assert given["why"].startswith(f"CDI device {CLAIM}")
    if machine.gpus:
        far = _far(machine.node, chosen, machine.gpus[0])
        assert (given["gpu"], given["distance"]) == (machine.gpus[0], far)
        assert given["why"].endswith(f", from GPU {machine.gpus[0]}")


# The option


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine("eight", tmp_path_factory.mktemp("eight"))


def test_a_strict_request_is_no_refusal_without_its_gpus(eight: Machine) -> None:
    done = nri_rdma("explain", EXAMPLES / "ray-cluster.yaml", "--snapshot", eight.file)
    assert (done.returncode, done.stderr) == (0, "")
    assert "RayCluster default/training-gpus-worker: cannot be told without --gpu" in done.stdout.splitlines()
    assert "here --gpu ray-worker=ID[,ID] names them" in " ".join(done.stdout.split())


@pytest.mark.parametrize("form", ["{uuid}", "{index}", "{pci}", "nvidia{index}", "{short}"])
def test_a_gpu_is_named_in_any_form(form: str, eight: Machine) -> None:
    gpu = eight.node.gpus[6]
    text = form.format(uuid=gpu.uuid, index=6, pci=gpu.function, short=gpu.uuid[:12])
    (pod,) = eight.explain("aligned-pod.yaml", "--gpu", f"trainer={text}")
    assert [(it["device"], it["gpu"]) for it in _given(pod)] == [("mlx5_6", gpu.function)]


def test_gpus_may_be_told_one_by_one(eight: Machine) -> None:
    (_, worker) = eight.explain("ray-cluster.yaml", "--gpu", "ray-worker=5", "--gpu", "ray-worker=2")
    assert [it["device"] for it in _given(worker)] == ["mlx5_2", "mlx5_5"]


def test_a_contradiction_names_the_flag_and_not_the_kubelet(eight: Machine) -> None:
    asked = FAR.replace("count: 2, match: {numaNode: 0}", "gpus: ['0000:18:00.0']")
    done = nri_rdma("explain", "-", "--snapshot", eight.file, "--gpu", "trainer=6", text=asked, columns=300)
    assert "; --gpu says that the pod has GPU 0000:e1:00.0, the request says 0000:18:00.0" in done.stdout


FAR = """
kind: Pod
metadata: {name: far, annotations: {rdma.noderesource.dev/pod: "{count: 2, match: {numaNode: 0}}"}}
spec: {containers: [{name: trainer}]}
"""


def test_a_device_is_told_beside_the_gpu_that_it_serves_though_another_is_as_near(eight: Machine) -> None:
    told = ("--gpu", "trainer=5,6", "-o", "json")
    done = nri_rdma("explain", "-", "--snapshot", eight.file, *told, text=FAR)
    (pod,) = json.loads(done.stdout)["pods"]
    gpus = [eight.node.gpus[number].function for number in (5, 6)]
    assert [(it["gpu"], it["distance"]) for it in _given(pod)] == [(gpu, "SYS") for gpu in gpus]


def test_people_are_told_in_sentences(eight: Machine) -> None:
    where = (EXAMPLES / "aligned-pod.yaml", "--snapshot", eight.file)
    told = " ".join(nri_rdma("explain", *where, "--gpu", "trainer=6").stdout.split())
    assert ", for GPU 0000:e1:00.0, told by --gpu" in told
    assert "told by the kubelet" not in told
    assert "GPUs 0000:e1:00.0, as --gpu says" in told
    told = " ".join(nri_rdma("explain", *where).stdout.split())
    assert "The kubelet chooses the GPUs and reports them to the daemon" in told


@pytest.mark.parametrize(
    ("told", "what"),
    [
        ("trainer", "it is not CONTAINER=ID[,ID]"),
        ("nobody=0", "no pod has a container nobody"),
        ("trainer=8", "the node has no GPU 8"),
        ("trainer=0,", "the node has no GPU"),
        ("trainer=GPU-00000000", "the node has no GPU GPU-00000000"),
    ],
)
def test_a_gpu_that_cannot_be_is_refused(told: str, what: str, eight: Machine) -> None:
    done = nri_rdma("explain", EXAMPLES / "aligned-pod.yaml", "--snapshot", eight.file, "--gpu", told)
    assert what in assert_one_error(done, "SETTING", 2)

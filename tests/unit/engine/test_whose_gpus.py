"""Pods get the devices next to their GPUs, whoever tells of these: what the daemon's own handlers decide on "eight"."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.registry import Registry, SpecFile, resolve
from nri_rdma.doors.control.status import status_document
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.observe.spans import AttributeValue
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.adopting import Kubelet
from tests.unit.commands.cli.daemon import InsideDaemon
from tests.unit.handlers import Got, Handlers

KEY = "rdma.noderesource.dev/pod"
GPUS = load("eight").gpus
STRICT = "{align: {to: gpu, strict: true}}"
PRIVILEGED = "privileged"


class Machine:
    """The node "eight" with a daemon and a kubelet."""

    def __init__(self, inside: InsideDaemon) -> None:
        self.inside = inside
        self.kubelet = Kubelet()
        inside.engine.placer.evidence.kubelet.kubelet = self.kubelet
        self._handlers = Handlers(inside)

    def give(self, name: str, container: str, *numbers: int) -> None:
        """GPUs of the device plugin, by their place in PCI order."""
        self.kubelet.give_ids(f"default/{name}", container, "nvidia.com/gpu", *(GPUS[it].uuid for it in numbers))

    def run(self, name: str, asked: str) -> list[str]:
        """The devices that such a pod gets."""
        self.start(name, asked)
        return [device for device, holders in self._held() if f"default/{name}" in holders]

    def start(self, name: str, asked: str) -> nri.PodSandbox:
        """A pod that runs."""
        return self._handlers.run_pod(_pod(name, asked))

    def create(self, pod: nri.PodSandbox, *numbers: int, env: tuple[str, ...] = (), container: str = "main") -> Got:
        """A container of it with the device files of these GPUs."""
        nodes = {f"/dev/nvidia{number}": (195, number) for number in numbers}
        manifest = ContainerManifest(name=container, privileged=container == PRIVILEGED)
        return self._handlers.create(pod, manifest, nodes=nodes, env=env)

    def specify(self, registry: Registry) -> None:
        """The node has these CDI specs."""
        evidence = self.inside.engine.placer.evidence
        evidence.specs._registry = lambda: registry
        evidence.specs.read_again()

    def stop(self, pod: nri.PodSandbox) -> None:
        """The end of a pod."""
        self._handlers.stop_pod(pod)

    def refusal(self, name: str, asked: str) -> NriRdmaError:
        with pytest.raises(NriRdmaError) as caught:
            self.run(name, asked)
        return caught.value

    def span(self, name: str = "kubelet") -> dict[str, AttributeValue]:
        """What the last span of that name says."""
        return next(span.attributes for span in reversed(self.inside.spans.recent()) if span.name == name)

    def _held(self) -> Iterator[tuple[str, set[str]]]:
        taken = self.inside.allocations.taken()
        for device in self.inside.node.devices:
            yield device.name, {holding.owner for holding in taken.get(device.id, ())}


def _pod(name: str, asked: str) -> PodManifest:
    containers = tuple(ContainerManifest(name=it) for it in ("main", "side"))
    return PodManifest(kind="Pod", namespace="default", name=name, annotations={KEY: asked}, containers=containers)


@pytest.fixture
def machine(tmp_path: Path, eight: Path) -> Iterator[Machine]:
    with InsideDaemon(tmp_path, eight) as inside:
        yield Machine(inside)


def test_eight_pods_with_a_gpu_each_get_the_eight_devices_next_to_them(machine: Machine) -> None:
    order = (3, 0, 7, 4, 1, 6, 2, 5)
    for number in order:
        machine.give(f"job-{number}", "main", number)
    assert [machine.run(f"job-{number}", STRICT) for number in order] == [[f"mlx5_{number}"] for number in order]
    machine.give("job-8", "main", 0)
    refused = machine.refusal("job-8", STRICT)
    assert refused.code is ErrorCode.DEVICES_EXHAUSTED
    assert "free 0 of 8" in refused.what


def test_the_span_says_which_gpus_and_who_told_of_them(machine: Machine) -> None:
    machine.give("job", "main", 6, 2)
    assert machine.run("job", "{count: 2}") == ["mlx5_2", "mlx5_6"]
    assert machine.span()["rdma.gpus"] == "0000:61:00.0,0000:e1:00.0"
    assert machine.span()["rdma.gpus.source"] == "the kubelet"
    assert machine.span()["rdma.gpus.problem"] == ""
    assert "nearest free device to GPU 0000:61:00.0 (PHB, same root complex), told by the kubelet" in str(
        machine.span("place")["reason"]
    )


def test_a_request_for_one_container_is_next_to_the_gpus_of_that_one(machine: Machine) -> None:
    machine.give("job", "main", 1)
    machine.give("job", "side", 5)
    assert machine.run("job", "{containers: [side]}") == ["mlx5_5"]


def test_a_word_is_next_to_the_gpus_of_the_containers_that_have_devices(machine: Machine) -> None:
    machine.give("job", "main", 4)
    assert machine.run("job", "1") == ["mlx5_4"]


@pytest.mark.parametrize("asked", ["{align: numa}", "{align: {to: numa, strict: true}}"])
def test_a_request_for_a_numa_node_is_for_that_of_the_pods_gpus(machine: Machine, asked: str) -> None:
    machine.give("job", "main", 6)
    assert machine.run("job", asked) == ["mlx5_6"]  # the one that no other GPU misses


@pytest.mark.parametrize("asked", ["{align: none}", "{match: {device: mlx5_3}, align: none}"])
def test_who_wants_no_gpu_has_the_kubelet_not_asked(machine: Machine, asked: str) -> None:
    machine.run("job", asked)
    assert machine.kubelet.asked == 0


def test_the_kubelet_is_asked_once_for_a_pod(machine: Machine) -> None:
    machine.give("job", "main", 4)
    machine.run("job", "[{count: 1}, {count: 1}, {align: gpu}]")
    assert machine.kubelet.asked == 1


def test_on_a_node_without_gpus_nobody_is_asked(tmp_path: Path) -> None:
    build_tree(load("vf8"), tmp_path / "sys")
    with InsideDaemon(tmp_path, tmp_path / "sys", "vf8") as inside:
        machine = Machine(inside)
        machine.run("job", "{align: gpu}")
        assert machine.kubelet.asked == 0


def test_a_kubelet_that_is_late_refuses_who_is_strict_and_names_itself(machine: Machine) -> None:
    machine.kubelet.is_late = True
    refused = machine.refusal("job", STRICT)
    assert refused.code is ErrorCode.NOT_ALIGNED
    assert "no answer (KUBELET-LATE)" in refused.what
    assert machine.span()["rdma.gpus.problem"] == "no answer (KUBELET-LATE)"


def test_a_kubelet_that_is_late_leaves_the_others_numa_nodes(machine: Machine) -> None:
    """The annotation's GPUs are of one node, and may not be the pod's."""
    machine.kubelet.is_late = True
    (device,) = machine.run("job", '{gpus: ["0000:e1:00.0"]}')
    assert device in {"mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"}
    assert str(machine.span("place")["reason"]).endswith("on NUMA node 1; no answer (KUBELET-LATE)")


def test_a_pod_that_the_kubelet_does_not_know_is_refused_when_it_is_strict(machine: Machine) -> None:
    assert "the kubelet does not know this pod" in machine.refusal("job", STRICT).what
    assert machine.run("other", '{gpus: ["0000:e1:00.0"], align: {to: gpu, strict: true}}') == ["mlx5_6"]


def test_an_annotation_that_says_otherwise_than_the_kubelet_is_no_base_for_strictness(machine: Machine) -> None:
    machine.give("job", "main", 5)
    asked = '{gpus: ["0000:18:00.0"], align: {to: gpu, strict: true}}'
    assert (
        "the kubelet says that the pod has GPU 0000:be:00.0, the request says 0000:18:00.0"
        in machine.refusal("job", asked).what
    )
    (device,) = machine.run("job", '{gpus: ["0000:18:00.0"]}')
    assert device in {"mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"}  # where the kubelet says


def test_a_gpu_that_this_node_is_not_known_to_have_is_said_to_be_so(machine: Machine) -> None:
    machine.kubelet.give_ids(
        "default/job", "main", "nvidia.com/mig-1g.10gb", "MIG-12345678-1234-1234-1234-123456789abc"
    )
    refused = machine.refusal("job", STRICT)
    assert "nvidia.com/mig-1g.10gb MIG-12345678-1234-1234-1234-123456789abc of container main is no GPU" in refused.what


def test_without_a_kubelet_the_annotation_counts(machine: Machine) -> None:
    machine.kubelet.is_there = False
    assert machine.run("job", '{gpus: ["0000:98:00.0"]}') == ["mlx5_4"]
    assert machine.refusal("other", STRICT).what == "not aligned to gpu: the pod's GPUs are not known"
    assert machine.kubelet.asked == 0


def test_a_claims_gpus_are_known_by_its_cdi_device(machine: Machine) -> None:
    machine.kubelet.give(
        machine.inside.start_pod("claimed", {}), "main", f"k8s.device-plugin.nvidia.com/gpu={GPUS[3].uuid}"
    )
    assert machine.run("claimed", "{count: 1}") == ["mlx5_3"]


def test_the_gpus_of_a_pod_whose_driver_chose_its_device_count_as_taken(machine: Machine) -> None:
    device = {
        "name": "claim-1",
        "annotations": {"rdma.noderesource.dev": "mode: exclusive"},
        "containerEdits": {"deviceNodes": [{"path": "/dev/infiniband/uverbs6"}]},
    }
    spec = {"cdiVersion": "0.6.0", "kind": "dra.example.com/nic", "devices": [device]}
    parsed = SpecFile(file="/cdi/c.json", priority=0, spec=parse(json.dumps(spec).encode(), "/cdi/c.json"))
    machine.specify(resolve([parsed]))
    cdi = ("dra.example.com/nic=claim-1", f"k8s.device-plugin.nvidia.com/gpu={GPUS[6].uuid}")
    machine.kubelet.give(machine.inside.start_pod("job", {}), "main", *cdi)
    machine.inside.start_pod("job", {})
    ((device_id, holders),) = machine.inside.allocations.taken().items()
    assert device_id == "0000:e2:00.0"
    assert {str(pci) for holding in holders for pci in holding.gpus} == {"0000:e1:00.0"}


# When a container is made


def _status(machine: Machine) -> list[tuple[str, str, str]]:
    document = status_document(machine.inside.facts, started=0.0, guard={})
    return [(item["container"], item["words"], item["problem"]) for item in document["alignment"]]


def test_a_container_that_shows_the_gpu_that_was_told_is_aligned(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.give("job", "main", 5)
    machine.create(machine.start("job", STRICT), 5)
    span = machine.span("align")
    assert (span["rdma.gpus"], span["rdma.gpus.source"]) == ("0000:be:00.0", "its device nodes")
    assert (span["rdma.alignment"], span["rdma.gpus.problem"]) == ("PHB", "")
    assert span["rdma.alignment.pairs"] == "mlx5_5 is PHB from GPU 0000:be:00.0"
    assert _status(machine) == [("main", "aligned: PHB", "")]
    assert "next to" not in caplog.text


def test_gpus_that_come_to_be_known_with_the_container_are_checked_and_told_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.kubelet.is_there = False
    pod = machine.start("job", "{match: {device: mlx5_0}}")
    for _ in range(2):
        machine.create(pod, 7)
    assert _status(machine) == [("main", "mlx5_0 is SYS from GPU 0000:f8:00.0", "")]
    assert machine.span("align")["rdma.alignment"] == "SYS"
    assert caplog.text.count("the container's devices are not next to its GPUs") == 1
    machine.create(pod, 0)
    assert _status(machine) == [("main", "aligned: PHB", "")]


def test_a_strict_requests_container_with_other_gpus_far_away_is_refused(machine: Machine) -> None:
    machine.kubelet.is_there = False
    pod = machine.start("job", '{gpus: ["0000:18:00.0"], align: {to: gpu, strict: true}}')
    with pytest.raises(NriRdmaError) as caught:
        machine.create(pod, 3)
    assert caught.value.code is ErrorCode.NOT_ALIGNED
    assert str(caught.value) == (
        "nri-rdma: NOT-ALIGNED: not aligned to gpu: mlx5_0 is NODE from GPU 0000:80:00.0; its device nodes show GPU"
        " 0000:80:00.0, and the request reported 0000:18:00.0, default/job, container main. Next: delete the pod so"
        " that it is placed again, or leave strict out."
    )
    machine.create(pod, 0)


def test_another_request_is_told_of_and_served(machine: Machine) -> None:
    machine.give("job", "main", 0)
    got = machine.create(machine.start("job", "{count: 1}"), 3)
    assert got.names == ["uverbs0", "rdma_cm"]
    ((_, words, problem),) = _status(machine)
    assert words == "mlx5_0 is NODE from GPU 0000:80:00.0"
    assert problem == "its device nodes show GPU 0000:80:00.0, and the kubelet reported 0000:18:00.0"
    assert problem in str(machine.span("align")["rdma.gpus.problem"])


def test_each_of_two_containers_shows_a_part_of_what_their_request_is_for(machine: Machine) -> None:
    machine.give("job", "main", 0)
    machine.give("job", "side", 7)
    pod = machine.start("job", "{count: 2, align: {to: gpu, strict: true}}")
    machine.create(pod, 0)
    machine.create(pod, 7, container="side")
    assert _status(machine) == [("main", "aligned: PHB", ""), ("side", "aligned: PHB", "")]


def test_a_container_whose_own_gpus_are_far_from_every_device_of_its_pod_is_not_aligned(machine: Machine) -> None:
    machine.give("job", "main", 0)
    machine.give("job", "side", 7)
    pod = machine.start("job", "{match: {device: mlx5_0}, align: {to: gpu, strict: true}}")
    machine.create(pod, 0)
    with pytest.raises(NriRdmaError, match=r"mlx5_0 is SYS from GPU 0000:f8:00\.0") as caught:
        machine.create(pod, 7, container="side")
    assert caught.value.code is ErrorCode.NOT_ALIGNED
    assert ("side", "mlx5_0 is SYS from GPU 0000:f8:00.0", "") in _status(machine)


def test_a_strict_requests_container_with_a_gpu_that_nobody_knows_is_refused(machine: Machine) -> None:
    machine.give("job", "main", 2)
    with pytest.raises(NriRdmaError, match="names GPU-zz, no GPU that this node is known to have"):
        machine.create(machine.start("job", STRICT), env=("NVIDIA_VISIBLE_DEVICES=GPU-zz",))
    machine.give("other", "main", 3)
    assert machine.create(machine.start("other", "{count: 1}"), env=("NVIDIA_VISIBLE_DEVICES=GPU-zz",)).names


def test_the_nodes_of_a_privileged_container_are_no_sign(machine: Machine) -> None:
    machine.give("job", PRIVILEGED, 6)
    pod = machine.start("job", STRICT)
    machine.create(pod, *range(8), container=PRIVILEGED)
    assert machine.span("align")["rdma.gpus.source"] == "the kubelet"
    assert _status(machine) == [(PRIVILEGED, "aligned: PHB", "")]


@pytest.mark.parametrize(
    ("env", "source"),
    [
        ((f"NVIDIA_VISIBLE_DEVICES={GPUS[2].uuid}",), "NVIDIA_VISIBLE_DEVICES"),
        (("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=2"), "NVIDIA_VISIBLE_DEVICES"),
        (("NVIDIA_VISIBLE_DEVICES=all",), "the kubelet"),  # what an image says of itself
        ((), "the kubelet"),
    ],
)
def test_visible_devices_tell_when_nodes_do_not(machine: Machine, env: tuple[str, ...], source: str) -> None:
    machine.give("job", "main", 2)
    machine.create(machine.start("job", STRICT), env=env)
    span = machine.span("align")
    assert (span["rdma.gpus"], span["rdma.gpus.source"]) == ("0000:61:00.0", source)


def test_a_pod_that_wants_no_gpu_is_not_judged(machine: Machine) -> None:
    machine.create(machine.start("job", "{align: none, match: {device: mlx5_0}}"), 7)
    assert _status(machine) == []


def test_what_is_known_of_a_sandbox_ends_with_it(machine: Machine) -> None:
    machine.give("job", "main", 2)
    pod = machine.start("job", STRICT)
    machine.create(pod, 2)
    machine.stop(pod)
    assert _status(machine) == []

"""Pods get the devices next to their GPUs, whoever tells of these: what the daemon's own handlers decide on "eight"."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.registry import SpecFile, resolve
from nri_rdma.errors import ErrorCode
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.engine.gpu_machine import GPUS, STRICT, Machine, machine
from tests.unit.rigs.inside_daemon import InsideDaemon

__all__ = ["machine"]  # fixtures


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
    ((device_id, holders),) = machine.inside.reservations.taken().items()
    assert device_id == "0000:e2:00.0"
    assert {str(pci) for holding in holders for pci in holding.gpus} == {"0000:e1:00.0"}

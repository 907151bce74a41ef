"""A container's devices are compared with the GPUs that it shows."""

from __future__ import annotations

import pytest

from nri_rdma.decide.gpus import GpuEvidence
from nri_rdma.doors.control.status_document import status_document
from nri_rdma.engine.alignment_check import AlignmentCheck
from nri_rdma.engine.sandbox import Sandboxes
from nri_rdma.errors import ErrorCode, NriRdmaError
from tests.unit.engine.gpu_machine import GPUS, PRIVILEGED, STRICT, Machine, machine

__all__ = ["machine"]  # fixtures


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


def test_other_gpus_that_are_near_are_logged_as_others(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.give("job", "main", 3)
    machine.create(machine.start("job", "{match: {device: mlx5_0}}"), 0)
    (told,) = (vars(it) for it in caplog.records if "contradiction" in vars(it))
    assert told["message"] == "the container has other GPUs than were reported for it"
    assert told["contradiction"] == "its device nodes show GPU 0000:18:00.0, and the kubelet reported 0000:80:00.0"


def test_only_a_strict_requests_container_waits_for_its_gpus_to_be_read(machine: Machine) -> None:
    asked: list[str] = []

    def gpus() -> GpuEvidence:
        asked.append("gpus")
        return GpuEvidence()

    check = AlignmentCheck(machine.inside.engine.specs, Sandboxes(), machine.inside.spans)
    machine.give("lax", "main", 0)
    machine.give("strict", "main", 1)
    for name, request, expected in (("lax", "{count: 1}", []), ("strict", STRICT, ["gpus"])):
        started = machine.start(name, request)
        (attachment,) = machine.inside.sandboxes.of(started.id)
        assert attachment.now.record is not None
        check.refuse_far(attachment.pod, attachment.now.record.attached, "main", gpus)
        assert asked == expected


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

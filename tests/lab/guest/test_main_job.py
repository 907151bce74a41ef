"""The main job on a node with an RDMA device: containers get the device they asked for, others do not."""

import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import pytest

from tests.lab.guest import kernel
from tests.lab.guest.process import Server
from tests.lab.workload import NAME as WORKLOAD
from tests.rig.cri import Container, Cri, Sandbox
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.expect import assert_no_nodes

pytestmark = pytest.mark.outcome("main-job")
ASKS_FOR_TRAINER = {
    "rdma.noderesource.dev/pod": "- {pool: default, mode: shared, containers: [trainer], "
    "limits: {hcaHandles: 2, hcaObjects: 100}}"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod of two running containers, of which one asked for the device."""

    sandbox: Sandbox
    trainer: Container
    sidecar: Container


@pytest.fixture(scope="module")
def pod(cri: Cri, daemon: Server) -> Iterator[Pod]:
    """The pod that most tests look at."""
    made = run_pod(cri)
    yield made
    cri.delete_pod(made.sandbox)


def run_pod(cri: Cri) -> Pod:
    sandbox = cri.run_pod(f"lab-{uuid.uuid4().hex[:8]}", annotations=ASKS_FOR_TRAINER)
    trainer, sidecar = (cri.create_container(sandbox, name, image=WORKLOAD) for name in ("trainer", "sidecar"))
    cri.start(trainer)
    cri.start(sidecar)
    return Pod(sandbox=sandbox, trainer=trainer, sidecar=sidecar)


def test_the_container_that_asked_opens_the_verbs_device(cri: Cri, pod: Pod, rdma_device: str) -> None:
    shown = cri.exec(pod.trainer, ["ibv_devinfo", "-d", rdma_device])
    assert shown.exit_code == 0, shown.stderr
    assert re.search(rf"^hca_id:\s+{rdma_device}$", shown.stdout, re.MULTILINE)
    assert re.search(r"state:\s+PORT_ACTIVE", shown.stdout)


def test_its_device_node_has_the_number_that_the_kernel_gave(cri: Cri, pod: Pod) -> None:
    shown = cri.exec(pod.trainer, ["stat", "-c", "%F %t:%T", "/dev/infiniband/uverbs0"])
    assert shown.exit_code == 0, shown.stderr
    major, minor = kernel.device_number("uverbs0").split(":")
    assert shown.stdout.strip() == f"character special file {int(major):x}:{int(minor):x}"


def test_the_container_beside_it_has_no_device_node(cri: Cri, pod: Pod) -> None:
    assert_no_nodes(cri, pod.sidecar)


def test_the_container_beside_it_cannot_open_the_device_by_its_number(cri: Cri, pod: Pod) -> None:
    # Both make the node themselves: only the device cgroup tells them apart.
    allowed = open_by_number(cri, pod.trainer)
    refused = open_by_number(cri, pod.sidecar)
    assert allowed == (0, ""), "the check itself does not work"
    assert refused[0] != 0
    assert "Operation not permitted" in refused[1]


def test_the_rdma_cgroup_of_the_container_has_the_limits_that_were_asked(cri: Cri, pod: Pod, rdma_device: str) -> None:
    pid = cri.container_status(pod.trainer).pid
    assert kernel.cgroup_file(pid, "rdma.max") == f"{rdma_device} hca_handle=2 hca_object=100"


def test_no_other_rdma_cgroup_of_the_pod_has_limits(cri: Cri, pod: Pod, rdma_device: str) -> None:
    for pid in (cri.container_status(pod.sidecar).pid, cri.pod_status(pod.sandbox).pid):
        assert kernel.cgroup_file(pid, "rdma.max") == f"{rdma_device} hca_handle=max hca_object=max"


def test_only_the_container_that_asked_may_lock_all_memory(cri: Cri, pod: Pod) -> None:
    assert kernel.memlock(cri.container_status(pod.trainer).pid) == ("unlimited", "unlimited")
    assert kernel.memlock(cri.container_status(pod.sidecar).pid) != ("unlimited", "unlimited")


def test_the_node_is_as_before_when_the_pod_is_gone(cri: Cri, daemon: Server) -> None:
    before = kernel.NodeState.take()
    cri.delete_pod(run_pod(cri).sandbox)
    # The kernel takes a dead namespace down in its own time.
    with suppress(DeadlineError):
        wait_until(lambda: not before.differences_to(kernel.NodeState.take()), "the node to settle", seconds=20)
    assert before.differences_to(kernel.NodeState.take()) == []


def test_the_comparison_with_before_notices_a_planted_difference() -> None:
    before = kernel.NodeState.take()
    with planted("ip link add planted type veth peer name planted-peer", "ip link delete planted"):
        with planted("rdma link add rxe9 type rxe netdev planted", "rdma link delete rxe9"):
            noticed = " ".join(before.differences_to(kernel.NodeState.take()))
        assert "link planted" in noticed
        assert "rdma link was" in noticed
        assert f"{kernel.INFINIBAND} was" in noticed
    assert before.differences_to(kernel.NodeState.take()) == []


@contextmanager
def planted(command: str, undo: str) -> Iterator[None]:
    """A change of the host, for a while."""
    subprocess.run(command.split(), check=True)
    try:
        yield
    finally:
        subprocess.run(undo.split(), check=True)


def open_by_number(cri: Cri, container: Container) -> tuple[int, str]:
    """Exit code and complaint of opening a node that the container made itself."""
    major, minor = kernel.device_number("uverbs0").split(":")
    made = cri.exec(container, ["mknod", "/tmp/made", "c", major, minor])
    assert made.exit_code == 0, made.stderr
    opened = cri.exec(container, ["sh", "-c", "exec 3</tmp/made"])
    return opened.exit_code, opened.stderr

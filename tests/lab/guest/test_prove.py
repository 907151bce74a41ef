"""RDMA is proved in a container, by a process that is held by what holds the container's programs.

The process that makes proofs is asked directly here, about a container that runs.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from nri_rdma.decide.proof import LEAST_REGISTERED
from nri_rdma.host.pod_addresses import addresses_of
from nri_rdma.host.prover import Prover
from nri_rdma.model.proof import DeviceProof, DeviceTask, ProofAnswer, ProofEnd, ProofStep, ProofTask
from tests.lab.guest import kernel, verbs
from tests.lab.guest.process import Server
from tests.lab.outcomes import NO_DATA, OutcomeError
from tests.rig.cri import Cri
from tests.rig.deadline import wait_until

PYTHON = Path("/usr/bin/python3")
CGROUPS = Path("/sys/fs/cgroup")
WITHIN_S, COLD_S = 5.0, 30.0
"""Each proof, and the first, which waits until pyverbs is loaded: under emulation that takes seconds."""
LITTLE = 64 << 10
MIB = 1 << 20
TIMES = 7


@pytest.fixture(scope="module")
def prover(daemon: Server) -> Iterator[Prover]:
    """The process that makes proofs, as long as it takes to load pyverbs here."""
    made = Prover(PYTHON, CGROUPS)
    yield made
    made.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A running container."""

    pid: int
    cgroup: str

    @property
    def folder(self) -> Path:
        """Its cgroup."""
        return CGROUPS / self.cgroup[1:]

    def processes(self) -> set[int]:
        """All that are in it."""
        return {int(word) for word in (self.folder / "cgroup.procs").read_text().split()}

    def task(self, device: DeviceTask, memlock: int | None = None) -> ProofTask:
        """The task to prove a device in it; `memlock` None: its own limit."""
        return ProofTask(
            where="lab",
            pid=self.pid,
            cgroups_path=self.cgroup,
            devices=(device,),
            memlock=memlock,
            addresses=addresses_of(self.pid),
        )


@contextmanager
def box(cri: Cri, name: str, annotations: dict[str, str]) -> Iterator[Box]:
    """A container for a while."""
    with verbs.pod(cri, name, annotations) as sandbox:
        pid = cri.container_status(verbs.start(cri, sandbox, "main")).pid
        wait_until(lambda: "tentative" not in addresses(), "the addresses of its interface", seconds=30)
        (line,) = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        yield Box(pid=pid, cgroup=line.removeprefix("0::"))


@pytest.fixture
def shared(cri: Cri, daemon: Server, rdma_device: str) -> Iterator[Box]:
    """A container that shares the device."""
    with box(cri, "proved", asks(rdma_device)) as made:
        yield made


def asks(device: str) -> dict[str, str]:
    """The annotations of a pod that shares a device."""
    return verbs.asks(f"mode: shared, match: {{device: {device}}}")


def prove(prover: Prover, task: ProofTask, box: Box, within_s: float = WITHIN_S) -> ProofAnswer:
    """The answer, printed; it comes in time, and leaves the container and the kernel as they were."""
    before = traces(box)
    answer = prover.prove(task, within_s)
    print(f"\n{answer.took_ms:.0f} ms: {answer}")
    assert answer.took_ms < 1000 * within_s
    assert traces(box) == before
    return answer


def traces(box: Box) -> tuple[set[int], str, str]:
    """What a proof could leave: processes in the container, RDMA objects, changes of links and addresses."""
    objects = subprocess.run(["rdma", "-j", "resource", "show"], capture_output=True, text=True, check=True).stdout
    return box.processes(), objects, addresses()


def addresses() -> str:
    """The host's links and addresses, whether they were tried for duplicates or not."""
    shown = subprocess.run(["ip", "-j", "address"], capture_output=True, text=True, check=True).stdout
    return shown.replace('"tentative":true,', "")


def proof_of(answer: ProofAnswer) -> DeviceProof:
    """What is told of the one device."""
    assert answer.end is ProofEnd.ANSWERED, answer
    (proof,) = answer.proofs
    return proof


def refused(answer: ProofAnswer) -> tuple[ProofStep, int | None]:
    """The step that failed, with the kernel's number."""
    problem = proof_of(answer).problem
    assert problem is not None, answer
    return problem.step, problem.errno


def assert_moved(answer: ProofAnswer) -> None:
    """OutcomeError: nothing arrives."""
    proof = proof_of(answer)
    if proof.problem is not None and proof.problem.step is ProofStep.TRANSFER:
        raise OutcomeError(NO_DATA, proof.problem.text)
    assert (proof.problem, proof.transferred_bytes) == (None, MIB), answer


@pytest.mark.outcome("proof-shared")
def test_a_shared_device_moves_data_and_later_proofs_take_less_time(
    prover: Prover, shared: Box, rdma_device: str
) -> None:
    task = shared.task(DeviceTask(device=rdma_device))
    cold = prove(prover, task, shared, COLD_S)
    warm = [prove(prover, task, shared) for _ in range(TIMES)]
    for answer in (cold, *warm):
        assert_moved(answer)
    print(f"\ncold {cold.took_ms:.0f} ms, warm {median(it.took_ms for it in warm):.0f} ms")


@pytest.mark.outcome("proof-iwarp")
def test_a_device_of_iwarp_moves_data(cri: Cri, prover: Prover) -> None:
    kernel.load_lab_module("siw")
    try:
        with box(cri, "siw0", asks("siw0")) as made:
            assert_moved(prove(prover, made.task(DeviceTask(device="siw0")), made))
            little = prove(prover, made.task(DeviceTask(device="siw0"), LITTLE), made)
            assert refused(little)[0] is ProofStep.REGISTER
    finally:
        kernel.unload("siw")


@pytest.mark.outcome("proof-alone")
def test_a_device_that_a_pod_has_alone_moves_data(cri: Cri, prover: Prover, rdma_device: str) -> None:
    name = "rxe1-proved"
    with kernel.labs_rxe(rdma_device), kernel.rdma_netns("exclusive"):
        ask = verbs.asks(f"mode: exclusive, match: {{device: {name}.0}}")
        with box(cri, name, ask) as made:
            hosts = prove(prover, made.task(DeviceTask(device=rdma_device)), made)
            assert refused(hosts) == (ProofStep.OPEN, None), "it is not in the pod's namespace"
            assert_moved(prove(prover, made.task(DeviceTask(device=f"{name}.0")), made))


@pytest.mark.outcome("proof-refused")
def test_what_would_fail_in_the_container_fails_in_the_proof(prover: Prover, shared: Box, rdma_device: str) -> None:
    device = DeviceTask(device=rdma_device)
    little = prove(prover, shared.task(device, LITTLE), shared)
    assert refused(little) == (ProofStep.REGISTER, 12)
    without_gid = prove(prover, shared.task(DeviceTask(device=rdma_device, gid_index=77)), shared)
    assert refused(without_gid) == (ProofStep.GID, None)
    for limits, step in (("hca_handle=0", ProofStep.OPEN), ("hca_object=2", ProofStep.QP)):
        (shared.folder / "rdma.max").write_text(f"{rdma_device} {limits}")
        assert refused(prove(prover, shared.task(device), shared)) == (step, 11)
        (shared.folder / "rdma.max").write_text(f"{rdma_device} hca_handle=max hca_object=max")
    with port_down(rdma_device):
        assert refused(prove(prover, shared.task(device), shared))[0] is ProofStep.PORT
    # A link that came up a moment ago does not resolve its own address yet: ETIMEDOUT on 6.12.
    wait_until(
        lambda: proof_of(prove(prover, shared.task(device), shared)).problem is None, "data to be moved", seconds=30
    )


def test_it_registers_no_more_than_the_container_may(prover: Prover, shared: Box, rdma_device: str) -> None:
    task = shared.task(DeviceTask(device=rdma_device))
    (shared.folder / "memory.max").write_text(str(16 * MIB))
    assert proof_of(prove(prover, task, shared)).registered_bytes == 4 * MIB
    (shared.folder / "memory.max").write_text("max")
    least = shared.task(DeviceTask(device=rdma_device), LEAST_REGISTERED)
    assert proof_of(prove(prover, least, shared)).registered_bytes == LEAST_REGISTERED


def test_a_container_that_was_not_given_the_device_cannot_open_it(
    cri: Cri, prover: Prover, daemon: Server, rdma_device: str
) -> None:
    with box(cri, "nothing", {}) as made:
        assert refused(prove(prover, made.task(DeviceTask(device=rdma_device)), made))[0] is ProofStep.OPEN


def test_a_proof_that_hangs_is_late_and_leaves_nothing(prover: Prover, shared: Box, rdma_device: str) -> None:
    task, before = shared.task(DeviceTask(device=rdma_device)), traces(shared)
    with frozen(shared):
        answer = prover.prove(task, WITHIN_S - 0.5)
    print(f"\n{answer.took_ms:.0f} ms: {answer}")
    assert (answer.end, answer.text) == (ProofEnd.LATE, f"{rdma_device} port 1 has not answered")
    assert answer.took_ms < 1000 * WITHIN_S
    assert traces(shared) == before
    assert_moved(prove(prover, task, shared))


def test_a_proof_that_is_killed_says_so_and_leaves_nothing(prover: Prover, shared: Box, rdma_device: str) -> None:
    task, before = shared.task(DeviceTask(device=rdma_device)), traces(shared)
    with frozen(shared), ThreadPoolExecutor(1) as threads:
        proof = threads.submit(prover.prove, task, WITHIN_S)
        (pid,) = wait_until(lambda: shared.processes() - before[0] or None, "the proof to begin")
        os.kill(pid, signal.SIGKILL)
        answer = proof.result()
    print(f"\n{answer.took_ms:.0f} ms: {answer}")
    assert answer.end is ProofEnd.ENDED
    assert answer.text == f"{rdma_device} port 1 has not answered: the proving process was ended by SIGKILL"
    assert traces(shared) == before
    assert_moved(prove(prover, task, shared))


@contextmanager
def frozen(box: Box) -> Iterator[None]:
    """A container in which nothing goes on."""
    (box.folder / "cgroup.freeze").write_text("1")
    try:
        yield
    finally:
        (box.folder / "cgroup.freeze").write_text("0")


@contextmanager
def port_down(device: str) -> Iterator[None]:
    """The device's port without its link."""
    netdev, before = kernel.netdev_of(device), addresses()
    subprocess.run(["ip", "link", "set", netdev, "down"], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "link", "set", netdev, "up"], check=True)
        wait_until(lambda: [it["state"] for it in kernel.rdma_links()] == ["ACTIVE"], "an active port", seconds=30)
        wait_until(lambda: addresses() == before, lambda: f"its addresses: {before}, {addresses()}", seconds=30)

"""A proof is made inside the container: the kernel says so of the process that makes it.

The containers are processes in a cgroup and a network namespace; pyverbs is one of the test's own, which tells what its
process may do.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nri_rdma.host.prover import Prover
from nri_rdma.host.verbs.warm import NAME
from nri_rdma.model.proof import DeviceTask, ProofAnswer, ProofEnd, ProofStep, ProofTask
from tests.rig.deadline import wait_until
from tests.unit.host.pyverbs import python_with

pytestmark = pytest.mark.root

PROJECT = Path(__file__).resolve().parents[2]
V1, V2 = Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")
if (V1 / "cgroup.controllers").exists():
    V2 = V1
MEMLOCK = 4 << 20
SOON_S = 20.0
ENDS_S = 10.0
TELLS = """
import json, os, resource, signal, time

def get_device_list():
    return []

def line(name):
    return next(it.split()[1] for it in open("/proc/self/status") if it.startswith(name))

class Context:
    def __init__(self, name):
        match name.split("@"):
            case ["hangs"]:
                time.sleep(600)
            case ["crashes"]:
                os.kill(os.getpid(), signal.SIGSEGV)
            case ["stuck", path]:
                open(path, "w")
        raise OSError(json.dumps({
            "pid": os.getpid(), "name": line("Name:"),
            "capabilities": [line(f"Cap{it}:") for it in ("Prm", "Eff", "Inh")],
            "cgroup": open("/proc/self/cgroup").read(), "net": os.stat("/proc/self/ns/net").st_ino,
            "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK), "descriptors": len(os.listdir("/proc/self/fd")),
            "oom": int(open("/proc/self/oom_score_adj").read()),
        }))
"""
"""pyverbs.device: a device whose opening fails, and says what the process that opens it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A container: its first process, and its cgroup below a root."""

    pid: int
    path: str

    def processes(self, root: Path = V2) -> list[int]:
        """All processes in its cgroup."""
        return [int(word) for word in (root / self.path[1:] / "cgroup.procs").read_text().split()]

    def task(self, *devices: str, pid: int = 0, memlock: int | None = MEMLOCK) -> ProofTask:
        """The task to prove these devices in it."""
        asked = tuple(DeviceTask(device=name) for name in devices)
        return ProofTask(where="box", pid=pid or self.pid, cgroups_path=self.path, devices=asked, memlock=memlock)


@contextmanager
def box(*roots: Path) -> Iterator[Box]:
    """A container for a while, with a cgroup of its own below each of these roots."""
    path = f"nri-rdma-{uuid4().hex[:8]}"
    with subprocess.Popen(["unshare", "--net", "sleep", "600"]) as process:
        for root in roots:
            (root / path).mkdir()
            (root / path / "cgroup.procs").write_text(str(process.pid))
        wait_until(lambda: network_of(process.pid) != network_of(os.getpid()), "its network namespace")
        try:
            yield Box(pid=process.pid, path=f"/{path}")
        finally:
            process.kill()
            process.wait()
            for root in roots:
                wait_until(partial(removed, root / path), "its cgroup to be empty")


def network_of(pid: int) -> int:
    """The network namespace of a process."""
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def removed(folder: Path) -> bool:
    """Whether a cgroup is gone now: it can be removed when its last process is."""
    try:
        folder.rmdir()
    except OSError as error:
        assert error.errno == errno.EBUSY
        return False
    return True


@pytest.fixture
def container() -> Iterator[Box]:
    with box(V2) as made:
        yield made


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return python_with(tmp_path / "python", {}, text=TELLS)


@pytest.fixture
def prover(python: Path) -> Iterator[Prover]:
    made = Prover(python, V2)
    yield made
    made.close()


def told(answer: ProofAnswer) -> dict[str, Any]:
    """What the process was that opened the device."""
    assert answer.end is ProofEnd.ANSWERED, answer
    (proof,) = answer.proofs
    assert proof.problem is not None
    assert proof.problem.step is ProofStep.OPEN, proof
    found: dict[str, Any] = json.loads(proof.problem.text)
    return found


def test_it_is_in_the_containers_cgroup_and_namespace_and_has_no_way_round_its_limits(
    prover: Prover, container: Box
) -> None:
    found = told(prover.prove(container.task("rxe0"), SOON_S))
    assert f"0::{container.path}\n" in found["cgroup"]
    assert found["net"] == network_of(container.pid)
    assert found["capabilities"] == [f"{0:016x}"] * 3
    assert found["memlock"] == [MEMLOCK, MEMLOCK]
    assert (found["name"], found["oom"]) == (NAME, 1000)
    assert found["descriptors"] == 5, "the standard ones, that of the report, that of the list itself"
    assert container.processes() == [container.pid]


def test_the_memlock_limit_of_the_containers_process_counts_where_none_is_told(prover: Prover, container: Box) -> None:
    subprocess.run(["prlimit", f"--pid={container.pid}", f"--memlock={MEMLOCK}:{MEMLOCK}"], check=True)
    found = told(prover.prove(container.task("rxe0", memlock=None), SOON_S))
    assert found["memlock"] == [MEMLOCK, MEMLOCK]


def test_without_a_limit_it_has_the_daemons_own(prover: Prover, container: Box) -> None:
    found = told(prover.prove(container.task("rxe0", memlock=(1 << 64) - 1), SOON_S))
    _, own = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert found["memlock"] == [own, own]


def test_on_cgroup_v1_it_is_in_each_hierarchy_that_limits_rdma(python: Path) -> None:
    roots = [V1 / name for name in ("devices", "memory") if (V1 / name / "cgroup.procs").exists()]
    if not roots:
        pytest.skip("this machine has no cgroup v1")
    prover = Prover(python, V1)
    with box(*roots) as container:
        found = told(prover.prove(container.task("rxe0"), SOON_S))
        assert [container.processes(root) for root in roots] == [[container.pid]] * len(roots)
    prover.close()
    for root in roots:
        assert f":{root.name}:{container.path}\n" in found["cgroup"]


def test_proofs_are_made_side_by_side_by_children_of_one_process(prover: Prover, container: Box) -> None:
    with ThreadPoolExecutor(4) as threads:
        late = threads.submit(prover.prove, container.task("rxe0", "hangs"), 3)
        wait_until(lambda: len(container.processes()) == 2, "the proof to hang")
        warm = prover._warm
        others = [threads.submit(prover.prove, container.task("rxe0"), SOON_S) for _ in range(3)]
        pids = {told(other.result())["pid"] for other in others}
        assert not late.done()
        answer = late.result()
    assert len(pids) == 3
    assert prover._warm is warm
    assert answer.end is ProofEnd.LATE
    assert answer.text == "hangs port 1 has not answered"
    assert [proof.device for proof in answer.proofs] == ["rxe0"]
    assert answer.took_ms < 1000 * (3 + 10)
    assert container.processes() == [container.pid]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_proving_process_that_is_killed_is_told_at_once(
    prover: Prover, container: Box, number: signal.Signals
) -> None:
    with ThreadPoolExecutor(1) as threads:
        proof = threads.submit(prover.prove, container.task("hangs"), SOON_S)
        wait_until(lambda: len(container.processes()) == 2, "the proof to hang")
        (pid,) = set(container.processes()) - {container.pid}
        os.kill(pid, number)
        started = time.monotonic()
        answer = proof.result()
    assert time.monotonic() - started < ENDS_S
    assert answer.end is ProofEnd.ENDED
    assert answer.text == f"hangs port 1 has not answered: the proving process was ended by {number.name}"
    assert container.processes() == [container.pid]


def test_a_stopped_proving_process_is_late(prover: Prover, container: Box) -> None:
    with ThreadPoolExecutor(1) as threads:
        proof = threads.submit(prover.prove, container.task("hangs"), 2)
        wait_until(lambda: len(container.processes()) == 2, "the proof to hang")
        (pid,) = set(container.processes()) - {container.pid}
        os.kill(pid, signal.SIGSTOP)
        assert proof.result().end is ProofEnd.LATE
    assert container.processes() == [container.pid]


def test_the_process_that_forks_is_started_again_after_its_end(prover: Prover, container: Box) -> None:
    told(prover.prove(container.task("rxe0"), SOON_S))
    first = prover._warm
    assert first is not None
    with ThreadPoolExecutor(1) as threads:
        proof = threads.submit(prover.prove, container.task("hangs"), SOON_S)
        wait_until(lambda: len(container.processes()) == 2, "the proof to hang")
        os.kill(first.pid, signal.SIGKILL)
        assert proof.result().end is ProofEnd.ENDED
    wait_until(lambda: container.processes() == [container.pid], "its child to end with it")
    told(prover.prove(container.task("rxe0"), SOON_S))
    assert prover._warm is not first


def test_a_stopped_process_that_forks_costs_the_time_of_one_proof(prover: Prover, container: Box) -> None:
    told(prover.prove(container.task("rxe0"), SOON_S))
    assert prover._warm is not None
    os.kill(prover._warm.pid, signal.SIGSTOP)
    answer = prover.prove(container.task("rxe0"), 3)
    assert answer.end is ProofEnd.LATE
    assert answer.took_ms < 1000 * (3 + 2.5)
    told(prover.prove(container.task("rxe0"), SOON_S))


def test_a_crash_ends_that_proof_only(prover: Prover, container: Box) -> None:
    answer = prover.prove(container.task("rxe0", "crashes"), SOON_S)
    assert answer.end is ProofEnd.ENDED
    assert answer.text == "crashes port 1 has not answered: the proving process was ended by SIGSEGV"
    told(prover.prove(container.task("rxe0"), SOON_S))


def test_a_proof_that_hangs_in_the_kernel_keeps_nobody_waiting(prover: Prover, container: Box, tmp_path: Path) -> None:
    with frozen(tmp_path) as folder:
        answer = prover.prove(container.task(f"stuck@{folder}/file"), 2)
        assert answer.end is ProofEnd.LATE
        (pid,) = set(container.processes()) - {container.pid}
        assert f"process {pid} hangs in the kernel, and stays until its driver returns" in answer.text
        assert answer.took_ms < 1000 * (2 + 10)
        told(prover.prove(container.task("rxe0"), SOON_S))
    wait_until(lambda: container.processes() == [container.pid], "it to end when the kernel lets it")
    assert not Path(f"/proc/{pid}").exists(), "nobody has waited for it"


def test_no_proof_outlives_its_daemon(python: Path, container: Box) -> None:
    program = f"""if True:
        from pathlib import Path
        from nri_rdma.host.prover import Prover
        from nri_rdma.model.proof import DeviceTask, ProofTask
        task = ProofTask(where="", pid={container.pid}, cgroups_path="{container.path}", memlock={MEMLOCK},
            devices=(DeviceTask(device="hangs"),))
        Prover(Path("{python}"), Path("{V2}")).prove(task, 600)
    """
    with subprocess.Popen([sys.executable, "-c", program], cwd=PROJECT) as daemon:
        wait_until(lambda: len(container.processes()) == 2, "the proof to hang", SOON_S)
        daemon.kill()
    wait_until(lambda: container.processes() == [container.pid], "the proof to end")


def test_a_container_that_ends_meanwhile_is_the_reason(prover: Prover, container: Box) -> None:
    with subprocess.Popen(["sleep", "600"]) as other:
        (V2 / container.path[1:] / "cgroup.procs").write_text(str(other.pid))
        task = container.task("rxe0", pid=other.pid)
        other.kill()
    answer = prover.prove(task, SOON_S)
    assert answer.end is ProofEnd.UNAVAILABLE
    assert answer.text.endswith(f"its process {task.pid} is not in it")


@contextmanager
def frozen(folder: Path) -> Iterator[Path]:
    """A file system in which whoever writes waits, and cannot be killed."""
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(4 << 20)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=True)
    try:
        subprocess.run(["fsfreeze", "--freeze", str(mounted)], check=True)
        try:
            yield mounted
        finally:
            subprocess.run(["fsfreeze", "--unfreeze", str(mounted)], check=True)
    finally:
        wait_until(lambda: subprocess.run(["umount", str(mounted)], check=False).returncode == 0, "it to be unmounted")

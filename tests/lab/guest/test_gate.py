"""Containers that ask for `prove: true`: they start when RDMA works in them, and are refused with the cause otherwise.

The guard's hook is in the runtime's base spec. What fails is planted when the container was created and does not run.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.conftest import STATE
from tests.lab.guest.process import Server
from tests.lab.guest.test_prove import addresses, port_down
from tests.lab.outcomes import NO_DATA, OutcomeError
from tests.lab.workload import NAME as WORKLOAD
from tests.rig.control import ask_status
from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.deadline import wait_until

WITHIN_S = 5.0
"""A refusal is seen so soon, on a machine of its own. Under emulation the programs of runtime and hook take longer:"""
EMULATED_S = 15.0
CGROUP = Path("/sys/fs/cgroup/k8s.io")
CODE = re.compile(r"nri-rdma: ([A-Z-]+): (.*?Next: [^\n\"\\\\]*)")


@contextmanager
def pod(cri: Cri, name: str, ask: str) -> Iterator[Sandbox]:
    """A pod whose request is to be proven. When it is gone, the node is as before."""
    before = state()
    with verbs.pod(cri, name, verbs.asks(f"{ask}, prove: true"), runtime_handler=verbs.GUARDED) as sandbox:
        yield sandbox
    wait_until(lambda: state() == before, lambda: f"the node to be as before: {before}, {state()}", seconds=30)


def state() -> tuple[str, object, str]:
    """What a proof could leave on the node."""
    objects = subprocess.run(["rdma", "-j", "resource", "show"], capture_output=True, text=True, check=True).stdout
    return objects, kernel.rdma_links(), re.sub(r'"(valid|preferred)_life_time":\d+,?', "", addresses())


def started(cri: Cri, container: Container) -> float:
    """Start a container that is proven; return how long that took, with the proof's own time printed."""
    began = time.monotonic()
    cri.start(container, seconds=60)
    took_s = time.monotonic() - began
    proofs = [it for row in ask_status(STATE / "control.sock")["sandboxes"] for it in row.get("proofs", ())]
    (proof,) = (it for it in proofs if it["container"] == container.name)
    print(f"\nstarted after {took_s:.2f} s: {proof}")
    return took_s


def refused(cri: Cri, container: Container) -> str:
    """Start a container that is refused; return the code, with the sentence printed."""
    began = time.monotonic()
    with pytest.raises(CriError) as caught:
        cri.start(container, seconds=60)
    took_s = time.monotonic() - began
    found = CODE.search(caught.value.text)
    assert found is not None, caught.value.text
    print(f"\nrefused after {took_s:.2f} s: {found[1]}: {found[2]}")
    assert took_s < EMULATED_S
    assert cri.container_status(container).state != "running"
    return found[1]


def starts_at_last(cri: Cri, sandbox: Sandbox, may_be: Collection[str] = ()) -> None:
    """Start containers as the kubelet does, until one was proven: the first proofs wait for pyverbs to be loaded.

    `may_be` are other codes of refusals on the way.
    """

    names = (f"main{number}" for number in count(len(cri.containers(sandbox))))

    def attempt() -> bool:
        container = verbs.create(cri, sandbox, next(names))
        try:
            started(cri, container)
        except CriError as error:
            found = CODE.search(error.text)
            assert found is not None, error.text
            print(f"\n{found[1]}: {found[2]}")
            if found[1] == "PROOF-TRANSFER" and not may_be:
                raise OutcomeError(NO_DATA, error.text) from error
            assert found[1] in {"PROOF-LATE", *may_be}
            return False
        return True

    wait_until(attempt, "a container that was proven", seconds=60)


@pytest.fixture
def warm(cri: Cri, daemon: Server, rdma_device: str) -> int:
    """The process that makes proofs, with all that it needs."""
    with pod(cri, "warms", f"mode: shared, match: {{device: {rdma_device}}}") as sandbox:
        starts_at_last(cri, sandbox)
    return warm_pid()


def warm_pid() -> int:
    """The process id of the one that makes proofs."""
    (pid,) = (int(it.parent.name) for it in Path("/proc").glob("[0-9]*/cmdline") if is_warm(it))
    return pid


def waiting() -> int:
    """How many sockets such as the daemon has to the process that makes proofs have something to be read."""
    shown = subprocess.run(["ss", "-xH"], capture_output=True, text=True, check=True).stdout
    return sum(line.split()[0] == "u_seq" and line.split()[2] != "0" for line in shown.splitlines())


def is_warm(cmdline: Path) -> bool:
    try:
        return cmdline.read_bytes().endswith(b"/program.py\0warm\0")
    except OSError:
        return False


@pytest.mark.outcome("gate-shared")
def test_a_container_that_shares_a_device_starts_proven(cri: Cri, daemon: Server, rdma_device: str) -> None:
    with pod(cri, "shares", f"mode: shared, match: {{device: {rdma_device}}}") as sandbox:
        starts_at_last(cri, sandbox)


@pytest.mark.outcome("gate-iwarp")
def test_a_container_with_a_device_of_iwarp_starts_proven(cri: Cri, daemon: Server, warm: int) -> None:
    kernel.load_lab_module("siw")
    try:
        with verbs.pod(
            *(cri, "siw0", verbs.asks("mode: shared, match: {device: siw0}, prove: true")),
            runtime_handler=verbs.GUARDED,
        ) as sandbox:
            starts_at_last(cri, sandbox)
    finally:
        kernel.unload("siw")


@pytest.mark.outcome("gate-alone")
def test_a_container_that_has_a_device_alone_starts_proven_and_not_when_it_is_gone(
    cri: Cri, daemon: Server, rdma_device: str, warm: int
) -> None:
    name = "rxe1-gate"
    ask = verbs.asks(f"mode: exclusive, match: {{device: {name}.0}}, prove: true")
    with (
        kernel.labs_rxe(rdma_device),
        kernel.rdma_netns("exclusive"),
        verbs.pod(cri, name, ask, runtime_handler=verbs.GUARDED) as sandbox,
    ):
        starts_at_last(cri, sandbox)
        container = verbs.create(cri, sandbox, "without")
        namespace = Path(cri.pod_status(sandbox).netns or "").name
        host = Path("/run/netns/host")
        host.touch()
        subprocess.run(["mount", "--bind", "/proc/1/ns/net", str(host)], check=True)
        try:
            kernel.rdma("dev", "set", f"{name}.0", "netns", "host", namespace=namespace)
            # The daemon hears of the move, too: whoever is first.
            assert refused(cri, container) in {"PROOF-DEVICE", "NOT-READY"}
            kernel.rdma("dev", "set", f"{name}.0", "netns", namespace)
        finally:
            subprocess.run(["umount", str(host)], check=True)
            host.unlink()


@pytest.mark.outcome("gate-refused")
def test_each_cause_is_refused_with_its_code(cri: Cri, daemon: Server, rdma_device: str, warm: int) -> None:
    shared = f"mode: shared, match: {{device: {rdma_device}}}"
    with pod(cri, "planted", shared) as sandbox:
        forced = cri.create_container(sandbox, "gid", image=WORKLOAD, env={"NCCL_IB_GID_INDEX": "77"})
        assert refused(cri, forced) == "PROOF-GID"
        container = verbs.create(cri, sandbox, "port")
        with port_down(rdma_device):
            assert refused(cri, container) == "PROOF-PORT"
        container = verbs.create(cri, sandbox, "limits")
        (CGROUP / "rdma.max").write_text(f"{rdma_device} hca_handle=0 hca_object=0")
        try:
            assert refused(cri, container) == "PROOF-LIMITS"
        finally:
            (CGROUP / "rdma.max").write_text(f"{rdma_device} hca_handle=max hca_object=max")
        starts_at_last(cri, sandbox, {"PROOF-TRANSFER"})  # its link came up a moment ago
    with pod(cri, "little", f"{shared}, memlock: 64Ki") as sandbox:
        assert refused(cri, verbs.create(cri, sandbox, "memlock")) == "PROOF-MEMLOCK"


def test_a_proving_process_that_hangs_or_is_killed_is_a_refusal(
    cri: Cri, daemon: Server, rdma_device: str, warm: int
) -> None:
    with pod(cri, "ended", f"mode: shared, match: {{device: {rdma_device}}}") as sandbox:
        hung = verbs.create(cri, sandbox, "hung")
        os.kill(warm, signal.SIGSTOP)
        assert refused(cri, hung) == "PROOF-LATE"
        starts_at_last(cri, sandbox)
        killed, another = verbs.create(cri, sandbox, "killed"), warm_pid()
        os.kill(another, signal.SIGSTOP)
        before = waiting()
        with ThreadPoolExecutor(1) as threads:
            refusal = threads.submit(refused, cri, killed)
            wait_until(lambda: waiting() > before, "a job for it", seconds=30)
            os.kill(another, signal.SIGKILL)
            assert refusal.result() == "PROOF-ENDED"

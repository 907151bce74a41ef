"""The rights that a daemon needs to prove RDMA: those of its unit, and those of a container on Kubernetes.

systemd mounts cgroups with nsdelegate: from a cgroup namespace no process moves to a cgroup outside.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lab.guest import verbs
from tests.lab.guest.process import Server
from tests.lab.guest.test_share_limits import DENIES
from tests.rig.cri import Cri
from tests.rig.unit_file import OPTIONS

pytestmark = pytest.mark.machine("systemd")
CHECKOUT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from pathlib import Path
from nri_rdma.host.prover import Prover
from nri_rdma.model.proof import DeviceTask, ProofTask
pid, cgroups_path, device = sys.argv[1:]
devices = (DeviceTask(device=device),)
task = ProofTask(where="lab", pid=int(pid), cgroups_path=cgroups_path, devices=devices, memlock=1 << 32)
prover = Prover(Path("/usr/bin/python3"), Path("/sys/fs/cgroup"))
answer = prover.prove(task, 30)
prover.close()
print(answer.end, answer.text, *(it.problem or f"{it.registered_bytes >> 20} MiB" for it in answer.proofs), sep="; ")
"""
UNIT = [f"{name}={value}" for name in (*DENIES, "LimitMEMLOCK") for value in OPTIONS[name]]
CONTAINER = ["CapabilityBoundingSet=CAP_SYS_ADMIN CAP_NET_ADMIN CAP_SYS_PTRACE", "NoNewPrivileges=yes"]


def proved(cri: Cri, device: str, properties: Sequence[str], *before: str, handler: str = "runc") -> str:
    """What a service with these properties says of a container that shares a device."""
    ask = verbs.asks(f"mode: shared, match: {{device: {device}}}")
    with verbs.pod(cri, "proved", ask, runtime_handler=handler) as sandbox:
        status = cri.container_status(verbs.start(cri, sandbox, "main"))
        words = [word for value in (*properties, f"WorkingDirectory={CHECKOUT}") for word in ("-p", value)]
        program = [*before, sys.executable, "-c", PROGRAM, str(status.pid), status.spec["linux"]["cgroupsPath"], device]
        command = ["systemd-run", "--wait", "--pipe", "--quiet", *words, *program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    return done.stdout.strip()


@pytest.mark.parametrize("handler", ["runc", "crun"])
def test_the_service_may_prove_with_all_that_its_unit_denies(
    cri: Cri, daemon: Server, rdma_device: str, handler: str
) -> None:
    assert proved(cri, rdma_device, UNIT, handler=handler) == "answered; ; 64 MiB"


def test_a_daemon_in_a_cgroup_namespace_may_prove_with_the_right_to_see_other_processes(
    cri: Cri, daemon: Server, rdma_device: str
) -> None:
    assert proved(cri, rdma_device, CONTAINER, "unshare", "--cgroup").startswith("answered; ; ")


def test_without_that_right_nothing_can_be_proved(cri: Cri, daemon: Server, rdma_device: str) -> None:
    without = ["CapabilityBoundingSet=CAP_SYS_ADMIN CAP_NET_ADMIN", "NoNewPrivileges=yes"]
    assert proved(cri, rdma_device, without, "unshare", "--cgroup").startswith("unavailable; its network namespace")

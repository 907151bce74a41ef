"""Process 1 of the lab's machine: makes it a node, runs pytest, hands the results out, switches it off.

It starts neither containerd nor the daemon: that is the tests' own business. Standard library only, and no import of
the checkout's packages: it is started by path, before anything is set up.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
import traceback
from pathlib import Path
from typing import Any

LAB = Path("/srv/lab")
CHECKOUT = LAB / "checkout"
FSTAB = CHECKOUT / "tests/lab/guest/fstab"
RESULTS = Path("/run/lab/results")
CGROUPS = Path("/sys/fs/cgroup")
MODULES = ("rdma_rxe", "rdma_ucm", "ib_uverbs", "ib_umad", "e1000e", "veth", "overlay")
ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "RDMA_LAB_RESULTS": str(RESULTS),
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": f"/usr/lib/lab/site:{CHECKOUT}",
    "TERM": "linux",
}
READY = "lab: guest ready"


def main() -> None:
    """Whatever happens, the machine is switched off at the end: it is how the host sees that it is over."""
    try:
        started = time.monotonic()
        os.environ.update(ENVIRONMENT)
        run("mount", "-a", "-T", str(FSTAB))
        job: dict[str, Any] = json.loads((LAB / "job.json").read_text())
        if not job["shell"]:
            speak_over(port("lab"))
        os.environ["RDMA_LAB_MACHINE"] = job["machine"]
        RESULTS.mkdir(parents=True)
        make_node()
        ready = time.monotonic()
        print(f"{READY} after {ready:.1f} s (kernel {os.uname().release}, {ready - started:.1f} s of it init)")
        sys.stdout.flush()
        if job["shell"]:
            shell()
        else:
            code = run_pytest(job["pytest"], job["limit_s"])
            hand_out({"exit": code, "ready_s": ready, "pytest_s": time.monotonic() - ready})
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        subprocess.run(["busybox", "poweroff", "-f"], check=False)


def make_node() -> None:
    """cgroups, modules, one soft-RoCE device per NIC: what a node has before a runtime starts."""
    enable_controllers()
    run("modprobe", "-a", *MODULES)
    socket.sethostname("lab")
    run("ip", "link", "set", "lo", "up")
    for number, nic in enumerate(nics()):
        run("ip", "link", "set", nic, "up")
        run("rdma", "link", "add", f"rxe{number}", "type", "rxe", "netdev", nic)


def enable_controllers() -> None:
    """cgroup v2 gives controllers only to the children of a group without processes of its own."""
    leaf = CGROUPS / "init"
    leaf.mkdir()
    (leaf / "cgroup.procs").write_text(str(os.getpid()))
    controllers = (CGROUPS / "cgroup.controllers").read_text().split()
    (CGROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def nics() -> list[str]:
    """The netdevs that are hardware (of the machine's), in the order of their PCI addresses."""
    found = [path for path in Path("/sys/class/net").iterdir() if (path / "device").exists()]
    if not found:
        raise RuntimeError("the machine has no NIC; what does the console say about e1000e?")
    return [path.name for path in sorted(found, key=lambda path: (path / "device").resolve())]


def port(name: str) -> Path:
    """The virtio port that the host calls so."""
    for path in Path("/sys/class/virtio-ports").iterdir():
        if (path / "name").read_text().strip() == name:
            return Path("/dev") / path.name
    raise RuntimeError(f"the machine has no virtio port {name!r}")


def speak_over(path: Path) -> None:
    """From here on our output, and that of every child, goes to the host's terminal."""
    descriptor = os.open(path, os.O_WRONLY)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def run_pytest(arguments: list[str], limit_s: int) -> int:
    """pytest's exit code; 124 when it was still running at the limit."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={RESULTS / 'junit.xml'}"]
    pytest = subprocess.Popen([*command, *arguments], cwd=CHECKOUT, start_new_session=True)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(pytest.pid, signal.SIGKILL))
    signal.alarm(limit_s)
    while True:
        pid, status = os.wait()  # process 1 is also the parent of every orphan, containerd's shims among them
        if pid == pytest.pid:
            break
    left = signal.alarm(0)
    pytest.returncode = os.waitstatus_to_exitcode(status)
    if pytest.returncode < 0:
        why = f"signal {-pytest.returncode}" if left else f"the limit of {limit_s} s"
        print(f"lab: pytest was ended by {why}")
        return 124
    return pytest.returncode


def hand_out(run_facts: dict[str, float]) -> None:
    """Everything in the results folder, written as a tar on the results disk."""
    (RESULTS / "run.json").write_text(json.dumps(run_facts))
    with (RESULTS / "dmesg.log").open("wb") as out:
        subprocess.run(["dmesg"], stdout=out, check=True)
    with tarfile.open(disk("results"), "w") as tar:
        tar.add(RESULTS, arcname=".")
    os.sync()


def disk(serial: str) -> Path:
    """The disk that the host calls so."""
    for path in Path("/sys/block").glob("vd*"):
        if (path / "serial").read_text().strip() == serial:
            return Path("/dev") / path.name
    raise RuntimeError(f"the machine has no disk {serial!r}")


def shell() -> None:
    """An interactive shell on the console, with job control; the machine goes off when it ends."""
    print("lab: a shell in the guest; leave it with `exit`, the machine is thrown away then")
    sys.stdout.flush()
    subprocess.run(["busybox", "setsid", "busybox", "cttyhack", "bash"], cwd=CHECKOUT, check=False)


def run(*command: str) -> None:
    """A command that must succeed; its own words are in the output."""
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()

"""Process 1 of the lab's machine: makes it a node, runs pytest, hands the results out, switches it off.

QEMU has built the hardware that a file of tests/rig/nodes describes; what that file says besides (VFs, names, RDMA
devices) is made here. Neither side looks at what the other has done.

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
import tomllib
import traceback
from pathlib import Path
from typing import Any

LAB = Path("/srv/lab")
CHECKOUT = LAB / "checkout"
BECOME_SYSTEMD = CHECKOUT / "tests/lab/guest/become_systemd.py"
FSTAB = CHECKOUT / "tests/lab/guest/fstab"
RESULTS = Path("/run/lab/results")
CGROUPS = Path("/sys/fs/cgroup")
LAB_MODULES = Path("/usr/lib/lab/modules")
MODULES = ("rdma_rxe", "rdma_ucm", "ib_uverbs", "ib_umad", "veth", "overlay")
PCI_DEVICES = Path("/sys/bus/pci/devices")
NETDEVSIM = Path("/sys/bus/netdevsim")
NIC_CLASS = "0x020000"
ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "RDMA_LAB_RESULTS": str(RESULTS),
    "RIG_PATIENCE": "3",
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": f"/usr/lib/lab/site:{CHECKOUT}",
    "TERM": "linux",
}
READY = "lab: guest ready"
TEST_LIMIT_S = 900
"""Three times what the longest test took on a slow host, where emulated machines are three times slower than elsewhere.
A machine's first test takes longest: QEMU translates each program at its first run."""


def main() -> None:
    """Whatever happens, the machine is switched off at the end: it is how the host sees that it is over."""
    try:
        started = time.monotonic()
        os.environ.update(ENVIRONMENT)
        job: dict[str, Any] = json.loads((LAB / "job.json").read_text())
        if os.getpid() == 1:  # and not systemd
            run("mount", "-a", "-T", str(FSTAB))
            if job["systemd"]:
                os.execv(sys.executable, [sys.executable, "-B", str(BECOME_SYSTEMD)])  # it starts us again, as a unit
        if not job["shell"]:
            speak_over(port("lab"))
        os.environ["RDMA_LAB_MACHINE"] = job["machine"]
        RESULTS.mkdir(parents=True)
        node = tomllib.loads((CHECKOUT / f"tests/rig/nodes/{job['node']}.toml").read_text())
        if job["systemd"]:
            make_node_beside_systemd(node)
        else:
            make_node(node)
        ready = time.monotonic()
        print(f"{READY} after {ready:.1f} s (kernel {os.uname().release}, {ready - started:.1f} s of it init)")
        sys.stdout.flush()
        if job["shell"]:
            shell()
        else:
            code = run_pytest(job["pytest"], max(1, int(job["limit_s"] - ready)))
            hand_out({"exit": code, "ready_s": ready, "pytest_s": time.monotonic() - ready})
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        subprocess.run(["busybox", "poweroff", "-f"], check=False)


def make_node(node: dict[str, Any]) -> None:
    """cgroups, modules, netdevs and RDMA devices as described: what a node has before a runtime starts."""
    enable_controllers()
    run("modprobe", "-a", *MODULES)
    socket.sethostname("lab")
    run("ip", "link", "set", "lo", "up")
    nics = [function for function in node["functions"] if function["pci_class"] == NIC_CLASS]
    physical = [nic for nic in nics if "physfn" not in nic]
    bring_up(physical, node["netdevs"])
    for nic in physical:
        make_virtual_functions(nic, [it for it in nics if it.get("physfn") == nic["address"]], node["netdevs"])
    for netdev in node["netdevs"]:
        if "simulated" in netdev:
            simulate(netdev)
    make_rdma_devices(node)


def make_node_beside_systemd(node: dict[str, Any]) -> None:
    """The same where udev and networkd have the NICs, and systemd the cgroups."""
    run("udevadm", "settle")
    run("modprobe", "-a", *MODULES)
    run("/usr/lib/systemd/systemd-networkd-wait-online", "--timeout=60")
    make_rdma_devices(node)


def make_rdma_devices(node: dict[str, Any]) -> None:
    """Soft RoCE on the netdevs that are described with it."""
    for device in node["rdma"]:
        run("rdma", "link", "add", device["name"], "type", "rxe", "netdev", device["ports"][0]["gids"][0]["netdev"])


def enable_controllers() -> None:
    """cgroup v2 gives controllers only to the children of a group without processes of its own."""
    leaf = CGROUPS / "init"
    leaf.mkdir()
    (leaf / "cgroup.procs").write_text(str(os.getpid()))
    controllers = (CGROUPS / "cgroup.controllers").read_text().split()
    (CGROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))


def bring_up(nics: list[dict[str, Any]], netdevs: list[dict[str, Any]]) -> None:
    """Drivers for these PCI functions, and their netdevs up under the names that they are described with."""
    run("modprobe", "-a", *sorted({nic["driver"] for nic in nics}))  # netdevs are there when it returns
    for nic in nics:
        folder = PCI_DEVICES / nic["address"] / "net"
        if not folder.is_dir():
            raise RuntimeError(f"{nic['address']} has no netdev. There are:\n{shown('lspci', '-Dnnk')}")
        (found,) = folder.iterdir()
        rename(found.name, described(nic, netdevs)["name"])
        run("ip", "link", "set", described(nic, netdevs)["name"], "up")


def described(nic: dict[str, Any], netdevs: list[dict[str, Any]]) -> dict[str, Any]:
    """The netdev of a PCI function."""
    return next(netdev for netdev in netdevs if netdev.get("function") == nic["address"])


def rename(netdev: str, name: str) -> None:
    """A netdev gets the name that it is described with; it is down."""
    if netdev != name:
        run("ip", "link", "set", netdev, "name", name)


def make_virtual_functions(
    physical: dict[str, Any], virtual: list[dict[str, Any]], netdevs: list[dict[str, Any]]
) -> None:
    """Their driver asks the physical function, which must be up, for their MACs, and makes some up when it has none."""
    if not virtual:
        return
    (PCI_DEVICES / physical["address"] / "sriov_numvfs").write_text(str(physical["sriov_numvfs"]))
    for number, nic in enumerate(virtual):
        mac = described(nic, netdevs)["mac"]
        run("ip", "link", "set", described(physical, netdevs)["name"], "vf", str(number), "mac", mac)
    bring_up(virtual, netdevs)


def simulate(netdev: dict[str, Any]) -> None:
    """A device of netdevsim with one port, and VFs."""
    if not NETDEVSIM.exists():
        load_lab_module("netdevsim")
    number = netdev["simulated"]["number"]
    (NETDEVSIM / "new_device").write_text(f"{number} 1")
    device = NETDEVSIM / f"devices/netdevsim{number}"
    (device / "sriov_numvfs").write_text(str(netdev["simulated"]["sriov_numvfs"]))
    (found,) = (device / "net").iterdir()
    rename(found.name, netdev["name"])
    run("ip", "link", "set", netdev["name"], "address", netdev["mac"], "up")


def load_lab_module(name: str) -> None:
    """A module that the lab compiled, with what it needs of Debian's."""
    path = LAB_MODULES / f"{name}.ko"
    needs = [word for word in shown("modinfo", "-F", "depends", str(path)).strip().split(",") if word]
    if needs:
        run("modprobe", "-a", *needs)
    run("insmod", str(path))


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
    command += ["-o", f"timeout={TEST_LIMIT_S}"]
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
    if Path("/run/systemd/journal/socket").exists():
        with (RESULTS / "journal.log").open("wb") as out:
            subprocess.run(["journalctl", "--no-pager", "-o", "short-monotonic"], stdout=out, check=True)
    with tarfile.open(RESULTS / "bytecode.tar", "w") as tar:
        for path in CHECKOUT.rglob("*.pyc"):
            tar.add(path, arcname=path.relative_to(CHECKOUT))
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


def shown(*command: str) -> str:
    """What a command that must succeed prints."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()

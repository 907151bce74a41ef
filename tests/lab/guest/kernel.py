"""What the guest's kernel says, asked without the product."""

import errno
import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.guest import init
from tests.lab.outcomes import OutcomeError
from tests.rig import hoststate
from tests.rig.deadline import DeadlineError, wait_until

INFINIBAND = Path("/dev/infiniband")
RDMA_MODULES = ("rdma_rxe", "rdma_ucm", "ib_umad", "ib_uverbs")  # what they need goes and comes with them
_READINGS = 5
load_lab_module = init.load_lab_module


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """Everything that a pod's end must bring back."""

    network: hoststate.HostState
    rdma_links: list[dict[str, Any]]
    devices: dict[str, tuple[str, int, int]]  # name: mode, major, minor

    @classmethod
    def take(cls) -> "NodeState":
        return cls(network=hoststate.take(), rdma_links=rdma_links(), devices=infiniband_devices())

    def mac_of(self, netdev: str) -> str:
        """The address of one of the host's links."""
        return str(next(link["address"] for link in self.network.links.values() if link["ifname"] == netdev))

    def differences_to(self, after: "NodeState") -> list[str]:
        """One sentence per difference; empty when the node is as it was."""
        found = hoststate.difference(self.network, after.network)
        if self.rdma_links != after.rdma_links:
            found.append(f"rdma link was {self.rdma_links}, is {after.rdma_links}")
        if self.devices != after.devices:
            found.append(f"{INFINIBAND} was {self.devices}, is {after.devices}")
        return found


def rdma_links() -> list[dict[str, Any]]:
    """The RDMA ports of the host."""
    done = subprocess.run(["rdma", "-j", "link"], capture_output=True, text=True, check=True)
    links: list[dict[str, Any]] = json.loads(done.stdout)
    return links


def rdma(*words: str, namespace: str = "") -> None:
    """A command of `rdma`, given in a named namespace or the host's; OutcomeError: the kernel refuses."""
    enter = ("ip", "netns", "exec", namespace) if namespace else ()
    done = subprocess.run([*enter, "rdma", *words], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    by_text = {os.strerror(number): name for number, name in errno.errorcode.items()}
    by_text[os.strerror(errno.EOPNOTSUPP)] = "EOPNOTSUPP"  # ENOTSUP is the same number
    found = re.search(r"^(?:kernel answers|error): (.+)$", done.stderr, re.MULTILINE)
    raise OutcomeError(by_text.get(found.group(1), "?") if found else "?", f"rdma {' '.join(words)}: {done.stderr}")


def unload(module: str) -> None:
    """A driver out of the kernel, with the devices that it still has."""
    subprocess.run(["rmmod", module], check=True)


def rdma_devices(namespace: str = "") -> set[str]:
    """The names of the RDMA devices that a namespace sees."""
    enter = ("ip", "netns", "exec", namespace) if namespace else ()
    for _ in range(_READINGS):  # it asks for each device by itself, and ends where one has gone since it was listed
        done = subprocess.run([*enter, "rdma", "-j", "dev"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
    done.check_returncode()
    return {str(device["ifname"]) for device in json.loads(done.stdout)}


def infiniband_devices() -> dict[str, tuple[str, int, int]]:
    """The character devices of the host's RDMA subsystem; none where it has none."""
    found = {}
    for path in INFINIBAND.iterdir() if INFINIBAND.exists() else ():
        status = path.stat()
        found[path.name] = (stat.filemode(status.st_mode), os.major(status.st_rdev), os.minor(status.st_rdev))
    return found


def device_number(name: str) -> str:
    """`major:minor` of a uverbs device, out of sysfs."""
    return Path(f"/sys/class/infiniband_verbs/{name}/dev").read_text().strip()


def cgroup_file(pid: int, name: str) -> str:
    """A control file of the cgroup in which a process is."""
    return (_cgroup(pid) / name).read_text().strip()


def memlock(pid: int) -> tuple[str, str]:
    """RLIMIT_MEMLOCK of a process: soft and hard."""
    found = re.search(r"^Max locked memory\s+(\S+)\s+(\S+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    assert found is not None
    return found.group(1), found.group(2)


@contextmanager
def labs_rxe(device: str) -> Iterator[None]:
    """The lab's driver in the place of Debian's; the device is the same to the eye."""
    netdev = netdev_of(device)
    rdma("link", "delete", device)
    unload("rdma_rxe")
    load_lab_module("rdma_rxe")
    rdma("link", "add", device, "type", "rxe", "netdev", netdev)
    try:
        yield
    finally:
        rdma("link", "delete", device)
        unload("rdma_rxe")
        subprocess.run(["modprobe", "rdma_rxe"], check=True)
        rdma("link", "add", device, "type", "rxe", "netdev", netdev)


@contextmanager
def no_rdma(device: str) -> Iterator[None]:
    """A kernel without an RDMA subsystem for a while; afterwards Debian's rxe is there again under its name."""
    netdev = netdev_of(device)
    subprocess.run(["modprobe", "-r", *RDMA_MODULES], check=True)
    try:
        yield
    finally:
        subprocess.run(["modprobe", "-a", *RDMA_MODULES], check=True)
        rdma("link", "add", device, "type", "rxe", "netdev", netdev)


@contextmanager
def rdma_netns(mode: str) -> Iterator[None]:
    """Another rdmaNetns for a while; the kernel takes the change only while no other namespace exists."""
    _set_rdma_netns(mode)
    try:
        yield
    finally:
        _set_rdma_netns("shared")


def netdev_of(device: str) -> str:
    """The netdev that a soft device sits on."""
    return str(next(link["netdev"] for link in rdma_links() if link["ifname"] == device))


def _cgroup(pid: int) -> Path:
    (line,) = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return Path("/sys/fs/cgroup" + line.removeprefix("0::"))


def _set_rdma_netns(mode: str) -> None:
    def is_set() -> bool:
        with suppress(OutcomeError):
            rdma("system", "set", "netns", mode)
            return True
        return False

    try:
        wait_until(is_set, f"rdma system set netns {mode}", seconds=30)
    except DeadlineError as error:
        namespaces = subprocess.run(["lsns", "-t", "net"], capture_output=True, text=True, check=True).stdout
        raise DeadlineError(f"{error}; the machine has these network namespaces:\n{namespaces}") from error

"""The RDMA devices of this container, and the amount of memory that its programs may register."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from nri_rdma.errors import ErrorCode, ProofError
from nri_rdma.model.edits import DEVICES
from nri_rdma.model.proof import DeviceTask

_ACTIVE = "ACTIVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPorts:
    """The ports to test. `origin` says how their devices were found: by the command line, environment variables or
    device nodes."""

    ports: tuple[DeviceTask, ...]
    origin: str


def given(
    names: Sequence[str],
    environment: Mapping[str, str],
    sysfs: Path,
    dev: Path,
    *,
    gid_index: int | None = None,
    roce_version: int = 2,
) -> GivenPorts:
    """Return the ports of the named devices. Without names, take the devices in the variables RDMA_DEVICES_*, otherwise
    the devices whose uverbs nodes exist in this container.

    Raises ProofError if there is no device.
    """
    told = _told(environment)
    nodes = sorted(it.name for it in (dev / "infiniband").glob("uverbs*"))
    with_nodes = [] if names or told else list(_with_nodes(sysfs, dev))
    chosen, origin = next(
        (
            (found, words)
            for found, words in (
                (list(dict.fromkeys(names)), "the command line"),
                (told, f"the variables {DEVICES}*"),
                (with_nodes, f"the nodes in {dev}/infiniband"),
            )
            if found
        ),
        ([], ""),
    )
    if not chosen and nodes:
        what = f"no RDMA device of this node has the numbers of {', '.join(nodes)} in {dev}/infiniband"
        hint = "make the container again: a device that was reset, or came back from a pod, has new numbers"
        raise ProofError(ErrorCode.PROOF_DEVICE, what, hint=hint)
    if not chosen:
        what = f"no RDMA device was given to this container: {dev}/infiniband has no uverbs node"
        hint = "let its pod ask for devices; docs/check.md says what an ephemeral container gets"
        raise ProofError(ErrorCode.PROOF_DEVICE, what, hint=hint)
    ports = tuple(
        DeviceTask(device=name, port=port, gid_index=gid_index, roce_version=roce_version)
        for name in chosen
        for port in _ports(sysfs, name)
    )
    return GivenPorts(ports=ports, origin=origin)


def memlock() -> int | None:
    """Return how many bytes this process may lock in memory; None if there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def memory_max(proc: Path, cgroup_root: Path) -> int | None:
    """Return the memory limit of this process's cgroup in bytes; None if it has no limit or the limit cannot be
    read."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
        (own,) = (line.removeprefix("0::") for line in lines if line.startswith("0::"))
        text = (cgroup_root / own.lstrip("/") / "memory.max").read_text().strip()
    except (OSError, ValueError):
        return None  # a cgroup of version 1, or the root, which has no limit
    return int(text) if text.isdecimal() else None


def addresses() -> tuple[IPv4Address | IPv6Address, ...]:
    """Return the IP addresses of this network namespace, without loopback addresses. Raises KernelError if the kernel
    does not list them."""
    from nri_rdma.host.netlink.restore.link_contents import carried_interface, read_addresses
    from nri_rdma.host.netlink.sockets.route_socket import RouteSocket

    with RouteSocket() as route:
        found = [carried_interface(it).ip for it in read_addresses(route)]
    return tuple(it for it in found if not it.is_loopback)


def _told(environment: Mapping[str, str]) -> list[str]:
    """Return the RDMA devices named in the container's environment variables RDMA_DEVICES_*."""
    lists = (value for name, value in sorted(environment.items()) if name.startswith(DEVICES))
    return list(dict.fromkeys(name for it in lists for name in it.split(",") if name))


def _with_nodes(sysfs: Path, dev: Path) -> Iterator[str]:
    """Yield the names of the RDMA devices whose uverbs node exists in this container. Device numbers show to which
    device a node belongs."""
    numbers = set()
    for node in (dev / "infiniband").glob("uverbs*"):
        found = node.stat()
        if stat.S_ISCHR(found.st_mode):
            numbers.add(f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}")
    for folder in sorted((sysfs / "class/infiniband_verbs").glob("uverbs*"), key=lambda it: (len(it.name), it.name)):
        if (folder / "dev").read_text().strip() in numbers:
            yield (folder / "ibdev").read_text().strip()


def _ports(sysfs: Path, device: str) -> Iterator[int]:
    """Yield the active ports of a device; if no port is active, all ports. If sysfs lists no port, yield port 1."""
    folders = sorted((sysfs / "class/infiniband" / device / "ports").glob("[0-9]*"), key=lambda it: int(it.name))
    active = [it for it in folders if _ACTIVE in (it / "state").read_text()]
    yield from (int(it.name) for it in active or folders)
    if not folders:
        yield 1

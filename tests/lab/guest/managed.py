"""A node whose NICs udev and networkd manage, and what those two say of one."""

import json
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab.guest import kernel
from tests.rig.node import CharDevice, Function, Netdev, Node, Port, RdmaDevice

PCI_ROOT = "pci0000:00"
FIRST_UVERBS = 200  # the machine's own soft device has the first ones
SYSCTLS = Path("/proc/sys/net/ipv4/conf")
_LISTS = {"Addresses", "Neighbors", "Routes"}
_NAMING = ("Address", "PrefixLength", "Destination", "DestinationPrefixLength", "TableString", "TypeString")
_RTPROT_KERNEL = 2  # include/uapi/linux/rtnetlink.h
_VOLATILE_PROPERTIES = {"USEC_INITIALIZED", "CURRENT_TAGS", "SEQNUM", "ACTION"}


def described(names: tuple[str, ...]) -> Node:
    """A node whose RDMA devices sit on real netdevs of this machine: `rail0` on the first, and so on."""
    functions = {name: Path(f"/sys/class/net/{name}/device").resolve().name for name in names}
    return Node(
        name="managed",
        summary="RDMA devices that only a description knows, on NICs that exist",
        sockets=1,
        cpus_per_socket=2,
        functions=tuple(
            Function(
                address=address, under=PCI_ROOT, pci_class="0x020000", vendor="0x8086", device="0x10d3", driver="e1000e"
            )
            for address in functions.values()
        ),
        rdma=tuple(_rail(number, functions[name]) for number, name in enumerate(names)),
        netdevs=tuple(_netdev(name, functions[name]) for name in names),
        rdma_netns_mode="shared",
    )


def _rail(number: int, function: str) -> RdmaDevice:
    port = Port(number=1, link_layer="Ethernet", state="4: ACTIVE", phys_state="5: LinkUp", rate="100 Gb/sec (4X EDR)")
    return RdmaDevice(
        name=f"rail{number}",
        node_guid=f"0000:00ff:fe00:000{number}",
        sys_image_guid=f"0000:00ff:fe00:000{number}",
        node_type="1: CA",
        fw_ver="1.0",
        hca_type="described",
        node_desc="described",
        ports=(port,),
        function=function,
        uverbs=CharDevice(name=f"uverbs{number}", dev=f"231:{FIRST_UVERBS + number}"),
    )


def _netdev(name: str, function: str) -> Netdev:
    folder = Path("/sys/class/net", name)
    return Netdev(name=name, mac=(folder / "address").read_text().strip(), function=function)


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedState:
    """What a pod's end must bring back on such a node."""

    node: kernel.NodeState
    udev: dict[str, dict[str, str]]  # per netdev
    networkd: dict[str, Any]
    forwarding: dict[str, str]  # IPv4's: of all sysctls, the one that the node's state leaves out

    @classmethod
    def take(cls, names: tuple[str, ...]) -> "ManagedState":
        return cls(
            node=kernel.NodeState.take(),
            udev={name: udev_properties(name) for name in names},
            networkd={name: networkd_status(name) for name in names},
            forwarding={name: _forwarding(name) for name in names},
        )

    def differences_to(self, after: "ManagedState") -> list[str]:
        """One sentence per difference; empty when all are content."""
        found = self.node.differences_to(after.node)
        for name, before in self.udev.items():
            found += _differences(f"udev's {name}", before, after.udev[name])
        for name, before in self.networkd.items():
            found += _differences(f"networkd's {name}", before, after.networkd[name])
        return found + _differences("IPv4 forwarding", self.forwarding, after.forwarding)


def udev_properties(name: str) -> dict[str, str]:
    """What udev's database has of a netdev, links and tags too."""
    command = ["udevadm", "info", "--query=property", f"--path=/sys/class/net/{name}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    pairs = (line.partition("=") for line in done.stdout.splitlines())
    return {key: value for key, _, value in pairs if key not in _VOLATILE_PROPERTIES}


def networkd_status(name: str) -> dict[str, Any]:
    """What networkd says of a link. Of addresses, routes and neighbours only which there are: one that the product
    restored before networkd came to it is `foreign` in networkd's memory, and the same to the kernel. The kernel's own
    routes are left out: systemd 257 misses some that a returning netdev has, `hoststate` does not."""
    done = subprocess.run(["networkctl", "--json=short", "status", name], capture_output=True, text=True, check=False)
    status: dict[str, Any] = json.loads(done.stdout or "{}")
    return {key: _names(value) if key in _LISTS else value for key, value in status.items()}


def _names(things: list[dict[str, Any]]) -> list[str]:
    own = (thing for thing in things if thing.get("Protocol") != _RTPROT_KERNEL)
    return sorted(" ".join(str(thing[key]) for key in _NAMING if key in thing) for thing in own)


def _forwarding(name: str) -> str:
    """Empty while there is no netdev of that name."""
    with suppress(FileNotFoundError):
        return (SYSCTLS / name / "forwarding").read_text().strip()
    return ""


def _differences(of: str, before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [
        f"{of}: {key} was {before.get(key)!r}, is {after.get(key)!r}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]

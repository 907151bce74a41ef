"""A described node's links in a network namespace that plays the host, and pods in others.

Made and seen with `ip` alone, so that what was recorded can be built again without the code under test. Every link has
the number and the hardware address that it had when it was recorded: a namespace of one's own has all numbers free.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self  # Any: the JSON of ip

from tests.rig import sysctls
from tests.rig.fabric import address_commands, batch, link_commands, make_node
from tests.rig.node import Node
from tests.rig.record import base, process_started
from tests.rig.systree import build_proc, build_tree

FIRST_IFINDEX = 11
_SO_NETNS_COOKIE = 71  # asm-generic/socket.h
_ASK_COOKIE = f"""
import socket, sys
data = socket.socket().getsockopt(socket.SOL_SOCKET, {_SO_NETNS_COOKIE}, 8)
print(int.from_bytes(data, sys.byteorder))
"""
_PREPARE = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; ip link set lo up"
"""No duplicate address detection: its seconds of "tentative" would only make everything slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A link of a namespace as `ip` shows it; of its addresses those that somebody gave it."""

    ifindex: int
    name: str
    mac: str
    mtu: int
    up: bool
    addresses: tuple[str, ...]

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> Self:
        """A link in the file of a recording."""
        return cls(**{**table, "addresses": tuple(table["addresses"])})


class World:
    """The host, its pods, and the folders that stand for /sys, /dev and /proc. Use `make_world`."""

    def __init__(self, node: Node, run: Path, stack: ExitStack) -> None:
        self.node = node
        self.run = self.work = run
        self._stack = stack
        self.host, self._peers = self._namespace("host"), self._namespace("peers")
        self._peer_count = 0
        self._build()

    @property
    def sysfs(self) -> Path:
        """The tree that stands for /sys; it shows every netdev, wherever that is."""
        return self.run / "sys"

    @property
    def dev(self) -> Path:
        """The folder that stands for /dev."""
        return self.run / "dev"

    @property
    def proc(self) -> Path:
        """The folder that stands for /proc."""
        return self.run / "proc"

    @property
    def nri_socket(self) -> Path:
        """Where a runtime may listen."""
        return self.run / "nri.sock"

    def add_pod(self, name: str, eth0: int) -> Path:
        """The network namespace of a new pod; it has the link of a CNI plugin under that number."""
        netns = self._namespace(name)
        batch([self._pair("eth0", eth0, ""), "link set dev eth0 up"], "make the pod's link", netns)
        return netns

    def add_process(self) -> int:
        """A process that stands for a pod on the host's network."""
        process = subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process.pid

    def move(self, name: str, netns: Path, wanted: Seen) -> int:
        """Put a link of the host into a pod and make it what was seen there. Its number is the kernel's choice, and
        returned."""
        batch([f"link set dev {name} netns {netns} name {wanted.name}"], "move a link", self.host)
        commands = [f"link set dev {wanted.name} mtu {wanted.mtu}"]
        commands += [f"address add {address} dev {wanted.name} nodad" for address in wanted.addresses]
        commands += [f"link set dev {wanted.name} up"] if wanted.up else []
        batch(commands, "configure a link in a pod", netns)
        return next(link.ifindex for link in links_of(netns) if link.name == wanted.name)

    def set_sysctls(self, values: Mapping[str, Iterable[str]]) -> None:
        """Lines like `ipv4/conf/rp_filter 1` for the host's links by name; what cannot be set here is left out."""
        wanted = {}
        for name, lines in values.items():
            for line in lines:
                sysctl, _, value = line.partition(" ")
                table, _, key = sysctl.rpartition("/")
                wanted[f"{table}/{name}/{key}"] = value
        found = sysctls.take(self.host)
        sysctls.put(self.host, {name: value for name, value in wanted.items() if found.get(name, value) != value})

    def _build(self) -> None:
        netdevs = self.node.netdevs
        numbers = {netdev.name: FIRST_IFINDEX + number for number, netdev in enumerate(netdevs)}
        pairs = [self._pair(it.name, numbers[it.name], f"address {it.mac} mtu {it.mtu}") for it in netdevs]
        batch(pairs, "make the links", self.host)
        batch([f"link set dev p{number} up" for number in range(len(pairs))], "raise their other ends", self._peers)
        build_tree(self.node, self.sysfs, numbers)
        build_proc(self.node, self.proc)
        for device in self.node.char_devices:
            make_node(self.dev / "infiniband" / device.name, device)
        batch(link_commands(netdevs), "set up the links", self.host)
        self.set_sysctls({it.name: [line.replace("=", " ") for line in it.sysctls] for it in netdevs})
        batch(address_commands(netdevs), "configure the links", self.host)
        batch([f"rule add {rule}" for rule in self.node.rules], "add the rules", self.host)

    def _pair(self, name: str, ifindex: int, words: str) -> str:
        """The command for a veth whose other end is in a namespace of its own."""
        peer, self._peer_count = f"p{self._peer_count}", self._peer_count + 1
        return f"link add name {name} index {ifindex} {words} type veth peer name {peer} mtu 9000 netns {self._peers}"

    def _namespace(self, name: str) -> Path:
        path = self.run / f"netns-{name}"
        path.touch()
        self._stack.callback(path.unlink)
        subprocess.run(["unshare", f"--net={path}", "sh", "-c", _PREPARE], check=True)
        self._stack.callback(subprocess.run, ["umount", "--lazy", str(path)], check=True)
        return path


@contextmanager
def make_world(node: Node) -> Iterator[World]:
    """The world of a node, which is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="nrirdma-world-", dir=base()) as run, ExitStack() as stack:
        yield World(node, Path(run), stack)


def links_of(netns: Path) -> tuple[Seen, ...]:
    """The links of a namespace but for its loopback."""
    command = ["nsenter", f"--net={netns}", "ip", "-j", "address", "show"]
    shown: list[dict[str, Any]] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return tuple(
        Seen(
            ifindex=link["ifindex"],
            name=link["ifname"],
            mac=link["address"],
            mtu=link["mtu"],
            up="UP" in link["flags"],
            addresses=tuple(f"{it['local']}/{it['prefixlen']}" for it in link["addr_info"] if it["scope"] != "link"),
        )
        for link in shown
        if link["link_type"] != "loopback"
    )


def cookie_of(netns: Path) -> int:
    """The number by which the kernel knows a network namespace, until the next boot."""
    command = ["nsenter", f"--net={netns}", sys.executable, "-IS", "-c", _ASK_COOKIE]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


def start_of(pid: int) -> int:
    """When a process began, in ticks since the boot."""
    return int(process_started(pid))


def boot_id() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

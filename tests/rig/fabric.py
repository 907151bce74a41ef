"""Makes a described node real on this host, as far as a host without RDMA hardware can.

Each netdev becomes a veth whose other end hangs on a bridge in a network namespace of the rig's own, or a macvlan on a
pair there, so that pods which get them reach each other. Character devices are real nodes below a folder; the sysfs
tree carries the real ifindexes. An IPoIB netdev is stood in for by an Ethernet veth, in the tree too. Everything is
gone after close().
"""

import atexit
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from ipaddress import ip_interface, ip_network
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.rig.deadline import wait_until
from tests.rig.node import ETHERNET, CharDevice, Netdev, Node
from tests.rig.record import base, may_sweep, own_network, process_started, read_in_bases, sweeping, write_whole
from tests.rig.systree import build_proc, build_tree

_PREFIX = "nrirdma-fabric-"
_RECORD = "fabric.json"
_BRIDGE = "br0"
_BRIDGE_COMMANDS = (
    f"link add name {_BRIDGE} type bridge",
    f"link set dev {_BRIDGE} addrgenmode none",
    f"link set dev {_BRIDGE} up",
)
_VETH = "veth"
# Addresses of links that arrive in the host are usable at once instead of after a second or two of "tentative",
# which would make every comparison of the host's state wait. Links of other namespaces are not affected.
_ACCEPT_DAD = Path("/proc/sys/net/ipv6/conf/default/accept_dad")


class FabricError(Exception):
    """Why the node cannot be made on this host, with the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """What a fabric owns, kept in its folder for whoever must clean up after a killed process."""

    run: str
    owner_pid: int
    owner_started: str
    network: str
    accept_dad: str
    peers: tuple[str, ...]
    rules: tuple[str, ...]


class Fabric:
    """A node on this host, from construction to close(); also a context manager."""

    def __init__(self, node: Node) -> None:
        sweep()
        self.node = replace(node, netdevs=tuple(_stand_in(it) for it in node.netdevs))
        _refuse_taken_names(self.node)
        _refuse_taken_networks(self.node)
        self.run = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base()))
        self._record = _Record(
            run=str(self.run),
            owner_pid=os.getpid(),
            owner_started=process_started(os.getpid()),
            network=own_network(),
            accept_dad=_ACCEPT_DAD.read_text().strip() if _ACCEPT_DAD.exists() else "",
            peers=tuple(_far_end(number, netdev) for number, netdev in enumerate(node.netdevs)),
            rules=node.rules,
        )
        write_whole(self.run / _RECORD, asdict(self._record))
        atexit.register(self.close)
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    @property
    def sysfs(self) -> Path:
        """The tree that stands for /sys."""
        return self.run / "sys"

    @property
    def dev(self) -> Path:
        """The folder that stands for /dev; the nodes are below `infiniband/`."""
        return self.run / "dev"

    @property
    def proc(self) -> Path:
        """The folder that stands for /proc; it has what GPU drivers tell."""
        return self.run / "proc"

    @property
    def netns(self) -> Path:
        """The namespace with the other ends of the links; in it `p0` is the peer of the first netdev, and so on."""
        return self.run / "net"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def ifindex(self, name: str) -> int:
        """The interface number of a netdev of the node, as it was when the node was made."""
        return int((self.sysfs / "class/net" / name / "ifindex").read_text())

    def char_device(self, name: str) -> CharDevice:
        """A character device of the node by its name, for instance uverbs3."""
        return {device.name: device for device in self.node.char_devices}[name]

    def peer(self, name: str) -> str:
        """The name of a netdev's other end, in the namespace."""
        return f"p{[netdev.name for netdev in self.node.netdevs].index(name)}"

    def rebuild_tree(self) -> None:
        """Writes the sysfs tree again with the links that are on the host now, as the kernel's own always is."""
        shutil.rmtree(self.sysfs, ignore_errors=True)
        build_tree(self.node, self.sysfs, _ifindexes(self.node))
        build_proc(self.node, self.proc)

    def repair(self) -> None:
        """Makes the links that are gone again."""
        here = {link["ifname"] for link in _links(None)}
        gone = {number: it for number, it in enumerate(self.node.netdevs) if it.name not in here}
        _delete_pairs(self.netns, tuple(_far_end(number, netdev) for number, netdev in gone.items()))
        self._make_links(gone)

    def bring_back(self) -> None:
        """Makes the links again that ended with a pod's namespace: the kernel gives hardware back to the host."""
        ends = {link["ifname"] for link in _links(self.netns)}
        lost = {number: it for number, it in enumerate(self.node.netdevs) if _far_end(number, it) not in ends}
        if lost:
            self._make_links(lost)

    def close(self) -> None:
        """Removes the links wherever they are by now, the namespace and the folders. Again is no error."""
        if self.run.exists():
            _remove(self._record)
        atexit.unregister(self.close)

    def _build(self) -> None:
        # A network namespace that a file keeps, without /run/netns, where it would look like a pod's.
        self.netns.touch()
        _run(["unshare", f"--net={self.netns}", "true"], "make a network namespace")
        if _ACCEPT_DAD.exists():
            _ACCEPT_DAD.write_text("0")
        batch(_BRIDGE_COMMANDS, "make a bridge", self.netns)
        self._make_links(dict(enumerate(self.node.netdevs)))
        batch([f"rule add {rule}" for rule in self.node.rules], "add the rules")
        for device in self.node.char_devices:
            make_node(self.dev / "infiniband" / device.name, device)

    def _make_links(self, netdevs: Mapping[int, Netdev]) -> None:
        """The netdevs, by their place in the node. They come up when the tree is in place, for who listens."""
        batch(_pair_commands(netdevs, self.netns), "make the links")
        batch(_far_commands(netdevs), "set up their other ends", self.netns)
        self.rebuild_tree()
        batch(link_commands(netdevs.values()), "set up the links")
        wait_until(lambda: _are_up(netdevs.values()), "the node's links to be up")
        for netdev in netdevs.values():
            _set_sysctls(netdev)
        batch(address_commands(netdevs.values()), "configure the links")
        wait_until(lambda: _are_routed(netdevs.values()), "their IPv6 addresses to be in use")


def sweep() -> None:
    """Removes fabrics whose process was killed."""
    with sweeping():
        for values in read_in_bases(f"{_PREFIX}*/{_RECORD}"):
            record = _Record(**values | {"peers": tuple(values["peers"]), "rules": tuple(values["rules"])})
            if process_started(record.owner_pid) != record.owner_started and may_sweep(record.network):
                _remove(record)


def _remove(record: _Record) -> None:
    run = Path(record.run)
    netns = run / "net"
    if any(line.split()[4] == str(netns) for line in Path("/proc/self/mountinfo").read_text().splitlines()):
        wait_until(lambda: _delete_pairs(netns, record.peers), "the node's links to be gone")
        _run(["umount", str(netns)], "remove the network namespace")
    for rule in record.rules if record.network == own_network() else ():
        # A rule that never came to be is what we want; ip says so with an error.
        subprocess.run(["ip", "rule", "delete", *rule.split()], capture_output=True, check=False)
    if record.accept_dad and record.network == own_network():
        _ACCEPT_DAD.write_text(record.accept_dad)
    shutil.rmtree(run)


def _delete_pairs(netns: Path, peers: Sequence[str]) -> bool:
    """Deletes the pairs at once, also those whose host end is renamed or in a pod's namespace."""
    left = [name for link in _links(netns) if (name := link["ifname"]) in peers]
    # Without a check: a pair whose pod ended may vanish by itself after we listed it. The next look decides.
    text = "\n".join(f"link delete {peer}" for peer in left) + "\n"
    command = [*_inside(netns), "ip", "-force", "-batch", "-"]
    subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return not left


def _refuse_taken_names(node: Node) -> None:
    taken: dict[str, str] = {}
    for link in _links(None):
        for name in (link["ifname"], *link.get("altnames", ())):
            taken[name] = link["ifname"]
    wanted = [name for netdev in node.netdevs for name in (netdev.name, *netdev.altnames)]
    if clashes := [name for name in wanted if name in taken]:
        raise FabricError(
            f"node {node.name} needs the link name {clashes[0]}, which link {taken[clashes[0]]} of this host has. "
            "Next: close the other fabric, or remove that link."
        )


def _refuse_taken_networks(node: Node) -> None:
    """An address of the node on a network that this host already reaches would take that network's traffic."""
    routes = json.loads(_run(["ip", "-j", "route", "show", "table", "all"], "list the routes") or "[]")
    routes += json.loads(_run(["ip", "-j", "-6", "route", "show", "table", "all"], "list the routes") or "[]")
    reached = {ip_network(it["dst"]): it.get("dev") for it in routes if it["dst"] != "default" and "type" not in it}
    for netdev in node.netdevs:
        for address in netdev.addresses:
            own = ip_interface(address.split()[0]).network
            for network, dev in reached.items():
                if network.version == own.version and network.overlaps(own):
                    raise FabricError(
                        f"node {node.name} needs {own} on {netdev.name}, but this host reaches {network} on {dev}. "
                        "Next: run it on a host without that route."
                    )


def _stand_in(netdev: Netdev) -> Netdev:
    """An Ethernet netdev for one that only InfiniBand hardware can give, with the end of its address."""
    if netdev.link_type == ETHERNET:
        return netdev
    mac = "02:" + ":".join(netdev.mac.split(":")[-5:])
    return replace(netdev, link_type=ETHERNET, mac=mac)


def _far_end(number: int, netdev: Netdev) -> str:
    """What ends the link wherever it is, when it is deleted: a veth's other end, what is below a macvlan."""
    return f"p{number}" if netdev.kind == _VETH else f"below{number}"


def _pair_commands(netdevs: Mapping[int, Netdev], netns: Path) -> list[str]:
    return [
        f"link add name {netdev.name} address {netdev.mac} mtu {netdev.mtu} "
        f"type veth peer name p{number} mtu {netdev.mtu} netns {netns}"
        for number, netdev in netdevs.items()
        if netdev.kind == _VETH
    ]


def _far_commands(netdevs: Mapping[int, Netdev]) -> list[str]:
    """In the namespace: macvlans on pairs of their own, sent to the host; all other ends on the bridge."""
    commands = []
    for number, netdev in netdevs.items():
        if netdev.kind != _VETH:
            below = _far_end(number, netdev)
            commands += [
                f"link add name {below} mtu {netdev.mtu} type veth peer name p{number} mtu {netdev.mtu}",
                f"link set dev {below} addrgenmode none",
                f"link set dev {below} up",
                f"link add link {below} name {netdev.name} address {netdev.mac} mtu {netdev.mtu} netns {os.getpid()} "
                f"type {netdev.kind} mode bridge",
            ]
        commands += [
            f"link set dev p{number} addrgenmode none",
            f"link set dev p{number} master {_BRIDGE}",
            f"link set dev p{number} up",
        ]
    return commands


def link_commands(netdevs: Iterable[Netdev]) -> list[str]:
    """Commands of `ip` that give links their other names and raise them."""
    commands = []
    for netdev in netdevs:
        commands += [
            *(f"link property add dev {netdev.name} altname {name}" for name in netdev.altnames),
            *([f'link set dev {netdev.name} alias "{netdev.alias}"'] if netdev.alias else []),
            f"link set dev {netdev.name} up",
        ]
    return commands


def _set_sysctls(netdev: Netdev) -> None:
    for line in netdev.sysctls:
        place, _, value = line.partition("=")
        table, _, key = place.rpartition("/")
        Path("/proc/sys/net", table, netdev.name, key).write_text(value)


def address_commands(netdevs: Iterable[Netdev]) -> list[str]:
    """Commands of `ip` that give links their addresses, then their routes and neighbours."""
    commands, after = [], []
    for netdev in netdevs:
        commands += [f"address add dev {netdev.name} {address}" for address in netdev.addresses]
        after += [f"route add {route} dev {netdev.name}" for route in netdev.routes]
        after += [f"neighbour add {neighbour} dev {netdev.name}" for neighbour in netdev.neighbours]
    return commands + after


def _are_up(netdevs: Iterable[Netdev]) -> bool:
    links = {link["ifname"]: link for link in _links(None)}
    return all(links[netdev.name]["operstate"] == "UP" for netdev in netdevs)


def _are_routed(netdevs: Iterable[Netdev]) -> bool:
    """The kernel makes the route of an IPv6 address, also of one that it makes itself, a little later."""
    names = {netdev.name for netdev in netdevs}
    listed = json.loads(_run(["ip", "-j", "-6", "address", "show"], "list the addresses") or "[]")
    own = {(it["local"], link["ifname"]) for link in listed if link["ifname"] in names for it in link["addr_info"]}
    shown = _run(["ip", "-j", "-6", "route", "show", "table", "local", "type", "local"], "list the routes")
    routed = {(it["dst"], it["dev"]) for it in json.loads(shown or "[]")}
    return {name for _, name in own} == names and own <= routed


def _ifindexes(node: Node) -> dict[str, int]:
    found = {link["ifname"]: int(link["ifindex"]) for link in _links(None)}
    return {netdev.name: found[netdev.name] for netdev in node.netdevs if netdev.name in found}


def make_node(path: Path, device: CharDevice) -> None:
    """Make a character device's node."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, 0o020000 | device.mode, os.makedev(device.major, device.minor))
    path.chmod(device.mode)  # whatever the umask


def _links(netns: Path | None) -> list[dict[str, Any]]:
    command = [*_inside(netns), "ip", "-j", "link", "show"]
    answer: list[dict[str, Any]] = json.loads(_run(command, "list the links") or "[]")
    return answer


def batch(commands: Sequence[str], purpose: str, netns: Path | None = None) -> None:
    """Have `ip` do these commands, on the host or in a network namespace. Raises FabricError."""
    _run([*_inside(netns), "ip", "-batch", "-"], purpose, "\n".join(commands) + "\n")


def _inside(netns: Path | None) -> list[str]:
    return ["nsenter", f"--net={netns}"] if netns else []


def _run(command: Sequence[str], purpose: str, text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FabricError(f"could not {purpose}: {done.stderr.strip()}. Next: run as root on a kernel with veth.")
    return done.stdout

"""What a container really has, asked inside it with busybox, and what it should have, from the node's description."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.rig.cri import Container, Cri
from tests.rig.fabric import Fabric
from tests.rig.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One container from inside: device nodes by name with major:minor and mode, links by name with MAC, env."""

    nodes: dict[str, str]
    modes: dict[str, str]
    macs: dict[str, str]
    mtus: dict[str, int]
    addresses: dict[str, list[str]]
    env: dict[str, str]
    memlock_kib: str


LOOK = """
for n in /dev/infiniband/*; do [ -e "$n" ] && echo "node $(basename $n) $(stat -c '%t %T %a' $n)"; done
for i in /sys/class/net/*; do echo "link $(basename $i) $(cat $i/address) $(cat $i/mtu)"; done
ip -o addr | while read -r _ name family address rest; do echo "addr $name $address"; done
echo "memlock $(ulimit -l)"
env | while read -r line; do echo "env $line"; done
"""


def look(cri: Cri, container: Container) -> Seen:
    """What the container has."""
    result = cri.exec(container, ["sh", "-c", LOOK])
    assert result.exit_code == 0, result.stderr
    return read_seen(result.stdout)


def read_seen(text: str) -> Seen:
    """What LOOK has written in a container."""
    seen = Seen(nodes={}, modes={}, macs={}, mtus={}, addresses={}, env={}, memlock_kib="")
    memlock = ""
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        match kind:
            case "node":
                name, major, minor, mode = rest.split()
                seen.nodes[name] = f"{int(major, 16)}:{int(minor, 16)}"
                seen.modes[name] = mode
            case "link":
                name, mac, mtu = rest.split()
                seen.macs[name] = mac
                seen.mtus[name] = int(mtu)
            case "addr":
                name, address = rest.split()
                seen.addresses.setdefault(name, []).append(address)
            case "memlock":
                memlock = rest
            case "env":
                key, _, value = rest.partition("=")
                seen.env[key] = value
    return Seen(
        nodes=seen.nodes,
        modes=seen.modes,
        macs=seen.macs,
        mtus=seen.mtus,
        addresses=seen.addresses,
        env=seen.env,
        memlock_kib=memlock,
    )


def assert_no_nodes(cri: Cri, container: Container) -> None:
    """Have busybox in the container say that there is no folder of RDMA nodes; that it fails for another reason is no
    answer."""
    shown = cri.exec(container, ["ls", "/dev/infiniband"])
    assert shown.exit_code != 0, shown.stdout
    assert shown.stderr.strip() == "ls: /dev/infiniband: No such file or directory", shown


def tree_number(fabric: Fabric, name: str) -> str:
    """major:minor of a character device, read from the tree's own `dev` file."""
    found = list(Path(fabric.sysfs).glob(f"class/*/{name}/dev"))
    assert len(found) == 1, f"{name}: {found}"
    return found[0].read_text().strip()


def described_mac(fabric: Fabric, netdev: str) -> str:
    """The MAC that the node's description gives a netdev."""
    return next(it.mac for it in fabric.node.netdevs if it.name == netdev)


def host_link(name: str) -> dict[str, object] | None:
    """A link of the host as `ip -j` shows it; None when the host has none of that name."""
    done = subprocess.run(["ip", "-j", "link", "show", "dev", name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return None
    document: list[dict[str, object]] = json.loads(done.stdout)
    return document[0]


def real_mode(fabric: Fabric, name: str) -> str:
    """The permissions of a character device's node on the host, in octal."""
    return f"{(fabric.dev / 'infiniband' / name).stat().st_mode & 0o7777:o}"


def described_root(node: Node, function: str) -> str:
    """The PCI root, such as pci0000:17, above a function of the node's description."""
    parents = {it.address: it.under for it in node.functions}
    place = function
    while place in parents:
        place = parents[place]
    return place

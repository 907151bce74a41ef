"""`nri-rdma inventory`: shows the RDMA devices and GPUs of this node."""

from __future__ import annotations

from pathlib import Path

import click

from nri_rdma.commands.common.options import asking_options, output_option, snapshot_option
from nri_rdma.commands.common.screen import Screen, TextTable, print_json
from nri_rdma.config.settings import Settings
from nri_rdma.model.device import CharDevice, Node, RdmaDevice

_ETHERNET_LENGTH = len("00:00:00:00:00:00")
_NETNS_WORDS = {
    "shared": "shared (every network namespace sees every RDMA device)",
    "exclusive": "exclusive (an RDMA device is in one network namespace)",
    "none": "none (this kernel has no RDMA subsystem, or hides its mode)",
}


@click.command()
@asking_options("sysfs_root", "dev_root", "proc_root", "cgroup_root", "node_ip", "api_server")
@snapshot_option
@output_option
def inventory(settings: Settings, snapshot: Path | None, output: str) -> None:
    """Show the RDMA devices and GPUs of this node.

    Needs no root. `nri-rdma status` shows which pods hold them.

    \b
    Example:
      nri-rdma inventory
      nri-rdma inventory --sysfs-root ./node/sys --dev-root ./node/dev -o json
      nri-rdma inventory --snapshot node.json
    """
    from nri_rdma.commands.common.local_node import read_node
    from nri_rdma.commands.common.node_file import document_of

    node, sentences = read_node(settings, snapshot)
    if output == "json":
        print_json(document_of(node, sentences))
        return
    screen = Screen()
    _show(screen, node, f"{settings.sysfs_root}/class/infiniband is absent or empty" if snapshot is None else "")
    for sentence in sentences:
        screen.line(sentence)


def _show(screen: Screen, node: Node, why_none: str) -> None:
    if node.devices:
        screen.table(_devices(node))
        screen.line()
        screen.table(_netdevs(node))
    else:
        screen.line(f"This machine has no RDMA device{f' ({why_none})' if why_none else ''}.")
    screen.line()
    if node.gpus:
        rows = tuple(
            (
                str(gpu.pci),
                gpu.pci_root,
                _numa(gpu.numa_node),
                gpu.vendor,
                gpu.uuid or ", ".join(gpu.node_names) or "-",
            )
            for gpu in node.gpus
        )
        screen.table(
            TextTable(
                title=f"{len(rows)} GPU{'' if len(rows) == 1 else 's'}",
                headings=("PCI", "ROOT", "NUMA", "VENDOR", "KNOWN AS"),
                rows=rows,
            )
        )
        screen.line()
    screen.facts(
        (
            ("RDMA netns", _NETNS_WORDS[node.rdma_netns]),
            ("rdma cgroup", "yes" if node.rdma_cgroup else "no (limits are refused)"),
            ("rdma_cm", _char_words(node.rdma_cm) if node.rdma_cm else "no"),
        )
    )


def _devices(node: Node) -> TextTable:
    return TextTable(
        title=f"{len(node.devices)} RDMA device{'' if len(node.devices) == 1 else 's'}",
        headings=("DEVICE", "PCI", "ROOT", "NUMA", "LINK", "SPEED", "STATE", "IN USE"),
        rows=tuple(
            (
                device.name,
                str(device.pci or "-"),
                device.pci_root or "-",
                _numa(device.numa_node),
                device.link_layer or "-",
                f"{device.speed_gbps}G" if device.speed_gbps else "-",
                device.port_state or "-",
                _use_words(device),
            )
            for device in node.devices
        ),
    )


def _use_words(device: RdmaDevice) -> str:
    words = "; ".join((*device.uses, *device.ties))
    return f"{words} (can be shared)" if device.ties and not device.uses else words or "no"


def _netdevs(node: Node) -> TextTable:
    rows = tuple(row for device in node.devices for row in _netdev_rows(device))
    return TextTable(title="", headings=("DEVICE", "NETDEV", "MAC", "MTU", "LINK", "CHARACTER DEVICES"), rows=rows)


def _netdev_rows(device: RdmaDevice) -> list[tuple[str, ...]]:
    nodes = ", ".join(map(_char_words, device.char_devices)) or "none"
    if not device.netdevs:
        return [(device.name, "none", "-", "-", "-", nodes)]
    return [
        (device.name, netdev.name, _mac(netdev.mac), str(netdev.mtu), "up" if netdev.up else "down", nodes)
        for netdev in device.netdevs
    ]


def _mac(address: str) -> str:
    """Return a MAC address for the table. Of an IPoIB address with 20 octets only the last eight are shown, which are
    the port's GUID; the JSON document has all of them."""
    return address if len(address) <= _ETHERNET_LENGTH else f"..{address[-23:]}"


def _char_words(char: CharDevice) -> str:
    return f"{char.path.rpartition('/')[2]} {char.major}:{char.minor}"


def _numa(number: int | None) -> str:
    return "-" if number is None else str(number)

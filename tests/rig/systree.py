"""Writes a node description as the sysfs tree a kernel would show, and what GPU drivers would show in procfs.

Shapes, links and line ends are the kernel's (6.1 to 7.2). Two things a folder cannot do: unused entries of a GID table
answer EINVAL in the kernel, here their attribute files are absent; and of the table only the first free entry is shown.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.rig.node import ETHERNET, CharDevice, Function, Gpu, Netdev, Node, Port, RdmaDevice

_FIRST_IFINDEX = 100
_UP = 0x1003  # IFF_UP | IFF_BROADCAST | IFF_MULTICAST
_ZERO_GID = ":".join(["0000"] * 8)


def build_tree(node: Node, root: Path, ifindexes: Mapping[str, int] | None = None) -> None:
    """Writes the tree below root (which stands for /sys).

    Without ifindexes the netdevs are numbered from 100; with them, a netdev that has none is in another network
    namespace and not shown, as the kernel does it.
    """
    if ifindexes is None:
        ifindexes = {netdev.name: _FIRST_IFINDEX + number for number, netdev in enumerate(node.netdevs)}
    tree = _Tree(root)
    _write_sockets(tree, node)
    places = {function.address: _place(node, function.address) for function in node.functions}
    for function in node.functions:
        _write_function(tree, places[function.address], function, node)
    for device in node.rdma:
        _write_rdma(tree, places.get(device.function), device)
    for netdev in node.netdevs:
        if netdev.name in ifindexes:
            _write_netdev(tree, _parent(netdev, places), netdev, ifindexes[netdev.name])
    if node.rdma:
        tree.write("class/infiniband_verbs/abi_version", "6")
    if any(device.umad for device in node.rdma):
        tree.write("class/infiniband_mad/abi_version", "5")
    if node.rdma_cm:
        _write_class_device(tree, "devices/virtual/misc", "misc", node.rdma_cm, attributes={})
    if node.rdma_netns_mode:
        # The module's parameter is a boolean "devices are shared between namespaces".
        tree.write("module/ib_core/parameters/netns_mode", "Y" if node.rdma_netns_mode == "shared" else "N")
    for gpu in node.gpus:
        for class_name, chars in (("drm", gpu.drm), ("accel", gpu.accel)):
            for char in chars:
                _write_gpu_node(tree, places[gpu.function], class_name, char)


def build_proc(node: Node, root: Path) -> None:
    """Writes what NVIDIA's driver shows below root (which stands for /proc); nothing on a node without it."""
    told = [gpu for gpu in node.gpus if gpu.minor >= 0]
    for gpu in told:
        file = root / f"driver/nvidia/gpus/{gpu.function}/information"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(_information(gpu))
    if told:
        chars = ("  1 mem", "195 nvidia", "195 nvidia-modeset", "195 nvidiactl", "226 drm", "234 nvidia-caps")
        blocks = ("  7 loop", "259 blkext")
        lines = ("Character devices:", *chars, "", "Block devices:", *blocks)
        (root / "devices").write_text("".join(f"{line}\n" for line in lines))


def _information(gpu: Gpu) -> str:
    """As release 535 of the driver writes it: a name, tabs and blanks, a value."""
    lines = (
        ("Model:", "NVIDIA H100 80GB HBM3"),
        ("IRQ:  ", "10"),
        ("GPU UUID:", gpu.uuid),
        ("Video BIOS:", "96.00.99.00.01"),
        ("Bus Type:", "PCIe"),
        ("DMA Size:", "52 bits"),
        ("DMA Mask:", "0xfffffffffffff"),
        ("Bus Location:", gpu.function),
        ("Device Minor:", str(gpu.minor)),
        ("GPU Firmware:", "535.129.03"),
        ("GPU Excluded:", "No"),
    )
    return "".join(f"{name} \t {value}\n" for name, value in lines)


class _Tree:
    """Files and links below a root, by their path from it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        for folder in ("bus/pci/devices", "bus/pci/drivers", "class/net", "devices"):
            (root / folder).mkdir(parents=True, exist_ok=True)

    def write(self, path: str, value: object) -> None:
        """An attribute, with the newline every one ends in."""
        file = self._root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{value}\n")

    def write_bytes(self, path: str, content: bytes) -> None:
        """A binary attribute."""
        (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        (self._root / path).write_bytes(content)

    def link(self, path: str, target: str) -> None:
        """A relative link, as sysfs has them; the target becomes a folder when it is not there yet."""
        place = self._root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        (self._root / target).mkdir(parents=True, exist_ok=True)
        place.symlink_to(os.path.relpath(self._root / target, place.parent))


def _place(node: Node, address: str) -> str:
    """The folder of a function: its bridges' folders, from the root down."""
    parents = {function.address: function.under for function in node.functions}
    parts = [address]
    while parts[0] in parents:
        parts.insert(0, parents[parts[0]])
    return "devices/" + "/".join(parts)


def _write_sockets(tree: _Tree, node: Node) -> None:
    tree.write("devices/system/node/online", _range(0, node.sockets))
    for number in range(node.sockets):
        place = f"devices/system/node/node{number}"
        first = number * node.cpus_per_socket
        tree.write(f"{place}/cpulist", _range(first, node.cpus_per_socket))
        tree.write(f"{place}/distance", " ".join("10" if it == number else "21" for it in range(node.sockets)))


def _range(first: int, count: int) -> str:
    return f"{first}-{first + count - 1}" if count > 1 else str(first)


def _write_function(tree: _Tree, place: str, function: Function, node: Node) -> None:
    cpus = _range(function.numa_node * node.cpus_per_socket, node.cpus_per_socket) if function.numa_node >= 0 else ""
    attributes = {
        "vendor": function.vendor,
        "device": function.device,
        "subsystem_vendor": function.vendor,
        "subsystem_device": "0x0001",
        "class": function.pci_class,
        "revision": "0x00",
        "numa_node": function.numa_node,
        "local_cpulist": cpus,
        "enable": 1,
        "uevent": "\n".join(
            [
                *([f"DRIVER={function.driver}"] if function.driver else []),
                f"PCI_CLASS={int(function.pci_class, 16):X}",
                f"PCI_ID={function.vendor[2:].upper()}:{function.device[2:].upper()}",
                f"PCI_SLOT_NAME={function.address}",
            ]
        ),
    }
    if function.acs:
        tree.write_bytes(f"{place}/config", _configuration(has_redirects=function.acs == "redirect"))
    if function.iommu:
        group = f"kernel/iommu_groups/{function.address}"  # the kernel's are numbers
        tree.write(f"{group}/type", function.iommu)
        tree.link(f"{place}/iommu_group", group)
    if function.sriov_totalvfs:
        attributes |= {"sriov_totalvfs": function.sriov_totalvfs, "sriov_numvfs": function.sriov_numvfs}
    for name, value in attributes.items():
        tree.write(f"{place}/{name}", value)
    tree.link(f"{place}/subsystem", "bus/pci")
    tree.link(f"bus/pci/devices/{function.address}", place)
    if function.driver:
        tree.link(f"{place}/driver", f"bus/pci/drivers/{function.driver}")
        tree.link(f"bus/pci/drivers/{function.driver}/{function.address}", place)
    if function.physfn:
        tree.link(f"{place}/physfn", _place(node, function.physfn))
    virtual = sorted(other.address for other in node.functions if other.physfn == function.address)
    for number, address in enumerate(virtual):
        tree.link(f"{place}/virtfn{number}", _place(node, address))


def _configuration(*, has_redirects: bool) -> bytes:
    """The configuration of a bridge as root reads it: AER first, then ACS with its control register."""
    content = bytearray(4096)
    content[0x100:0x104] = (0x148 << 20 | 1 << 16 | 0x0001).to_bytes(4, "little")
    content[0x148:0x14C] = (1 << 16 | 0x000D).to_bytes(4, "little")
    content[0x14E:0x150] = (0x1D if has_redirects else 0).to_bytes(2, "little")  # what firmware with ACS on sets
    return bytes(content)


def _write_rdma(tree: _Tree, function: str | None, device: RdmaDevice) -> None:
    parent = f"{function}/infiniband" if function else "devices/virtual/infiniband"
    place = f"{parent}/{device.name}"
    attributes = {
        "node_guid": device.node_guid,
        "sys_image_guid": device.sys_image_guid,
        "node_type": device.node_type,
        "fw_ver": device.fw_ver,
        "node_desc": device.node_desc,
        "uevent": f"NAME={device.name}",
    }
    if device.hca_type:
        attributes["hca_type"] = device.hca_type
    for name, value in attributes.items():
        tree.write(f"{place}/{name}", value)
    for port in device.ports:
        _write_port(tree, f"{place}/ports/{port.number}", port)
    tree.link(f"{place}/subsystem", "class/infiniband")
    tree.link(f"class/infiniband/{device.name}", place)
    if function:
        tree.link(f"{place}/device", function)
    verbs = f"{function}/infiniband_verbs" if function else "devices/virtual/infiniband_verbs"
    mad = f"{function}/infiniband_mad" if function else "devices/virtual/infiniband_mad"
    if device.uverbs:
        abi = {"ibdev": device.name, "abi_version": 1}
        _write_class_device(tree, verbs, "infiniband_verbs", device.uverbs, attributes=abi, function=function)
    for char in (*device.umad, *device.issm):
        values = {"ibdev": device.name, "port": char.port}
        _write_class_device(tree, mad, "infiniband_mad", char, attributes=values, function=function)


def _write_port(tree: _Tree, place: str, port: Port) -> None:
    attributes = {
        "link_layer": port.link_layer,
        "state": port.state,
        "phys_state": port.phys_state,
        "rate": port.rate,
        "lid": port.lid,
        "sm_lid": port.sm_lid,
        "lid_mask_count": 0,
        "sm_sl": 0,
        "cap_mask": "0x00010000",
    }
    for name, value in attributes.items():
        tree.write(f"{place}/{name}", value)
    for index, pkey in enumerate(port.pkeys):
        tree.write(f"{place}/pkeys/{index}", pkey)
    for gid in port.gids:
        tree.write(f"{place}/gids/{gid.index}", gid.gid)
        if gid.netdev:
            tree.write(f"{place}/gid_attrs/ndevs/{gid.index}", gid.netdev)
        if gid.gid_type:
            tree.write(f"{place}/gid_attrs/types/{gid.index}", gid.gid_type)
    tree.write(f"{place}/gids/{max((gid.index for gid in port.gids), default=-1) + 1}", _ZERO_GID)


def _write_class_device(
    tree: _Tree,
    parent: str,
    class_name: str,
    device: CharDevice,
    *,
    attributes: Mapping[str, object],
    function: str | None = None,
) -> None:
    place = f"{parent}/{device.name}"
    tree.write(f"{place}/dev", device.dev)
    lines = [f"MAJOR={device.major}", f"MINOR={device.minor}", f"DEVNAME=infiniband/{device.name}"]
    tree.write(f"{place}/uevent", "\n".join(lines))
    for name, value in attributes.items():
        tree.write(f"{place}/{name}", value)
    tree.link(f"{place}/subsystem", f"class/{class_name}")
    tree.link(f"class/{class_name}/{device.name}", place)
    if function:
        tree.link(f"{place}/device", function)


def _write_gpu_node(tree: _Tree, function: str, class_name: str, char: CharDevice) -> None:
    place = f"{function}/{class_name}/{char.name}"
    tree.write(f"{place}/dev", char.dev)
    tree.link(f"{place}/subsystem", f"class/{class_name}")
    tree.link(f"class/{class_name}/{char.name}", place)
    tree.link(f"{place}/device", function)


def _parent(netdev: Netdev, places: Mapping[str, str]) -> str | None:
    """The folder of the device that a netdev is of: on PCI, or simulated."""
    return f"devices/netdevsim{netdev.simulated.number}" if netdev.simulated else places.get(netdev.function)


def _write_netdev(tree: _Tree, parent: str | None, netdev: Netdev, ifindex: int) -> None:
    place = f"{parent}/net/{netdev.name}" if parent else f"devices/virtual/net/{netdev.name}"
    octets = len(netdev.mac.split(":"))
    attributes = {
        "address": netdev.mac,
        "addr_len": octets,
        "broadcast": "ff:ff:ff:ff:ff:ff" if netdev.link_type == ETHERNET else "00:ff:ff:ff:ff:12:40:1b" + ":00" * 12,
        "ifindex": ifindex,
        "iflink": ifindex,
        "mtu": netdev.mtu,
        "operstate": "up",
        "carrier": 1,
        "flags": f"{_UP:#x}",
        "type": netdev.link_type,
        "speed": netdev.speed_mbps,
        "dev_port": netdev.dev_port,
        "dev_id": "0x0",
        "ifalias": netdev.alias,
        "uevent": f"INTERFACE={netdev.name}\nIFINDEX={ifindex}",
    }
    for name, value in attributes.items():
        tree.write(f"{place}/{name}", value)
    tree.link(f"{place}/subsystem", "class/net")
    tree.link(f"class/net/{netdev.name}", place)
    if parent:
        tree.link(f"{place}/device", parent)

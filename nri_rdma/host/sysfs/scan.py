"""Scans sysfs for RDMA devices and GPUs.

The scan reads hardware only. The kernel separately reports which netdevs are on the host now and who uses them;
decide/inventory joins both. The sysfs root is a parameter, so that one implementation reads the machine's own tree and
a saved one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nri_rdma.errors import ErrorCode, InventoryError
from nri_rdma.host.sysfs.attributes import (
    destination,
    entries,
    function_of,
    in_order,
    numa_node,
    numbers,
    pci_path,
    ranges,
    read,
    read_of,
    whole_number,
)
from nri_rdma.host.sysfs.gpus import read_gpus
from nri_rdma.model.device import (
    CharDevice,
    CharKind,
    DeviceId,
    LinkLayer,
    NumaNode,
    Port,
    RdmaDevice,
    RdmaNetns,
    Scan,
    VirtualFunction,
)
from nri_rdma.model.pci import PciAddress, parse_pci_address

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")  # phys_port_name, Documentation/networking/devlink
_NUMA_NODE = re.compile(r"node[0-9]{1,4}")
_MAX_UPPER = 8
"""The greatest depth of stacked netdevs to follow: MAX_NEST_DEV of include/linux/netdevice.h."""
_CLASSES = {CharKind.UVERBS: "infiniband_verbs", CharKind.UMAD: "infiniband_mad", CharKind.ISSM: "infiniband_mad"}
_UDEV_MODES = {CharKind.UVERBS: 0o666, CharKind.RDMA_CM: 0o666, CharKind.UMAD: 0o600, CharKind.ISSM: 0o600}


_CharFolder = tuple[str, str]
"""A character device in sysfs: the folder of its class, and the device's name in that folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CharDevices:
    """The present character devices of some RDMA devices. `has_nodes`: the host has character devices of at least one
    RDMA device, not only of the requested ones."""

    by_device: Mapping[DeviceId, tuple[CharDevice, ...]]
    rdma_cm: CharDevice | None
    has_nodes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """The sysfs folder of an RDMA device (`path`), and the folder of its bus device ("" if it has none). Neither path
    contains symbolic links."""

    name: str
    path: str
    bus_device: str

    @classmethod
    def of(cls, class_folder: str, name: str) -> _Folder:
        path = destination(class_folder, name)
        return cls(name=name, path=path, bus_device=destination(path, "device"))

    @property
    def pci(self) -> PciAddress | None:
        path = pci_path(self.bus_device)
        return parse_pci_address(path[-1]) if path else None

    @property
    def is_of_function(self) -> bool:
        """Return whether the bus device is a PCI function itself. That of a scalable function is a device below one."""
        return function_of(self.bus_device) == self.bus_device and self.pci is not None


def scan(sysfs_root: Path, dev_root: Path, proc_root: Path | None = None) -> Scan:
    """Read the hardware below `sysfs_root`. Raises InventoryError if it is no sysfs.

    The modes of device nodes come from `dev_root`, and the names of NVIDIA's GPUs from `proc_root` (None: they are not
    read). A device that disappears while it is read is left out.
    """
    root = os.path.realpath(sysfs_root)
    if not os.path.isdir(f"{root}/class"):
        raise InventoryError(
            ErrorCode.INVENTORY,
            "this is no sysfs: it has no class folder",
            where=str(sysfs_root),
            hint="mount sysfs there, or give another --sysfs-root",
        )
    nodes = _char_devices(_char_folders(root), dev_root)
    devices: list[RdmaDevice] = []
    names: dict[DeviceId, tuple[str, ...]] = {}
    found = (_Folder.of(f"{root}/class/infiniband", name) for name in in_order(entries(f"{root}/class/infiniband")))
    folders = [folder for folder in found if folder.path]
    functions = [folder.pci for folder in folders if folder.is_of_function]
    virtual = _virtual_functions(folders)
    for index, folder in enumerate(folders):
        parent = folder.pci
        # Not by the scalable functions beside it: they come and go, and reservations are by this identity.
        alone = parent is None or (folder.is_of_function and functions.count(parent) == 1)
        ports = _ports(folder.path)
        netdev_names = _netdev_names(folder, ports)
        place = _place(root, folder, netdev_names)
        made = _device(folder, place, index, parent, alone, ports, tuple(nodes.get(folder.name, ())))
        if not os.path.exists(folder.path):  # it disappeared meanwhile, so its data is incomplete
            continue
        device = replace(made, virtual=virtual.get(parent)) if parent is not None else made
        devices.append(device)
        names[device.id] = netdev_names
    return Scan(
        devices=tuple(devices),
        netdev_names=names,
        gpus=read_gpus(sysfs_root, proc_root),
        rdma_cm=_rdma_cm(root, dev_root),
        rdma_netns=_rdma_netns(root),
        numa_nodes=tuple(_numa_nodes(f"{root}/devices/system/node")),
    )


def is_own(sysfs_root: Path) -> bool:
    """Return whether the root is this machine's own sysfs, and not a saved copy."""
    try:
        return os.path.samefile(sysfs_root, "/sys")
    except OSError:
        return False


def read_char_devices(sysfs_root: Path, dev_root: Path, devices: Collection[RdmaDevice]) -> CharDevices:
    """Return the character devices that these RDMA devices have now. Reads a few files per device, without a full scan.

    A device that is gone, or whose name now belongs to another device, is left out. New character devices are looked
    for only if a known one is gone.
    """
    root = os.path.realpath(sysfs_root)
    folders = _same_char_folders(root, devices) or tuple(_char_folders(root))
    names = {device.name for device in devices}
    nodes = _char_devices(((folder, name) for folder, name in folders if name in names), dev_root)
    here = (device for device in devices if _is_here(f"{root}/class/infiniband", device))
    return CharDevices(
        by_device={device.id: _ordered(nodes.get(device.name, ())) for device in here},
        rdma_cm=_rdma_cm(root, dev_root),
        has_nodes=bool(folders),
    )


def other_ports(sysfs_root: Path, devices: Iterable[RdmaDevice]) -> bool:
    """Return whether a port of one of these devices has another state than at the scan. Devices that are gone do not
    count."""
    folder = f"{os.path.realpath(sysfs_root)}/class/infiniband"
    found = (
        (port.state, _port_state(f"{folder}/{it.name}/ports/{port.number}")) for it in devices for port in it.ports
    )
    return any(now not in {"", before} for before, now in found)


def _is_here(class_folder: str, device: RdmaDevice) -> bool:
    folder = _Folder.of(class_folder, device.name)
    return bool(folder.path) and folder.pci == device.pci


def _rdma_cm(root: str, dev_root: Path) -> CharDevice | None:
    return _char_device(f"{root}/class/misc", "rdma_cm", CharKind.RDMA_CM, dev_root)


def _ordered(nodes: Iterable[CharDevice]) -> tuple[CharDevice, ...]:
    return tuple(sorted(nodes, key=lambda node: (node.kind, node.path)))


def _device(
    folder: _Folder,
    place: str,
    index: int,
    pci: PciAddress | None,
    alone: bool,
    ports: tuple[Port, ...],
    char_devices: tuple[CharDevice, ...],
) -> RdmaDevice:
    function = function_of(folder.bus_device)
    path = pci_path(place)
    identity = folder.name if pci is None else (str(pci) if alone else f"{pci}/{folder.name}")
    return RdmaDevice(
        id=DeviceId(identity),
        index=index,
        name=folder.name,
        node_type=read(f"{folder.path}/node_type").partition(":")[2].strip(),
        node_guid=read(f"{folder.path}/node_guid"),
        driver=os.path.basename(destination(function, "driver")),
        vendor=read_of(function, "vendor").removeprefix("0x"),
        device_id=read_of(function, "device").removeprefix("0x"),
        subsystem=read_of(function, "subsystem_device").removeprefix("0x"),
        vf_count=whole_number(read_of(folder.bus_device, "sriov_numvfs")) or 0,
        max_vf_count=whole_number(read_of(folder.bus_device, "sriov_totalvfs")) or 0,
        pci=pci,
        pci_root=path[0] if path else "",
        pci_path=path[1:],
        numa_node=numa_node(function_of(place)),
        ports=ports,
        char_devices=_ordered(char_devices),
        netdevs=(),
    )


def _virtual_functions(folders: Iterable[_Folder]) -> Mapping[PciAddress, VirtualFunction]:
    """Return the SR-IOV virtual functions by PCI address, for all physical functions to which these RDMA devices
    belong. Each physical function is read once."""
    physical = {destination(folder.bus_device, "physfn") for folder in folders} - {""}
    return {address: function for folder in physical for address, function in _virtual_functions_of(folder) if address}


def _virtual_functions_of(folder: str) -> Iterator[tuple[PciAddress | None, VirtualFunction]]:
    pf = parse_pci_address(os.path.basename(folder))
    names = tuple(_function_netdevs(f"{folder}/net"))
    for link in entries(folder):
        number = whole_number(link.removeprefix("virtfn"))
        if pf is not None and link.startswith("virtfn") and number is not None:
            virtual = VirtualFunction(pf=pf, number=number, pf_netdevs=names)
            yield parse_pci_address(os.path.basename(destination(folder, link))), virtual


def _place(root: str, folder: _Folder, netdev_names: tuple[str, ...]) -> str:
    """Return the folder of the bus device that shows where an RDMA device is in the machine; "" if there is none.

    An RDMA device of hardware has a bus device of its own. A software device (rxe, siw) has none: then its netdev's bus
    device is returned, or that of the netdevs below the netdev (for a bond, VLAN or macvlan).
    """
    if folder.bus_device or not netdev_names:
        return folder.bus_device
    return next(_bus_devices(destination(f"{root}/class/net", netdev_names[0]), _MAX_UPPER), "")


def _bus_devices(netdev: str, depth: int) -> Iterator[str]:
    """Yield the bus device of a netdev and those of the netdevs below it. `depth` is the greatest number of levels to
    go down."""
    if not netdev:
        return
    if device := destination(netdev, "device"):
        yield device
    lower = (link for link in entries(netdev) if link.startswith("lower_")) if depth else ()
    for link in in_order(lower):
        yield from _bus_devices(destination(netdev, link), depth - 1)


def _ports(folder: str) -> tuple[Port, ...]:
    return tuple(_port(folder, name) for name in in_order(entries(f"{folder}/ports")) if name.isdigit())


def _port(device: str, name: str) -> Port:
    folder = f"{device}/ports/{name}"
    link_layer = _link_layer(read(f"{folder}/link_layer"))
    return Port(
        number=int(name),
        link_layer=link_layer,
        state=_port_state(folder),
        speed_gbps=_speed_gbps(read(f"{folder}/rate")),
        pkeys=_pkeys(f"{folder}/pkeys") if link_layer is LinkLayer.INFINIBAND else (),
    )


def _port_state(folder: str) -> str:
    return read(f"{folder}/state").partition(":")[2].strip()


def _pkeys(folder: str) -> tuple[int, ...]:
    """Return the P_Keys of an InfiniBand port, up to 128; entries that are 0 are left out. Not called for ports of
    other types, which have one fixed P_Key."""
    texts = (read(f"{folder}/{entry}") for entry in in_order(entries(folder)))
    keys = (int(text, 16) for text in texts if re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text))
    return tuple(key for key in keys if key)


def _link_layer(text: str) -> LinkLayer:
    """Parse the link layer of a port. ``Unknown``, which EFA reports, becomes Ethernet, because only InfiniBand devices
    may be given to containers without a netdev."""
    return LinkLayer.INFINIBAND if text == LinkLayer.INFINIBAND else LinkLayer.ETHERNET


def _netdev_names(folder: _Folder, ports: tuple[Port, ...]) -> tuple[str, ...]:
    """Return the names of an RDMA device's netdevs. They are found by the GIDs of its ports, and in the folder of the
    PCI function, because ports of IPoIB have no GIDs with a netdev."""
    names: list[str] = []
    for port in ports:
        first = _first_netdev(f"{folder.path}/ports/{port.number}/gid_attrs/ndevs")
        names.extend([first] if first else [])
    if folder.bus_device and len(entries(f"{folder.bus_device}/infiniband")) <= 1:
        names.extend(_function_netdevs(f"{folder.bus_device}/net"))
    return tuple(dict.fromkeys(names))


def _first_netdev(table: str) -> str:
    """Return the netdev of the first GID that has a netdev: the port's own. Later GIDs may belong to child netdevs
    (VLAN, macvlan). `table` is the folder with the netdevs of the port's GIDs.

    The first of up to 1024 GIDs nearly always has a netdev, so it is read before the table is listed.
    """
    if first := read(f"{table}/0"):
        return first
    places = sorted(number for entry in entries(table) if (number := whole_number(entry)) is not None)
    return next((name for number in places if (name := read(f"{table}/{number}"))), "")


def _function_netdevs(folder: str) -> list[str]:
    """Return the netdevs of a PCI function in the order of its ports, without representors (netdevs that stand for its
    virtual functions). `folder` is the function's folder `net` in sysfs."""
    own = [name for name in entries(folder) if not _REPRESENTOR.fullmatch(read(f"{folder}/{name}/phys_port_name"))]
    return sorted(in_order(own), key=lambda name: whole_number(read(f"{folder}/{name}/dev_port")) or 0)


def _same_char_folders(root: str, devices: Collection[RdmaDevice]) -> tuple[tuple[_CharFolder, str], ...]:
    """Return the folders of the character devices that these devices had at the scan, if they are still the right ones;
    () otherwise. The caller then reads all folders, which are three for each RDMA device of the host.

    They are not the right ones if a folder is gone or belongs to another device, or if a device had no character
    device.
    """
    known = [(device, char) for device in devices for char in device.char_devices]
    places = [(f"{root}/class/{_CLASSES[char.kind]}", os.path.basename(char.path)) for _, char in known]
    owners = [read(f"{folder}/{name}/ibdev") for folder, name in places]
    is_same = all(device.char_devices for device in devices) and owners == [device.name for device, _ in known]
    return tuple(zip(places, owners, strict=True)) if is_same else ()


def _char_folders(root: str) -> Iterator[tuple[_CharFolder, str]]:
    """Yield the folder and name of each RDMA character device below the sysfs root, with the name of its RDMA
    device."""
    for class_name in dict.fromkeys(_CLASSES.values()):
        folder = f"{root}/class/{class_name}"
        for name in entries(folder):
            if _kind_of(name) is not None:
                yield (folder, name), read(f"{folder}/{name}/ibdev")


def _kind_of(name: str) -> CharKind | None:
    return next((kind for kind in CharKind if name.startswith(kind.value)), None)


def _char_devices(folders: Iterable[tuple[_CharFolder, str]], dev_root: Path) -> dict[str, list[CharDevice]]:
    """Return the character devices in these folders, by the name of their RDMA device."""
    found: dict[str, list[CharDevice]] = {}
    for (folder, name), rdma_device in folders:
        kind = _kind_of(name)
        node = _char_device(folder, name, kind, dev_root) if kind is not None else None
        if node is not None:
            found.setdefault(rdma_device, []).append(node)
    return found


def _char_device(folder: str, name: str, kind: CharKind, dev_root: Path) -> CharDevice | None:
    found = numbers(read(f"{folder}/{name}/dev"))
    if found is None:
        return None
    major, minor = found
    try:
        status = os.stat(f"{dev_root}/infiniband/{name}")
    except OSError:  # no udev here: assume the mode that udev would set
        mode, uid, gid = _UDEV_MODES[kind], 0, 0
    else:
        mode, uid, gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    return CharDevice(
        kind=kind,
        path=f"/dev/infiniband/{name}",
        major=major,
        minor=minor,
        mode=mode,
        uid=uid,
        gid=gid,
    )


def _numa_nodes(folder: str) -> Iterator[NumaNode]:
    for name in in_order(entries(folder)):
        if _NUMA_NODE.fullmatch(name):
            yield NumaNode(number=int(name.removeprefix("node")), cpus=ranges(read(f"{folder}/{name}/cpulist")))


def _rdma_netns(root: str) -> RdmaNetns:
    """Return the RDMA subsystem's netns mode (whether namespaces share the RDMA devices), from a parameter of the
    module ib_core. The command `rdma system set netns` also changes this parameter."""
    text = read(f"{root}/module/ib_core/parameters/netns_mode")
    return {"Y": RdmaNetns.SHARED, "1": RdmaNetns.SHARED, "N": RdmaNetns.EXCLUSIVE, "0": RdmaNetns.EXCLUSIVE}.get(
        text, RdmaNetns.NONE
    )


def _speed_gbps(rate: str) -> int:
    """Parse a port's rate into Gbit/s: ``400 Gb/sec (4X NDR)`` is 400; ``2.5 Gb/sec`` is rounded down to 2. 0 for any
    other text."""
    match = re.match(r"(\d+)(?:\.\d+)? Gb/sec", rate)
    return int(match.group(1)) if match else 0

"""A scan of sysfs for RDMA devices and GPUs.

It reads hardware only. Which netdevs are on the host now, and who uses them, is the kernel's to say: inventory joins
the two. The root is a parameter, so that a saved or a made tree is read by the same code as the machine's own.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nri_rdma.errors import ErrorCode, InventoryError
from nri_rdma.model.device import (
    CharDevice,
    CharKind,
    DeviceId,
    LinkLayer,
    Port,
    RdmaDevice,
    RdmaNetns,
    Scan,
    VirtualFunction,
)
from nri_rdma.model.pci import PciAddress, parse_pci_address
from nri_rdma.sysfs.attributes import (
    entries,
    function_of,
    link_name,
    natural,
    numa_node,
    numbers,
    pci_path,
    read,
    whole_number,
)
from nri_rdma.sysfs.gpus import read_gpus

_REPRESENTOR = re.compile(r"(c\d+)?pf\d+(vf|sf)\d+")  # phys_port_name, Documentation/networking/devlink
_MAX_UPPER = 8
"""How deep netdevs may be stacked: MAX_NEST_DEV of include/linux/netdevice.h."""
_UDEV_MODES = {CharKind.UVERBS: 0o666, CharKind.RDMA_CM: 0o666, CharKind.UMAD: 0o600, CharKind.ISSM: 0o600}


@dataclass(frozen=True, slots=True, kw_only=True)
class CharDevices:
    """The character devices of some RDMA devices at one time; `has_nodes`: the node has some of any device."""

    by_device: Mapping[DeviceId, tuple[CharDevice, ...]]
    rdma_cm: CharDevice | None
    has_nodes: bool


def scan(sysfs_root: Path, dev_root: Path, proc_root: Path | None = None) -> Scan:
    """Read the hardware below `sysfs_root`; node modes come from `dev_root`, and what NVIDIA's driver says of its GPUs
    from `proc_root` (None: from nowhere). A device that goes while it is read is left out. Raises InventoryError
    without sysfs."""
    if not (sysfs_root / "class").is_dir():
        raise InventoryError(
            ErrorCode.INVENTORY,
            "this is no sysfs: it has no class folder",
            where=str(sysfs_root),
            hint="mount sysfs there, or give another --sysfs-root",
        )
    nodes = _char_devices(_char_folders(sysfs_root), dev_root)
    devices: list[RdmaDevice] = []
    names: dict[DeviceId, tuple[str, ...]] = {}
    folders = sorted(entries(sysfs_root / "class/infiniband"), key=lambda path: natural(path.name))
    parents = [_parent_address(folder) for folder in folders]
    virtual = _virtual_functions(folders)
    for index, (folder, parent) in enumerate(zip(folders, parents, strict=True)):
        alone = parent is None or parents.count(parent) == 1
        ports = _ports(folder)
        netdev_names = _netdev_names(folder, ports)
        place = _place(sysfs_root, folder, netdev_names)
        found = _device(folder, place, index, parent, alone, ports, tuple(nodes.get(folder.name, ())))
        if not folder.exists():  # it went meanwhile, and what was read of it is no device
            continue
        device = replace(found, virtual=virtual.get(parent)) if parent is not None else found
        devices.append(device)
        names[device.id] = netdev_names
    return Scan(
        devices=tuple(devices),
        netdev_names=names,
        gpus=read_gpus(sysfs_root, proc_root),
        rdma_cm=_rdma_cm(sysfs_root, dev_root),
        rdma_netns=_rdma_netns(sysfs_root),
    )


def read_char_devices(sysfs_root: Path, dev_root: Path, devices: Collection[RdmaDevice]) -> CharDevices:
    """The character devices that `devices` have now: a few files each, no scan. A device that is gone, or whose name
    has gone over to another function, is left out."""
    folders = tuple(_char_folders(sysfs_root))
    names = {device.name for device in devices}
    nodes = _char_devices(((folder, name) for folder, name in folders if name in names), dev_root)
    here = (device for device in devices if _is_here(sysfs_root / "class/infiniband" / device.name, device))
    return CharDevices(
        by_device={device.id: _ordered(nodes.get(device.name, ())) for device in here},
        rdma_cm=_rdma_cm(sysfs_root, dev_root),
        has_nodes=bool(folders),
    )


def _is_here(folder: Path, device: RdmaDevice) -> bool:
    return folder.exists() and _parent_address(folder) == device.pci


def _rdma_cm(sysfs_root: Path, dev_root: Path) -> CharDevice | None:
    return _char_device(sysfs_root / "class/misc/rdma_cm", CharKind.RDMA_CM, dev_root)


def _ordered(nodes: Iterable[CharDevice]) -> tuple[CharDevice, ...]:
    return tuple(sorted(nodes, key=lambda node: (node.kind, node.path)))


def _device(
    folder: Path,
    place: Path,
    index: int,
    pci: PciAddress | None,
    alone: bool,
    ports: tuple[Port, ...],
    char_devices: tuple[CharDevice, ...],
) -> RdmaDevice:
    function = function_of(folder / "device")
    path = pci_path(place)
    identity = folder.name if pci is None else (str(pci) if alone else f"{pci}/{folder.name}")
    return RdmaDevice(
        id=DeviceId(identity),
        index=index,
        name=folder.name,
        node_type=read(folder / "node_type").partition(":")[2].strip(),
        node_guid=read(folder / "node_guid"),
        driver=link_name(function / "driver"),
        vendor=read(function / "vendor").removeprefix("0x"),
        device_id=read(function / "device").removeprefix("0x"),
        vf_count=whole_number(read(folder / "device/sriov_numvfs")) or 0,
        pci=pci,
        pci_root=path[0] if path else "",
        pci_path=path[1:],
        numa_node=numa_node(function_of(place)),
        ports=ports,
        char_devices=_ordered(char_devices),
        netdevs=(),
    )


def _virtual_functions(folders: Iterable[Path]) -> Mapping[PciAddress, VirtualFunction]:
    """The virtual functions of all physical ones that these RDMA devices are of; each physical one is read once."""
    links = (folder / "device/physfn" for folder in folders)
    physical = {link.resolve() for link in links if link.exists()}
    return {address: function for folder in physical for address, function in _virtual_functions_of(folder) if address}


def _virtual_functions_of(folder: Path) -> Iterator[tuple[PciAddress | None, VirtualFunction]]:
    pf = parse_pci_address(folder.name)
    names = tuple(_function_netdevs(folder / "net"))
    for link in entries(folder):
        number = whole_number(link.name.removeprefix("virtfn"))
        if pf is not None and link.name.startswith("virtfn") and number is not None:
            virtual = VirtualFunction(pf=pf, number=number, pf_netdevs=names)
            yield parse_pci_address(link.resolve().name), virtual


def _place(sysfs_root: Path, folder: Path, netdev_names: tuple[str, ...]) -> Path:
    """The bus device that tells where an RDMA device is: its own, or that of its netdev (rxe and siw have none), or of
    what that sits on (a bond, VLAN or macvlan has none either)."""
    if (folder / "device").exists() or not netdev_names:
        return folder / "device"
    netdev = sysfs_root / "class/net" / netdev_names[0]
    return next(_bus_devices(netdev, _MAX_UPPER), netdev / "device")


def _bus_devices(netdev: Path, depth: int) -> Iterator[Path]:
    """The bus devices of a netdev and of those below it."""
    if (netdev / "device").exists():
        yield netdev / "device"
    lower = (link for link in entries(netdev) if link.name.startswith("lower_")) if depth else ()
    for link in sorted(lower, key=lambda path: natural(path.name)):
        yield from _bus_devices(link, depth - 1)


def _ports(folder: Path) -> tuple[Port, ...]:
    ports = sorted(entries(folder / "ports"), key=lambda path: natural(path.name))
    return tuple(_port(port) for port in ports if port.name.isdigit())


def _port(folder: Path) -> Port:
    link_layer = _link_layer(read(folder / "link_layer"))
    return Port(
        number=int(folder.name),
        link_layer=link_layer,
        state=read(folder / "state").partition(":")[2].strip(),
        speed_gbps=_speed_gbps(read(folder / "rate")),
        pkeys=_pkeys(folder / "pkeys") if link_layer is LinkLayer.INFINIBAND else (),
    )


def _pkeys(folder: Path) -> tuple[int, ...]:
    """The partitions of an InfiniBand port, which has up to 128; elsewhere there is one, the same for all."""
    table = sorted(entries(folder), key=lambda path: natural(path.name))
    keys = (int(text, 16) for entry in table if re.fullmatch(r"0x[0-9a-fA-F]{1,4}", text := read(entry)))
    return tuple(key for key in keys if key)


def _link_layer(text: str) -> LinkLayer:
    """Kernels also say ``Unknown`` (EFA): that is not InfiniBand, which alone may be given without a netdev."""
    return LinkLayer.INFINIBAND if text == LinkLayer.INFINIBAND else LinkLayer.ETHERNET


def _netdev_names(folder: Path, ports: tuple[Port, ...]) -> tuple[str, ...]:
    """The netdevs of the ports; by GID attributes, and of the whole function where there are none (IPoIB)."""
    names: list[str] = []
    for port in ports:
        first = _first_netdev(folder / f"ports/{port.number}/gid_attrs/ndevs")
        names.extend([first] if first else [])
    if len(entries(folder / "device/infiniband")) <= 1:
        names.extend(_function_netdevs(folder / "device/net"))
    return tuple(dict.fromkeys(names))


def _first_netdev(table: Path) -> str:
    """The netdev of the first GID that has one, the port's own; later ones may belong to children (vlan, macvlan). It
    nearly always is the first of up to 1024, which are not even listed then."""
    if first := read(table / "0"):
        return first
    places = sorted(number for entry in entries(table) if (number := whole_number(entry.name)) is not None)
    return next((name for number in places if (name := read(f"{table}/{number}"))), "")


def _function_netdevs(folder: Path) -> list[str]:
    """The netdevs of a function in the order of its ports, without those that stand for its VFs on a switch."""
    own = [path for path in entries(folder) if not _REPRESENTOR.fullmatch(read(path / "phys_port_name"))]
    own.sort(key=lambda path: (whole_number(read(path / "dev_port")) or 0, natural(path.name)))
    return [path.name for path in own]


def _char_folders(sysfs_root: Path) -> Iterator[tuple[Path, str]]:
    """The character devices of all RDMA devices, each with the name of its own."""
    for class_name in ("infiniband_verbs", "infiniband_mad"):
        for folder in entries(sysfs_root / "class" / class_name):
            if _kind_of(folder) is not None:
                yield folder, read(folder / "ibdev")


def _kind_of(folder: Path) -> CharKind | None:
    return next((kind for kind in CharKind if folder.name.startswith(kind.value)), None)


def _char_devices(folders: Iterable[tuple[Path, str]], dev_root: Path) -> dict[str, list[CharDevice]]:
    """Character devices by the name of their RDMA device."""
    found: dict[str, list[CharDevice]] = {}
    for folder, name in folders:
        kind = _kind_of(folder)
        node = _char_device(folder, kind, dev_root) if kind is not None else None
        if node is not None:
            found.setdefault(name, []).append(node)
    return found


def _char_device(folder: Path, kind: CharKind, dev_root: Path) -> CharDevice | None:
    found = numbers(read(folder / "dev"))
    if found is None:
        return None
    major, minor = found
    node = dev_root / "infiniband" / folder.name
    try:
        status = node.stat()
    except OSError:  # no udev here: what it would have made
        mode, uid, gid = _UDEV_MODES[kind], 0, 0
    else:
        mode, uid, gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    return CharDevice(
        kind=kind,
        path=f"/dev/infiniband/{folder.name}",
        major=major,
        minor=minor,
        mode=mode,
        uid=uid,
        gid=gid,
    )


def _rdma_netns(sysfs_root: Path) -> RdmaNetns:
    """ib_core's parameter; it follows `rdma system set netns` because both are one variable of the kernel."""
    text = read(sysfs_root / "module/ib_core/parameters/netns_mode")
    return {"Y": RdmaNetns.SHARED, "1": RdmaNetns.SHARED, "N": RdmaNetns.EXCLUSIVE, "0": RdmaNetns.EXCLUSIVE}.get(
        text, RdmaNetns.NONE
    )


def _parent_address(folder: Path) -> PciAddress | None:
    path = pci_path(folder / "device")
    return parse_pci_address(path[-1]) if path else None


def _speed_gbps(rate: str) -> int:
    """``400 Gb/sec (4X NDR)`` is 400; ``2.5 Gb/sec`` counts as 2."""
    match = re.match(r"(\d+)(?:\.\d+)? Gb/sec", rate)
    return int(match.group(1)) if match else 0

"""A node as plain data: sockets, PCI functions, RDMA devices, character devices and netdevs.

The data are the files in nodes/. This module reads them; systree.py writes them as sysfs shows them, fabric.py makes
them real. Absent means the node has none: no `rdma_netns_mode` is a kernel without an RDMA subsystem.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

NODES = Path(__file__).resolve().parent / "nodes"
ETHERNET = 1  # ARPHRD_ETHER
INFINIBAND = 32  # ARPHRD_INFINIBAND


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A PCI function below a root (`pci0000:17`) or a bridge (its address).

    sriov_totalvfs 0 is one without SR-IOV; physfn names the function that a virtual one is of. acs is "" for a function
    whose configuration is not in the tree, else what its ACS does: "off" or "redirect". iommu is the type of its IOMMU
    group, "" without one.
    """

    address: str
    under: str
    pci_class: str
    vendor: str
    device: str
    driver: str = ""
    numa_node: int = -1
    sriov_totalvfs: int = 0
    sriov_numvfs: int = 0
    physfn: str = ""
    acs: str = ""
    iommu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A device of the driver netdevsim, which is on no bus of hardware; its VFs are entries of its netdev's."""

    number: int
    sriov_numvfs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """An entry of a port's GID table; netdev and type are empty where the link layer has none."""

    index: int
    gid: str
    netdev: str = ""
    gid_type: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of an RDMA device, in the kernel's own words."""

    number: int
    link_layer: str
    state: str
    phys_state: str
    rate: str
    lid: str = "0x0"
    sm_lid: str = "0x0"
    pkeys: tuple[str, ...] = ("0xffff",)
    gids: tuple[Gid, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CharDevice:
    """A character device; port is 0 for those of a whole device."""

    name: str
    dev: str
    port: int = 0

    @property
    def major(self) -> int:
        """The driver's number."""
        return int(self.dev.split(":")[0])

    @property
    def minor(self) -> int:
        """The device's number."""
        return int(self.dev.split(":")[1])

    @property
    def mode(self) -> int:
        """The permissions udev's rules of rdma-core give it."""
        return 0o600 if self.name.startswith(("umad", "issm")) else 0o666


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevice:
    """An RDMA device; function is empty for one without a PCI parent (rxe, siw)."""

    name: str
    node_guid: str
    sys_image_guid: str
    node_type: str
    fw_ver: str
    hca_type: str
    node_desc: str
    ports: tuple[Port, ...]
    function: str = ""
    uverbs: CharDevice | None = None
    umad: tuple[CharDevice, ...] = ()
    issm: tuple[CharDevice, ...] = ()

    @property
    def char_devices(self) -> tuple[CharDevice, ...]:
        """All of them."""
        return (*((self.uverbs,) if self.uverbs else ()), *self.umad, *self.issm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What a GPU's driver says of it: `uuid` and `minor` as NVIDIA's does in procfs ("" and -1: it does not), and
    its device files of the kernel's classes drm and accel."""

    function: str
    uuid: str = ""
    minor: int = -1
    drm: tuple[CharDevice, ...] = ()
    accel: tuple[CharDevice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Netdev:
    """A network interface and what the host configured on it; addresses and routes are in the words of `ip`, sysctls
    are like `ipv4/conf/rp_filter=2`. Its kind says what stands for it: `veth`, or `macvlan`."""

    name: str
    mac: str
    kind: str = "veth"
    mtu: int = 1500
    function: str = ""
    simulated: Simulated | None = None
    link_type: int = ETHERNET
    dev_port: int = 0
    speed_mbps: int = 400_000
    alias: str = ""
    altnames: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    neighbours: tuple[str, ...] = ()
    sysctls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A whole node."""

    name: str
    summary: str
    sockets: int
    cpus_per_socket: int
    functions: tuple[Function, ...]
    rdma: tuple[RdmaDevice, ...]
    netdevs: tuple[Netdev, ...]
    rdma_cm: CharDevice | None = None
    rdma_netns_mode: str = ""
    rules: tuple[str, ...] = ()
    gpus: tuple[Gpu, ...] = ()

    @property
    def char_devices(self) -> tuple[CharDevice, ...]:
        """Everything that is in /dev/infiniband."""
        own = tuple(device for rdma in self.rdma for device in rdma.char_devices)
        return (*own, *((self.rdma_cm,) if self.rdma_cm else ()))

    def device(self, name: str) -> RdmaDevice:
        """The RDMA device of that name; KeyError names what is missing."""
        return {it.name: it for it in self.rdma}[name]

    def netdev(self, name: str) -> Netdev:
        """The netdev of that name; KeyError names what is missing."""
        return {it.name: it for it in self.netdevs}[name]

    def netdev_of(self, device: RdmaDevice) -> Netdev | None:
        """The netdev of an RDMA device: the one of its function, or the one its GIDs name."""
        named = {gid.netdev for port in device.ports for gid in port.gids}
        for netdev in self.netdevs:
            if netdev.name in named or (device.function and netdev.function == device.function):
                return netdev
        return None

    @classmethod
    def parse(cls, text: str) -> Self:
        """A node from TOML; an unknown or missing field is a TypeError that names it."""
        table = tomllib.loads(text)
        return cls(
            **table
            | {
                "functions": tuple(Function(**it) for it in table.get("functions", ())),
                "rdma": tuple(_rdma(it) for it in table.get("rdma", ())),
                "netdevs": tuple(_netdev(it) for it in table.get("netdevs", ())),
                "rdma_cm": CharDevice(**table["rdma_cm"]) if "rdma_cm" in table else None,
                "rules": tuple(table.get("rules", ())),
                "gpus": tuple(_gpu(it) for it in table.get("gpus", ())),
            }
        )


def load(name: str) -> Node:
    """One of the nodes in nodes/: eight, sixteen, small, two, ib2, vf8; lab-NAME are those of the lab's machines.
    SPLIT is made."""
    return _split() if name == SPLIT else Node.parse((NODES / f"{name}.toml").read_text())


SPLIT = "split"
"""A server with sixteen adapters of sixteen virtual functions each, and as many PCIe roots."""
_ADAPTERS = _FUNCTIONS = 16


def _split() -> Node:
    """Adapter 0 is ens0f0, its functions are ens0f0v0 to ens0f0v15."""
    made = [part for number in range(_ADAPTERS) for part in _adapter(number)]
    return Node(
        name=SPLIT,
        summary=f"2 sockets, {_ADAPTERS} adapters with {_FUNCTIONS} VFs each",
        sockets=2,
        cpus_per_socket=48,
        functions=(
            *(_bridge(number) for number in range(_ADAPTERS)),
            *(function for function, _, _ in made),
        ),
        rdma=tuple(rdma for _, rdma, _ in made),
        netdevs=tuple(netdev for _, _, netdev in made),
        rdma_cm=CharDevice(name="rdma_cm", dev="10:122"),
    )


def _bridge(adapter: int) -> Function:
    root = 0x20 + 8 * adapter
    return Function(
        address=f"0000:{root:02x}:01.0",
        under=f"pci0000:{root:02x}",
        pci_class="0x060400",
        vendor="0x8086",
        device="0x352a",
        driver="pcieport",
        numa_node=adapter * 2 // _ADAPTERS,
    )


def _adapter(adapter: int) -> Iterator[tuple[Function, RdmaDevice, Netdev]]:
    """The physical function, then the virtual ones, each with its RDMA device and netdev."""
    bridge = _bridge(adapter)
    bus = 0x21 + 8 * adapter
    for own in range(_FUNCTIONS + 1):
        number = adapter * (_FUNCTIONS + 1) + own
        address = f"0000:{bus:02x}:{own // 8:02x}.{own % 8}"
        name = f"ens{adapter}f0" + (f"v{own - 1}" if own else "")
        guid = f"02ce:00ff:fe{adapter:02x}:{own:04x}"
        yield (
            Function(
                address=address,
                under=bridge.address,
                pci_class="0x020000",
                vendor="0x15b3",
                device="0x101e" if own else "0x1021",
                driver="mlx5_core",
                numa_node=bridge.numa_node,
                sriov_totalvfs=0 if own else _FUNCTIONS,
                sriov_numvfs=0 if own else _FUNCTIONS,
                physfn=f"0000:{bus:02x}:00.0" if own else "",
            ),
            RdmaDevice(
                name=f"mlx5_{number}",
                function=address,
                node_guid=guid,
                sys_image_guid=guid,
                node_type="1: CA",
                fw_ver="28.43.1014",
                hca_type="MT4126" if own else "MT4129",
                node_desc=f"{SPLIT} mlx5_{number}",
                uverbs=CharDevice(name=f"uverbs{number}", dev=f"231:{192 + number}"),
                ports=(
                    Port(
                        number=1,
                        link_layer="Ethernet",
                        state="4: ACTIVE",
                        phys_state="5: LinkUp",
                        rate="400 Gb/sec (4X NDR)",
                        gids=(Gid(index=0, gid=f"fe80:0000:0000:0000:{guid}", netdev=name, gid_type="RoCE v2"),),
                    ),
                ),
            ),
            Netdev(name=name, mac=f"02:ce:00:00:{adapter:02x}:{own:02x}", function=address),
        )


def _rdma(table: Mapping[str, Any]) -> RdmaDevice:
    return RdmaDevice(
        **dict(table)
        | {
            "ports": tuple(_port(it) for it in table["ports"]),
            "uverbs": CharDevice(**table["uverbs"]) if "uverbs" in table else None,
            "umad": tuple(CharDevice(**it) for it in table.get("umad", ())),
            "issm": tuple(CharDevice(**it) for it in table.get("issm", ())),
        }
    )


def _gpu(table: Mapping[str, Any]) -> Gpu:
    nodes = {name: tuple(CharDevice(**it) for it in table.get(name, ())) for name in ("drm", "accel")}
    return Gpu(**dict(table) | nodes)


def _port(table: Mapping[str, Any]) -> Port:
    return Port(**dict(table) | {"gids": tuple(Gid(**it) for it in table.get("gids", ()))})


def _netdev(table: Mapping[str, Any]) -> Netdev:
    simulated = Simulated(**table["simulated"]) if "simulated" in table else None
    return Netdev(**_tuples(table) | {"simulated": simulated})


def _tuples(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}

"""Made-up hardware: a node of NICs and GPUs, each pair below a PCIe root of its own unless a test says otherwise."""

from __future__ import annotations

from dataclasses import replace

from nri_rdma.model.device import (
    CharDevice,
    CharKind,
    DeviceId,
    Gpu,
    LinkLayer,
    Netdev,
    Node,
    Port,
    RdmaDevice,
    RdmaNetns,
)
from nri_rdma.model.pci import PciAddress

RDMA_CM = CharDevice(
    kind=CharKind.RDMA_CM, path="/dev/infiniband/rdma_cm", major=10, minor=58, mode=0o666, uid=0, gid=0
)


def uverbs(number: int) -> CharDevice:
    path = f"/dev/infiniband/uverbs{number}"
    return CharDevice(kind=CharKind.UVERBS, path=path, major=231, minor=192 + number, mode=0o666, uid=0, gid=0)


def umad(number: int) -> CharDevice:
    path = f"/dev/infiniband/umad{number}"
    return CharDevice(kind=CharKind.UMAD, path=path, major=231, minor=number, mode=0o600, uid=0, gid=0)


def nic(
    number: int,
    *,
    root: int | None = None,
    numa: int | None = None,
    in_use: tuple[str, ...] = (),
    link_layer: LinkLayer = LinkLayer.ETHERNET,
    has_netdev: bool = True,
    chars: tuple[CharDevice, ...] | None = None,
    speed_gbps: int = 400,
    vendor: str = "15b3",
) -> RdmaDevice:
    root = number if root is None else root
    address = PciAddress(0, 0x10 + root, 0, number & 7)
    netdev = Netdev(name=f"eth{number}", ifindex=10 + number, mac=f"02:00:00:00:00:{number:02x}", mtu=1500, up=True)
    return RdmaDevice(
        id=DeviceId(str(address)),
        index=number,
        name=f"mlx5_{number}",
        node_type="CA",
        node_guid=f"0200:0000:0000:{number:04x}",
        driver="mlx5_core",
        vendor=vendor,
        pci=address,
        pci_root=f"pci0000:{root:02x}",
        pci_path=(f"pci0000:{root:02x}", f"0000:{root:02x}:01.0", str(address)),
        numa_node=numa,
        ports=(Port(number=1, link_layer=link_layer, state="ACTIVE", speed_gbps=speed_gbps),),
        char_devices=(uverbs(number),) if chars is None else chars,
        netdevs=(netdev,) if has_netdev else (),
        in_use=in_use,
    )


TIE = "eth0 is used by the multipath route 10.9.0.0/16"


def tied(device: RdmaDevice) -> RdmaDevice:
    """A device with one netdev that the host could not have back as it is."""
    (netdev,) = device.netdevs
    return replace(device, netdevs=(replace(netdev, name="eth0", unreturnable=(TIE.removeprefix("eth0 "),)),))


def gpu(number: int, *, root: int | None = None, numa: int | None = None) -> Gpu:
    root = number if root is None else root
    address = gpu_address(number)
    return Gpu(
        pci=address,
        pci_root=f"pci0000:{root:02x}",
        pci_path=(f"pci0000:{root:02x}", f"0000:{root:02x}:02.0", str(address)),
        numa_node=numa,
        vendor="10de",
    )


def gpu_address(number: int) -> PciAddress:
    return PciAddress(1, 0x10 + number, 0, 0)


def node(
    devices: tuple[RdmaDevice, ...] = (),
    gpus: tuple[Gpu, ...] = (),
    *,
    rdma_netns: RdmaNetns = RdmaNetns.SHARED,
    rdma_cgroup: bool = True,
) -> Node:
    return Node(devices=devices, gpus=gpus, rdma_cm=RDMA_CM, rdma_netns=rdma_netns, rdma_cgroup=rdma_cgroup)


def eight() -> Node:
    """Eight NICs and eight GPUs, a pair per root, four roots per NUMA node."""
    return node(
        tuple(nic(number, numa=number // 4) for number in range(8)),
        tuple(gpu(number, numa=number // 4) for number in range(8)),
    )

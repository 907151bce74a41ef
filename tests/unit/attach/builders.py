"""Pods, devices and plans for tests of the attach."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface

from nri_rdma.attach.plan import Plan, plan_attach
from nri_rdma.attach.port import Kernel, Namespace
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.survey import completed, prepare
from nri_rdma.decide.placement import Placed
from nri_rdma.decide.policy import Admitted
from nri_rdma.model.device import CharDevice, CharKind, DeviceId, LinkLayer, Netdev, Port, RdmaDevice
from nri_rdma.model.link import LinkState
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import DeviceRequest, Mode

POD_PATH = "/run/netns/pod-1"
Interfaces = tuple[IPv4Interface | IPv6Interface, ...]


def make_pod(sandbox_id: str = "sandbox-1", *, uid: str = "uid-1", path: str = POD_PATH, pid: int = 0) -> Pod:
    """A pod sandbox."""
    return Pod(sandbox_id=sandbox_id, uid=uid, name="train", namespace="ml", netns_path=path, pid=pid)


def make_device(
    name: str, links: Iterable[LinkState], *, link_layer: LinkLayer = LinkLayer.ETHERNET, driver: str = "mlx5_core"
) -> RdmaDevice:
    """An RDMA device with these netdevs and one character device; without a driver it is a soft one."""
    return RdmaDevice(
        id=DeviceId(name),
        index=0,
        name=name,
        node_type="CA",
        node_guid="",
        driver=driver,
        vendor="15b3",
        pci=None,
        pci_root="",
        pci_path=(),
        numa_node=None,
        ports=(Port(number=1, link_layer=link_layer, state="ACTIVE", speed_gbps=400),),
        char_devices=(
            CharDevice(
                kind=CharKind.UVERBS, path=f"/dev/infiniband/{name}", major=231, minor=192, mode=0o666, uid=0, gid=0
            ),
        ),
        netdevs=tuple(
            Netdev(name=link.name, ifindex=link.ifindex, mac=link.mac, mtu=link.mtu, up=link.up) for link in links
        ),
    )


def make_placed(
    devices: tuple[RdmaDevice, ...],
    *,
    mode: Mode = Mode.EXCLUSIVE,
    name: str | None = None,
    mtu: int | None = None,
    addresses: tuple[Interfaces, ...] = (),
    inherit: bool = True,
    network: DeviceRequest | None = None,
) -> Placed:
    """A request of a pod, placed on these devices; what else it says of their network is that of `network`."""
    said = network or DeviceRequest(name="0", where="here")
    interface = replace(
        said.interface,
        name=name or said.interface.name,
        mtu=mtu or said.interface.mtu,
        addresses=addresses or said.interface.addresses,
        inherit=inherit and said.interface.inherit,
    )
    request = replace(said, name="0", where="here", count=len(devices), interface=interface)
    return Placed(
        admitted=Admitted(request=request, mode=mode), devices=devices, reasons=tuple("first" for _ in devices)
    )


def plan_of(placed: Placed, captured: Mapping[int, LinkState], pod_links: tuple[LinkState, ...]) -> Plan:
    """The plan of one request."""
    return plan_attach((placed,), captured, pod_links)


def record_of(
    kernel: Kernel, namespace: Namespace, placed: Placed, *, netdevs: frozenset[int] = frozenset()
) -> SandboxRecord:
    """The record that an attach of it would write before its first step, beside the netdevs of earlier ones."""
    record = prepare(kernel, namespace, make_pod(path=namespace.identity.path), (placed,), None)
    return replace(record, plan=completed(kernel, namespace, record.plan, netdevs=netdevs), state=Phase.ATTACHING)

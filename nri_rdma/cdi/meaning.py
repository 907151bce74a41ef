"""What a CDI device means for nri-rdma. Pure.

Its device nodes below /dev/infiniband name the RDMA devices of the node that it stands for. What it asks of us is
written in its spec: under our annotation key, of the device or else of the spec, stands a request as a pod's annotation
has it, without what chooses devices; and the netdevs of CDI 1.1 (``netDevices``) move into the pod under the name that
is given there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nri_rdma.cdi.registry import ResolvedDevice
from nri_rdma.errors import ErrorCode, PlacementError, RequestError
from nri_rdma.model.device import CharDevice, CharKind, DeviceId, RdmaDevice
from nri_rdma.model.request import LABEL, DeviceRequest, InterfaceConfig, Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request of a CDI device, with the devices that it is about."""

    request: DeviceRequest
    devices: tuple[RdmaDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiMeaning:
    """The RDMA devices of a CDI device, by its qualified name, and what its spec asks for them: () is nothing."""

    name: str
    devices: tuple[RdmaDevice, ...]
    asked: tuple[Asked, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The RDMA devices of a node by the paths of their character devices, and by the names of their netdevs."""

    by_path: Mapping[str, tuple[RdmaDevice, CharDevice]]
    by_netdev: Mapping[str, RdmaDevice]

    @classmethod
    def of(cls, devices: tuple[RdmaDevice, ...]) -> Hardware:
        """From the devices as the inventory has them."""
        return cls(
            by_path={char.path: (device, char) for device in devices for char in device.char_devices},
            by_netdev={netdev.name: device for device in devices for netdev in device.netdevs},
        )


def meaning(device: ResolvedDevice, hardware: Hardware, prefix: str) -> CdiMeaning:
    """What it means on a node with that hardware.

    Where the spec asks for something, raises RequestError when that cannot be read, and PlacementError when it names an
    RDMA device or netdev that the node does not have (now). Where it does not, what is not known is left out.
    """
    text = device.annotation(prefix)
    names = {net.host_interface_name: net.name for net in device.net_devices}
    owners = {name: hardware.by_netdev.get(name) for name in names}
    asks = text is not None or any(owners.values())
    found: dict[DeviceId, RdmaDevice] = {}
    for node in device.rdma_nodes:
        path = node.host_path or node.path
        if path in hardware.by_path:
            found.setdefault(*_by_id(hardware.by_path[path][0]))
        elif asks and path.rpartition("/")[2].startswith("uverbs"):
            raise _unknown(device, f"no RDMA device of this node has {path}")
    for name, owner in owners.items():
        if owner is not None:
            found.setdefault(*_by_id(owner))
        elif text is not None:
            raise _unknown(device, f"no RDMA device of this node has the netdev {name}")
    devices = tuple(found.values())
    if not asks or not devices:
        return CdiMeaning(name=device.name, devices=devices)
    in_pod = {owner.id: names[name] for name, owner in owners.items() if owner is not None}
    return CdiMeaning(name=device.name, devices=devices, asked=_asked(device, devices, in_pod, text, prefix))


def _asked(
    device: ResolvedDevice,
    devices: tuple[RdmaDevice, ...],
    in_pod: Mapping[DeviceId, str],
    text: str | None,
    prefix: str,
) -> tuple[Asked, ...]:
    """One request for all devices, or one for each where netdevs have names of their own."""
    where = f"CDI device {device.name} ({device.file}) {prefix}"
    base = _request(device, len(devices), text, where)
    if not in_pod:
        return (Asked(request=base, devices=devices),)
    if base.mode is Mode.SHARED:
        what = "netDevices move a netdev into the pod, and mode shared leaves it on the host"
        raise _refused(f"{where}.mode", what, "write mode: exclusive, or take netDevices away")
    if base.interface.name is not None or base.interface.addresses:
        what = "the interface has its name from netDevices, and each its own"
        raise _refused(f"{where}.interface", what, "leave name and addresses out, or take netDevices away")
    chosen = devices if text is not None else tuple(it for it in devices if it.id in in_pod)
    return tuple(
        Asked(request=_one(base, number, len(chosen), in_pod.get(item.id)), devices=(item,))
        for number, item in enumerate(chosen)
    )


def _one(base: DeviceRequest, number: int, total: int, name: str | None) -> DeviceRequest:
    """The request for one of several devices; its name stays a label."""
    label = base.name if total == 1 else f"{base.name[:60]}-{number}"
    interface = replace(base.interface, name=name) if name is not None else base.interface
    return replace(base, name=label, count=1, mode=Mode.EXCLUSIVE, interface=interface)


def _request(device: ResolvedDevice, count: int, text: str | None, where: str) -> DeviceRequest:
    if text is None:  # only its netdevs speak: it gets no more nodes than its spec has
        kinds = frozenset(
            kind for node in device.rdma_nodes for kind in CharKind if _is_kind(node.host_path or node.path, kind)
        )
        return DeviceRequest(
            name=label_of(device.name), where=where, count=count, char_kinds=kinds, interface=InterfaceConfig()
        )
    from nri_rdma.model.grammar import read_granted  # late: where no spec asks us, nobody needs YAML

    return read_granted(text, where, label_of(device.name), count)


def label_of(cdi_device: str) -> str:
    """The name of a request for a CDI device: the device's own, made a label."""
    name = cdi_device.rpartition("=")[2].lower()
    label = "".join(char if char.isascii() and char.isalnum() else "-" for char in name)[:63].strip("-")
    return label if LABEL.fullmatch(label) else "cdi"


def _is_kind(path: str, kind: CharKind) -> bool:
    name = path.rpartition("/")[2]
    return name == kind if kind is CharKind.RDMA_CM else name.startswith(kind)


def _by_id(device: RdmaDevice) -> tuple[DeviceId, RdmaDevice]:
    return device.id, device


def _unknown(device: ResolvedDevice, what: str) -> PlacementError:
    return PlacementError(
        ErrorCode.DEVICE_UNKNOWN,
        what,
        where=f"CDI device {device.name} ({device.file})",
        hint="its driver has to write the spec anew: the device is gone, is in a pod, or has another name now",
    )


def _refused(where: str, what: str, hint: str) -> RequestError:
    return RequestError(ErrorCode.CDI_VALUE, what, where=where, hint=hint)

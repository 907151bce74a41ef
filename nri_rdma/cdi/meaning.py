"""Finds the RDMA devices of a CDI device, and the requests to nri-rdma in its spec. Both together are called the
meaning of the CDI device. Pure.

The device's nodes below /dev/infiniband name RDMA devices of the node. A request to nri-rdma has one of two forms:

- an annotation of the device, or else of the spec, under nri-rdma's key: a request as in a pod's annotation, without
  the keys that choose devices;
- the netdevs of CDI 1.1 (``netDevices``): each moves into the pod under the name that is given there. Netdevs that
  belong to no RDMA device are left to the runtime.

A CDI device without RDMA devices of the node and without a request does not concern nri-rdma.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nri_rdma.cdi.registry import ResolvedDevice
from nri_rdma.cdi.spec import DeviceNode
from nri_rdma.errors import ErrorCode, PlacementError, RequestError
from nri_rdma.model.device import CharDevice, CharKind, DeviceId, DeviceNumbers, Node, RdmaDevice
from nri_rdma.model.reach import request_of_one
from nri_rdma.model.request import LABEL, DeviceRequest, Mode
from nri_rdma.text.refusals import bounded, quoted, unknown_key


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPart:
    """A request to nri-rdma in the spec of a CDI device, and the RDMA devices for which the request is."""

    request: DeviceRequest
    devices: tuple[RdmaDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiMeaning:
    """The RDMA devices of a CDI device, and the requests to nri-rdma in its spec, if any. `name` is the CDI device's
    qualified name."""

    name: str
    devices: tuple[RdmaDevice, ...]
    asked: tuple[AskedPart, ...] = ()
    away: PlacementError | None = None
    """The error for a container that gets this CDI device now, because a netdev of its spec is not on the host; None if
    none is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The RDMA devices of a node by the paths of their character devices, and by the names of their netdevs."""

    by_path: Mapping[str, tuple[RdmaDevice, CharDevice]]
    by_netdev: Mapping[str, RdmaDevice]
    rdma_cm: CharDevice | None = None

    @classmethod
    def of(cls, node: Node) -> Hardware:
        """Return the RDMA devices of a node by the paths of their character devices and by the names of their
        netdevs."""
        return cls(
            by_path={char.path: (device, char) for device in node.devices for char in device.char_devices},
            by_netdev={netdev.name: device for device in node.devices for netdev in device.netdevs},
            rdma_cm=node.rdma_cm,
        )

    def device_at(self, node: DeviceNode) -> RdmaDevice | None:
        """Return the RDMA device to which a device node in a spec belongs. None for an unknown node and for rdma_cm,
        which belongs to no device."""
        known = self.by_path.get(host_path(node))
        return known[0] if known is not None else None

    def numbers_at(self, node: DeviceNode) -> DeviceNumbers | None:
        """Return the major and minor number that a device node of a spec has in a container. The host's numbers count,
        or else those in the spec; None if neither has them."""
        known = self.by_path.get(host_path(node))
        char = known[1] if known is not None else self.rdma_cm
        if char is not None and char.path == host_path(node):
            return char.major, char.minor
        return None if node.major is None or node.minor is None else (node.major, node.minor)


def meaning(device: ResolvedDevice, hardware: Hardware, prefix: str) -> CdiMeaning:
    """Return the RDMA devices of a CDI device on this hardware, and the requests to nri-rdma in its spec. `prefix` is
    the key of nri-rdma's annotations.

    Raise RequestError if a request cannot be read. Raise PlacementError if the spec has a request and the node lacks
    one of its RDMA devices or netdevs. In a spec without a request unknown devices are ignored.
    """
    where = f"CDI device {bounded(device.name)} ({_printable(device.file)})"
    text = device.annotation(prefix)
    in_pod = _netdevs_in_pod(device, hardware, where)
    asks = text is not None or bool(in_pod)
    if asks:
        _refuse_unknown(device, hardware, where, netdevs=text is not None)
    devices = _devices(device, hardware, in_pod)
    if devices:
        _refuse_other_keys(device, prefix, where)
    away = _away(device, hardware, where)
    if not asks or not devices:
        return CdiMeaning(name=device.name, devices=devices, away=away)
    base = _request(device, len(devices), text, f"{where} {prefix}")
    if not in_pod:
        return CdiMeaning(name=device.name, devices=devices, asked=(AskedPart(request=base, devices=devices),))
    asked = _asked(base, devices, in_pod, only_named=text is None)
    return CdiMeaning(name=device.name, devices=devices, asked=asked, away=away)


def host_path(node: DeviceNode) -> str:
    """Return the path of a spec's device node on the host."""
    return node.host_path or node.path


def is_uverbs(node: DeviceNode) -> bool:
    """Return whether a device node is a uverbs node. Only uverbs nodes show which RDMA device a container has."""
    return _is_kind(node, CharKind.UVERBS)


def label_of(cdi_device: str) -> str:
    """Return the name that the request of a CDI device gets: the device's name after the ``=``, as a DNS label."""
    name = cdi_device.rpartition("=")[2].lower()
    label = "".join(char if char.isascii() and char.isalnum() else "-" for char in name)[:63].strip("-")
    return label if LABEL.fullmatch(label) else "cdi"


# The devices that it names


def _netdevs_in_pod(device: ResolvedDevice, hardware: Hardware, where: str) -> Mapping[DeviceId, str]:
    """Return, by RDMA device, the name that its netdev gets in the pod (``netDevices`` of the spec). Netdevs without an
    RDMA device are left to the runtime. Raise RequestError for a name that is not allowed or is used twice, and for two
    netdevs of one RDMA device."""
    in_pod: dict[DeviceId, str] = {}
    for net in device.net_devices:
        owner = hardware.by_netdev.get(net.host_interface_name)
        if owner is None:
            continue
        place = f"{where} netDevices {quoted(net.host_interface_name)}"
        if owner.id in in_pod:
            raise _refused(place, f"{owner.name} has a netdev there already", "name one netdev of an RDMA device")
        if net.name in in_pod.values():
            raise _refused(place, f"the name {quoted(net.name)} is there twice", "give each netdev a name of its own")
        _check_interface_name(net.name, place)
        in_pod[owner.id] = net.name
    return in_pod


def _check_interface_name(name: str, where: str) -> None:
    from nri_rdma.text.links import NETDEV_HINT, netdev_name  # imported late, as in _request
    from nri_rdma.text.nodes import Scalar

    try:
        netdev_name(Scalar(text=name, plain=False), where)
    except RequestError as error:
        raise _refused(where, error.what, error.hint) from error
    if "%" in name:
        raise _refused(where, f"{quoted(name)} is no name but a template", NETDEV_HINT)


def _devices(device: ResolvedDevice, hardware: Hardware, in_pod: Mapping[DeviceId, str]) -> tuple[RdmaDevice, ...]:
    """Return the RDMA devices of the device nodes, in their order, then those of the netdevs."""
    by_nodes = [found for node in device.rdma_nodes if (found := hardware.device_at(node)) is not None]
    by_netdevs = [owner for owner in hardware.by_netdev.values() if owner.id in in_pod]
    return tuple({item.id: item for item in (*by_nodes, *by_netdevs)}.values())


def _refuse_unknown(device: ResolvedDevice, hardware: Hardware, where: str, *, netdevs: bool) -> None:
    for node in device.rdma_nodes:
        if is_uverbs(node) and hardware.device_at(node) is None:
            raise _unknown(where, f"no RDMA device of this node has {quoted(host_path(node))}")
    for net in device.net_devices if netdevs else ():
        if net.host_interface_name not in hardware.by_netdev:
            raise _unknown(where, f"no RDMA device of this node has the netdev {quoted(net.host_interface_name)}")


def _away(device: ResolvedDevice, hardware: Hardware, where: str) -> PlacementError | None:
    """Return the error for a spec with an unknown netdev and with a uverbs node of an RDMA device that is not on the
    host, or is there without its netdev. The netdev is then in a pod or on its way back from one. None for any other
    spec."""
    netdevs = [it.host_interface_name for it in device.net_devices if it.host_interface_name not in hardware.by_netdev]
    owners = [hardware.device_at(node) for node in device.rdma_nodes if is_uverbs(node)]
    if not netdevs or not any(it is None or (it.lacks_netdev and it.protocol is not None) for it in owners):
        return None
    what = f"the netdev {quoted(netdevs[0])} is not on the host: it is in a pod, or on its way back from one"
    hint = "nothing, if that pod ends; else the device's driver has to write the spec again"
    return PlacementError(ErrorCode.DEVICE_UNKNOWN, what, where=where, hint=hint)


def _refuse_other_keys(device: ResolvedDevice, prefix: str, where: str) -> None:
    """Raise RequestError if the spec has an annotation whose key is only for pods (it chooses devices or containers).
    Ignoring the annotation would surprise its author."""
    for key, _ in (*device.device.annotations, *device.spec_annotations):
        refuse_key_of_pods(key, prefix, where)


def refuse_key_of_pods(key: str, prefix: str, where: str) -> None:
    """Raise RequestError for an annotation key of nri-rdma that only pods may have."""
    if key.startswith(f"{prefix}/"):
        raise unknown_key(key, (prefix,), where)


# The requests in its spec


def _request(device: ResolvedDevice, count: int, text: str | None, where: str) -> DeviceRequest:
    if text is None:  # the request is only in its netDevices: it gets no more nodes than its spec has
        kinds = frozenset(kind for node in device.rdma_nodes for kind in CharKind if _is_kind(node, kind))
        return DeviceRequest(name=label_of(device.name), where=where, count=count, char_kinds=kinds)
    from nri_rdma.text.requests import read_granted  # imported late: without requests in specs no YAML is needed

    return read_granted(text, where, label_of(device.name), count)


def _asked(
    base: DeviceRequest, devices: tuple[RdmaDevice, ...], in_pod: Mapping[DeviceId, str], *, only_named: bool
) -> tuple[AskedPart, ...]:
    """Return one request for each RDMA device, because each netdev gets a name of its own. `base` is the spec's request
    for all devices together; `in_pod` has the names that netdevs get in the pod. `only_named`: only devices in `in_pod`
    get a request, because the spec has no annotation of nri-rdma.

    Raise RequestError if `base` contradicts the spec's ``netDevices``.
    """
    if base.mode is Mode.SHARED:
        what = "netDevices move a netdev into the pod, and mode shared leaves it on the host"
        raise _refused(f"{base.where}.mode", what, "write mode: exclusive, or take netDevices away")
    if base.interface.name is not None and set(in_pod.values()) != {base.interface.name}:
        what = f"netDevices say {quoted(', '.join(in_pod.values()))}, and this says {quoted(base.interface.name)}"
        raise _refused(f"{base.where}.interface.name", what, "leave it out here: netDevices name each netdev")
    return tuple(
        AskedPart(request=_one(base, number, len(devices), in_pod.get(item.id)), devices=(item,))
        for number, item in enumerate(devices)
        if item.id in in_pod or not only_named
    )


def _one(base: DeviceRequest, number: int, total: int, name: str | None) -> DeviceRequest:
    """Return the part of the request `base` for the device with this number, of `total` devices. `name` is the name
    that the device's netdev gets in the pod; None: ``netDevices`` do not name it."""
    one = request_of_one(base, number) if total > 1 else replace(base, count=1)
    return replace(
        one,
        name=base.name if total == 1 else f"{base.name[:58]}-{number}",  # a label has 63; MAX_COUNT has four digits
        mode=base.mode if name is None else Mode.EXCLUSIVE,
        interface=replace(one.interface, name=name),
    )


def _is_kind(node: DeviceNode, kind: CharKind) -> bool:
    name = host_path(node).rpartition("/")[2]
    return name == kind if kind is CharKind.RDMA_CM else name.startswith(kind)


def _printable(file: str) -> str:
    """Return a file path with all characters that are not printable ASCII escaped."""
    return ascii(file)[1:-1]


def _unknown(where: str, what: str) -> PlacementError:
    hint = "its driver has to write the spec again: the device is gone, is in a pod, or has another name now"
    return PlacementError(ErrorCode.DEVICE_UNKNOWN, what, where=where, hint=hint)


def _refused(where: str, what: str, hint: str) -> RequestError:
    return RequestError(ErrorCode.CDI_VALUE, what, where=where, hint=hint)

"""RDMA devices that change their namespace: find them, return them to the host, read their new numbers.

A device is recognised by index and node GUID: a pod with NET_ADMIN can rename it, and it gets another index when its
driver is reloaded. Every function checks the present state before it changes anything, so it can be repeated.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

from nri_rdma.attach.ops import RenameRdma
from nri_rdma.attach.plan import RdmaMove
from nri_rdma.attach.port import Kernel, KernelError, Namespace, raise_first
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import CharDevice, CharKind, RdmaDevice
from nri_rdma.model.nldev import CharNumber, RdmaDeviceState

log = logging.getLogger(__name__)

_OF_A_PORT = (CharKind.UMAD, CharKind.ISSM)
_ISSM_AFTER_UMAD = 64


def bring_rdma_home(kernel: Kernel, namespace: Namespace | None, move: RdmaMove) -> None:
    """Return the RDMA device to the host, under its old name. Raises KernelError, after which the caller retries, if
    the machine has the device's PCI parent but no namespace shows the device yet. A soft device without a PCI parent
    may be missing."""
    home = find_rdma(kernel.rdma_devices(kernel.host), move)
    if home is None and namespace is not None:
        there = find_rdma(kernel.rdma_devices(namespace), move)
        if there is not None:
            kernel.move_rdma(namespace, there.index, kernel.host)
            home = find_rdma(kernel.rdma_devices(kernel.host), move)
    if home is None and move.parent:
        if kernel.has_bus_device(f"pci/{move.parent}"):
            raise KernelError("find the RDMA device", errno.ENODEV, "neither on the host nor in the pod")
        facts = {"device": move.device, "why": f"pci/{move.parent} was removed from the machine"}
        log.warning("the host has lost an RDMA device", extra=facts)
    if home is not None and home.name != move.device:
        raise_first(kernel.apply(kernel.host, home.index, (RenameRdma(name=move.device),)))


def find_rdma(devices: Iterable[RdmaDeviceState], move: RdmaMove) -> RdmaDeviceState | None:
    """Return the moved device from the devices of a namespace, or None. A device matches if it has the move's node
    GUID, and the move's index or name."""
    alike = [device for device in devices if device.node_guid == move.node_guid]
    return next(
        (it for it in alike if it.index == move.index), next((it for it in alike if it.name == move.device), None)
    )


def with_numbers_in_pod(kernel: Kernel, namespace: Namespace, device: RdmaDevice, index: int) -> RdmaDevice:
    """Return the device with the new names and numbers that its character devices have in the pod after the move."""
    known = {node.kind: node for node in device.char_devices}
    nodes = tuple(
        replace(known[kind], path=f"/dev/infiniband/{found.name}", major=found.major, minor=found.minor)
        for kind, port in _wanted(device.char_devices, tuple(port.number for port in device.ports))
        if (found := _number(kernel, namespace, index, kind, port)) is not None
    )
    if len(nodes) != len(device.char_devices):
        raise KernelError(
            "find the character devices", errno.ENODEV, f"{len(nodes)} of {len(device.char_devices)} came back"
        )
    return replace(device, char_devices=nodes)


def netdevs_in_pod(kernel: Kernel, namespace: Namespace, device: RdmaDevice) -> tuple[str, ...]:
    """Return the names, in the pod, of the netdevs of the device's ports. Raises PlacementError if there are none. The
    netdev is then in another pod, because the host does not have it either."""
    states = kernel.rdma_devices(namespace)
    index = next((it.index for it in states if (it.name, it.node_guid) == (device.name, device.node_guid)), None)
    ports = kernel.rdma_ports(namespace, index) if index is not None else ()
    names = tuple(port.netdev_name for port in ports if port.netdev_index is not None)
    if not names:
        raise PlacementError(
            ErrorCode.DEVICE_IN_USE,
            f"the netdev of {device.name} is neither on the host nor in the pod",
            where=namespace.identity.path,
            hint="look for it in other network namespaces, or ask for another device",
        )
    return names


def issm_beside(umad: CharNumber) -> CharNumber | None:
    """Return the issm device of the port that has this umad device; its minor is 64 higher
    (Documentation/admin-guide/devices.txt of Linux, 231 char). Return None after the machine's first 64 ports, whose
    numbers are not documented."""
    number = umad.name.removeprefix("umad")
    if not number.isdecimal() or int(number) >= _ISSM_AFTER_UMAD:
        return None
    return replace(umad, name=f"issm{number}", minor=umad.minor + _ISSM_AFTER_UMAD)


def _number(kernel: Kernel, namespace: Namespace, index: int, kind: CharKind, port: int | None) -> CharNumber | None:
    """Return a character device in the pod, or None. The number of an issm device is derived from umad, because the
    kernel answers EOPNOTSUPP for issm even if the port has one (ib_issm_get_nl_info of
    drivers/infiniband/core/user_mad.c, seen on 6.1 and in the source of 7.2)."""
    if kind is not CharKind.ISSM:
        return kernel.char_device(namespace, index, kind, port)
    umad = kernel.char_device(namespace, index, CharKind.UMAD, port)
    return None if umad is None else issm_beside(umad)


def _wanted(nodes: tuple[CharDevice, ...], ports: tuple[int, ...]) -> Iterator[tuple[CharKind, int | None]]:
    """Yield the kinds of the device's character devices in order, each with a port number. A kind with one character
    device per RDMA device comes once, with None."""
    for kind in dict.fromkeys(node.kind for node in nodes):
        for port in ports if kind in _OF_A_PORT else (None,):
            yield kind, port

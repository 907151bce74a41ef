"""RDMA devices that change their namespace: found wherever they are, brought home, their new numbers read.

They are known by index and node GUID: a pod with NET_ADMIN can rename them, and a driver that was loaded anew gives
another index. Every function looks before it acts.
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
    """Make the device the host's again, under its name.

    One with a PCI parent exists as long as that does: KernelError when it is nowhere to be seen (it may be on its way:
    try again). A soft one dies with its netdev.
    """
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
    """The device among those of a namespace."""
    alike = [device for device in devices if device.node_guid == move.node_guid]
    return next(
        (it for it in alike if it.index == move.index), next((it for it in alike if it.name == move.device), None)
    )


def with_numbers_in_pod(kernel: Kernel, namespace: Namespace, device: RdmaDevice, index: int) -> RdmaDevice:
    """The device with its character devices as they are after its move: names and numbers are new."""
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
    """The names of the netdevs that the device's ports have in the pod. Raises PlacementError when there are none: then
    they are neither on the host nor here, and somebody else's."""
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
    """The issm device of the port whose umad device this is: 64 minors on, up to the 64th port of the machine (Linux:
    Documentation/admin-guide/devices.txt, 231 char). None beyond, where no document says how they are numbered."""
    number = umad.name.removeprefix("umad")
    if not number.isdecimal() or int(number) >= _ISSM_AFTER_UMAD:
        return None
    return replace(umad, name=f"issm{number}", minor=umad.minor + _ISSM_AFTER_UMAD)


def _number(kernel: Kernel, namespace: Namespace, index: int, kind: CharKind, port: int | None) -> CharNumber | None:
    """The kernel tells every kind's number but issm's: EOPNOTSUPP also for a port that has one (seen on 6.1; until 7.2
    at least, ib_issm_get_nl_info in drivers/infiniband/core/user_mad.c has no data to look it up in)."""
    if kind is not CharKind.ISSM:
        return kernel.char_device(namespace, index, kind, port)
    umad = kernel.char_device(namespace, index, CharKind.UMAD, port)
    return None if umad is None else issm_beside(umad)


def _wanted(nodes: tuple[CharDevice, ...], ports: tuple[int, ...]) -> Iterator[tuple[CharKind, int | None]]:
    """The kinds that the device had, in order; what belongs to a port, for each port."""
    for kind in dict.fromkeys(node.kind for node in nodes):
        for port in ports if kind in _OF_A_PORT else (None,):
            yield kind, port

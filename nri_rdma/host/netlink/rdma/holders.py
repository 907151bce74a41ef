"""Finds the processes and kernel users that hold objects on RDMA devices, in the calling thread's namespace."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.rdma.subsystem import RdmaSocket
from nri_rdma.model.nldev import ObjectKind, RdmaObject

log = logging.getLogger(__name__)


def read_holders(rdma: RdmaSocket) -> Mapping[int, tuple[RdmaObject, ...]]:
    """Return the objects that show which processes and kernel users use each RDMA device, by the device's index. Raises
    KernelError if the kernel does not list the devices.

    A device for which the kernel reports an error, such as EINVAL after its removal, is left out, so that other devices
    can still be allocated. Before a device is attached to a pod, its users are read again.
    """
    found: dict[int, tuple[RdmaObject, ...]] = {}
    for device in rdma.devices():
        try:
            found[device.index] = holders_of(rdma, device.index)
        except KernelError as error:
            log.debug("holders not known", extra={"device": device.name, "error": str(error)})
    return found


def holders_of(rdma: RdmaSocket, index: int) -> tuple[RdmaObject, ...]:
    """Return the objects that show who uses an RDMA device: the contexts of processes, with the processes' names, and
    all objects of kernel users. Raises KernelError if the kernel refuses a query.

    The queue pairs and memory regions of processes, which may be many thousand, are not read, because the contexts are
    enough.
    """
    contexts = tuple(replace(item, process=_process_name(item.pid)) for item in rdma.objects(index, ObjectKind.CTX))
    of_kernel = (ObjectKind.QP, ObjectKind.CM_ID, ObjectKind.MR)
    return (*contexts, *(item for kind in of_kernel for item in rdma.kernel_objects(index, kind)))


def _process_name(pid: int | None) -> str:
    """Return the name of the process `pid`; "" if it has ended or belongs to another pid namespace, or if `pid` is
    None."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() if pid else ""
    except OSError:
        return ""

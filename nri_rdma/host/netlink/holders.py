"""Who holds what on the RDMA devices of the namespace of the calling thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.rdma import RdmaSocket
from nri_rdma.model.nldev import ObjectKind, RdmaObject

log = logging.getLogger(__name__)


def read_holders(rdma: RdmaSocket) -> Mapping[int, tuple[RdmaObject, ...]]:
    """The holders of every device, by its index. Raises KernelError.

    A device that cannot be asked (it went meanwhile: EINVAL) is left out: without the others nobody could be given any,
    and who gets this one has it asked again.
    """
    found: dict[int, tuple[RdmaObject, ...]] = {}
    for device in rdma.devices():
        try:
            found[device.index] = holders_of(rdma, device.index)
        except KernelError as error:
            log.debug("holders not known", extra={"device": device.name, "error": str(error)})
    return found


def holders_of(rdma: RdmaSocket, index: int) -> tuple[RdmaObject, ...]:
    """The contexts of processes on a device, with the processes' names, and all objects of the kernel's own users. The
    queue pairs and regions of processes, which may be many thousand, are not among them: their contexts say enough.

    Raises KernelError."""
    contexts = tuple(replace(item, process=_process_name(item.pid)) for item in rdma.objects(index, ObjectKind.CTX))
    of_kernel = (ObjectKind.QP, ObjectKind.CM_ID, ObjectKind.MR)
    return (*contexts, *(item for kind in of_kernel for item in rdma.kernel_objects(index, kind)))


def _process_name(pid: int | None) -> str:
    """The name that a process has now; "" for one that has ended, or is of another pid namespace."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip() if pid else ""
    except OSError:
        return ""

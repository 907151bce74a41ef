"""The character devices of an attach, as they are at its end.

The kernel creates them anew when an RDMA device changes its namespace, so their major and minor numbers are read last.
If a requested character device is missing then, the attach fails, because no container may start without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from nri_rdma.attach.record import SandboxRecord
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.errors import AttachError
from nri_rdma.model.device import CharDevice, CharKind, RdmaDevice
from nri_rdma.model.request import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Devices with their present character devices, and the node's rdma_cm device.

    `has_nodes` is whether the node has any RDMA device nodes; without them a missing rdma_cm is not an error.
    """

    devices: tuple[RdmaDevice, ...]
    rdma_cm: CharDevice | None
    has_nodes: bool = True


Resolve = Callable[[Resolved], Resolved]
"""Takes RDMA devices that were chosen earlier, and returns them with their present character devices. Called at the end
of an attach and at each reread. Raises AttachError."""

_MODULES = {CharKind.UVERBS: "ib_uverbs", CharKind.UMAD: "ib_umad", CharKind.ISSM: "ib_umad"}


def with_char_devices(record: SandboxRecord, resolve: Resolve) -> SandboxRecord:
    """Return the record with the present character devices. If nothing has changed, return `record` itself, because its
    journal text is cached. Raises AttachError if a requested character device is missing."""
    known = tuple(item.device for request in record.attached for item in request.devices)
    now = resolve(Resolved(devices=known, rdma_cm=record.rdma_cm))
    is_new = now.devices != known or now.rdma_cm != record.rdma_cm
    resolved = replace(record, attached=_with_devices(record, now), rdma_cm=now.rdma_cm) if is_new else record
    for request in resolved.attached:
        refuse_missing(request, now, str(record.pod))
    return resolved


def _with_devices(record: SandboxRecord, now: Resolved) -> tuple[AttachedRequest, ...]:
    by_id = {device.id: device for device in now.devices}
    return tuple(
        replace(request, devices=tuple(replace(item, device=by_id[item.device.id]) for item in request.devices))
        for request in record.attached
    )


def with_names(record: SandboxRecord, names: Mapping[int, str]) -> SandboxRecord:
    """Return the record with the present names of its RDMA devices; `names` maps kernel indexes to names. A pod with
    NET_ADMIN can rename its own devices, and the host can rename shared ones; rdma.max accepts only the present
    name."""

    def named(device: RdmaDevice) -> RdmaDevice:
        name = names.get(device.kernel_index, device.name) if device.kernel_index is not None else device.name
        return replace(device, name=name)

    return replace(
        record,
        attached=tuple(
            replace(request, devices=tuple(replace(item, device=named(item.device)) for item in request.devices))
            for request in record.attached
        ),
    )


def with_netdev_names(record: SandboxRecord, in_pod: Callable[[RdmaDevice], tuple[str, ...]]) -> SandboxRecord:
    """Return the record with the names of netdevs that were in the pod before the attach. Only exclusive devices
    without a netdev on the host have such netdevs. `in_pod` returns a device's netdev names; it may raise
    PlacementError or AttachError, which this function passes on."""
    alone = (request for request in record.attached if request.admitted.mode is Mode.EXCLUSIVE)
    if not any(item.device.lacks_netdev for request in alone for item in request.devices):
        return record
    return replace(
        record,
        attached=tuple(
            replace(
                request,
                devices=tuple(
                    replace(item, netdev_names=in_pod(item.device)) if item.device.lacks_netdev else item
                    for item in request.devices
                ),
            )
            if request.admitted.mode is Mode.EXCLUSIVE
            else request
            for request in record.attached
        ),
    )


def refuse_missing(attached: AttachedRequest, now: Resolved, where: str) -> None:
    """Raise AttachError if a requested character device does not exist."""
    asked = attached.admitted.request.char_kinds
    for item in attached.devices:
        found = {char.kind for char in item.device.char_devices}
        for kind in sorted(asked & _MODULES.keys() - found):
            raise AttachError(
                f"its {kind} device node is missing",
                device=item.device.name,
                where=where,
                hint=f"`modprobe {_MODULES[kind]}` on the node, or leave {kind} out of devices",
            )
    if CharKind.RDMA_CM in asked and now.rdma_cm is None and now.has_nodes:
        raise AttachError(
            "the node has no rdma_cm device node",
            device=", ".join(item.device.name for item in attached.devices),
            where=where,
            hint="`modprobe rdma_ucm` on the node, or ask for devices: [uverbs]",
        )

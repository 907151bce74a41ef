"""The attachments of one sandbox, together: what they gave to whom, from their records."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from itertools import chain, count

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.record import attach_key
from nri_rdma.cdi.grants import Attached, CdiGrant
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.decide.port_gids import Gids
from nri_rdma.model.device import CharDevice, DeviceId, RdmaDevice
from nri_rdma.model.request import LABEL


def attached_of(parts: tuple[Attachment, ...]) -> tuple[tuple[AttachedRequest, ...], CharDevice | None]:
    """Return all that the parts of a sandbox attached, and the node's rdma_cm."""
    if len(parts) == 1:  # most sandboxes, and CreateContainer waits for this
        record = parts[0].now.record
        return (record.attached, record.rdma_cm) if record is not None else ((), None)
    nows = [it.now for it in parts]
    records = [now.record for now in nows if now.record is not None and not now.ends]
    rdma_cm = next((record.rdma_cm for record in records if record.rdma_cm is not None), None)
    return tuple(item for record in records for item in record.attached), rdma_cm


def gids_of(parts: tuple[Attachment, ...]) -> tuple[Gids, ...]:
    """Return the GIDs of all that the parts of a sandbox attached."""
    nows = [it.now for it in parts]
    return tuple([now.record.gids for now in nows if now.record is not None and not now.ends])


def attached_for(parts: Iterable[Attachment]) -> Attached:
    """Return the CDI devices that something is attached for, with their RDMA devices."""
    found: dict[str, frozenset[DeviceId]] = {}
    for item in _requests(parts):
        name = item.admitted.request.cdi_device
        if name:
            found[name] = found.get(name, frozenset()) | {it.device.id for it in item.devices}
    return found


def devices_of(parts: Iterable[Attachment], container: str) -> frozenset[DeviceId]:
    """Return the devices that these attachments gave to a container."""
    covering = (item for item in _requests(parts) if item.admitted.request.scope.covers(container))
    return frozenset(it.device.id for item in covering for it in item.devices)


def held_by_id(parts: Iterable[Attachment], pool: str) -> tuple[RdmaDevice, ...]:
    """Return the devices of a pool that these attachments were given by their ids."""
    requests = (item for item in _requests(parts) if item.admitted.request.pool == pool)
    return tuple(it.device for item in requests if item.admitted.request.match.id is not None for it in item.devices)


def concerned(parts: tuple[Attachment, ...], container: str, grants: Collection[CdiGrant]) -> tuple[Attachment, ...]:
    """Return the attachments for which a container has to wait: not those that were made for other containers."""
    return tuple(it for it in parts if _concerns(it, container, grants))


def holder_of(parts: Iterable[Attachment], grant: CdiGrant) -> Attachment | None:
    """Return the attachment, finished or under way, for a CDI device."""
    return next((it for it in parts if grant.name in it.now.cdi_devices), None)


def moved_netdevs(parts: Iterable[Attachment], names: Collection[str]) -> tuple[str, ...]:
    """Return which of these host netdevs we moved into the pod, so that the runtime must not move them."""
    records = [now.record for now in [it.now for it in parts] if now.record is not None]
    return tuple(
        move.link.name for record in records for move in record.plan.moves if names and move.link.name in names
    )


def free_key(sandbox_id: str, parts: Iterable[Attachment], container: str) -> tuple[str, str]:
    """Return a part for what a container came with, which none of these has, and its key in journal and
    reservations."""
    taken = {it.part for it in parts}
    part = part_of(container)
    names = chain((part,), (f"{part}.{number}" for number in count(1)))
    free = next(name for name in names if name not in taken)
    return free, attach_key(sandbox_id, free)


def part_of(container: str) -> str:
    """Return the part for a container: its name, or a substitute where that cannot be the name of a file."""
    if LABEL.fullmatch(container):
        return container
    return "c." + hashlib.sha256(container.encode(errors="surrogatepass")).hexdigest()[:16]


def _requests(parts: Iterable[Attachment]) -> Iterable[AttachedRequest]:
    nows = [it.now for it in parts]
    return (item for now in nows if now.record is not None for item in now.record.attached)


def _concerns(attachment: Attachment, container: str, grants: Collection[CdiGrant]) -> bool:
    if not attachment.part or any(grant.name in attachment.now.cdi_devices for grant in grants):
        return True
    return any(item.admitted.request.scope.covers(container) for item in _requests((attachment,)))

"""All attachments of one sandbox at one moment: which devices they gave to which containers, read from their records.

A sandbox has one attachment from its start if its pod asked for devices. A late attachment is made for a container that
brings further devices afterwards: a CDI device, or shares of a device plugin resource.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.containers import SandboxContainers
from nri_rdma.attach.record import SandboxRecord, attach_key
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.decide.lacking import Held
from nri_rdma.decide.port_gids import Gids
from nri_rdma.model.device import CharDevice, DeviceId, RdmaDevice
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import LABEL


class Holdings(tuple[Attachment, ...]):
    """The attachments of a sandbox, oldest first. The tuple is fixed; the attachments in it may still change their
    state."""

    __slots__ = ()

    @property
    def own(self) -> Attachment | None:
        """The attachment that was made when the sandbox started; None if the pod requested nothing then."""
        first = next(iter(self), None)
        return first if first is not None and not first.part else None

    @property
    def pod(self) -> Pod:
        """The pod of the sandbox. Raises IndexError if there are no attachments."""
        return self[0].pod

    @property
    def containers(self) -> SandboxContainers:
        """The facts about the sandbox's containers, such as their cgroups. They are stored in the oldest attachment.
        Raises IndexError if there are no attachments."""
        return self[0].containers

    @property
    def attached(self) -> tuple[AttachedRequest, ...]:
        """The requests that are attached, with their devices."""
        return tuple([item for record in self._records() for item in record.attached])

    @property
    def rdma_cm(self) -> CharDevice | None:
        """The node's rdma_cm device; None if no attachment has it."""
        return next((record.rdma_cm for record in self._records() if record.rdma_cm is not None), None)

    @property
    def gids(self) -> tuple[Gids, ...]:
        """The GIDs of the attached devices, one value for each attachment."""
        return tuple([record.gids for record in self._records()])

    @property
    def held(self) -> tuple[Held, ...]:
        """The devices that each attachment gives to containers now, or will give once it is attached."""
        return tuple([_held(it) for it in self])

    @property
    def by_cdi_device(self) -> dict[str, frozenset[DeviceId]]:
        """The CDI devices for which something is attached, each with the ids of its RDMA devices."""
        found: dict[str, frozenset[DeviceId]] = {}
        for item in _requests(self):
            name = item.admitted.request.cdi_device
            if name:
                found[name] = found.get(name, frozenset()) | {it.device.id for it in item.devices}
        return found

    @property
    def share_devices(self) -> dict[str, str]:
        """The shares of device plugin resources for which something is attached, each with the name of its device."""
        return {
            share: attached.device.name
            for item in self.attached
            for index, attached in enumerate(item.devices)
            for share in item.admitted.request.shares_of(index, len(item.devices))
        }

    def with_late(self, now: Holdings) -> Holdings:
        """Return the first attachment of these holdings together with the late attachments of `now`. A late attachment
        is one made after the sandbox started. The first one stays even if it has ended, because containers that wait
        for it must not start without its devices."""
        own = tuple([it for it in self if not it.part])
        return Holdings((*own, *(it for it in now if it.part)))

    def devices(self, container: str) -> frozenset[DeviceId]:
        """Return the RDMA devices that a container has from these attachments."""
        covering = (item for item in _requests(self) if item.admitted.request.scope.covers(container))
        return frozenset(it.device.id for item in covering for it in item.devices)

    def concerning(self, container: str, cdi_devices: Collection[str]) -> Holdings:
        """Return the attachments for which a container with these CDI devices must wait. Attachments that serve only
        other containers are left out."""
        return Holdings(tuple([it for it in self if _concerns(it, container, cdi_devices)]))

    def moved_netdevs(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the netdevs in `names` that attachments have moved into the pod. The runtime must not move these
        netdevs again."""
        records = [record for record in [it.now.record for it in self] if record is not None]
        moved = [move.link.name for record in records for move in record.plan.moves]
        return tuple([name for name in moved if name in names])

    def free_key(self, sandbox_id: str, container: str) -> tuple[str, str]:
        """Return a free name for a new attachment of this container, and the attachment's key in the journal and in the
        reservations."""
        taken = {it.part for it in self}
        name = free = late_name(container)
        number = 0
        while free in taken:
            number += 1
            free = f"{name}.{number}"
        return free, attach_key(sandbox_id, free)

    def _records(self) -> list[SandboxRecord]:
        """Return the records of the attachments whose devices are not being returned to the host. If the sandbox has a
        single attachment, its record is returned in any case."""
        nows = [it.now for it in self]
        return [now.record for now in nows if now.record is not None and (len(nows) == 1 or not now.ends)]


NOTHING = Holdings()


def held_by_id(attachments: Iterable[Attachment], pool: str) -> tuple[RdmaDevice, ...]:
    """Return the devices of a pool that these attachments have because the kubelet allocated them by their ids."""
    requests = (item for item in _requests(attachments) if item.admitted.request.pool == pool)
    return tuple(it.device for item in requests if item.admitted.request.match.id is not None for it in item.devices)


def late_name(container: str) -> str:
    """Return the name of a container's first late attachment, which is one made after the sandbox started. It is the
    container's name, or a hash of a name that cannot be a file name."""
    if LABEL.fullmatch(container):
        return container
    return "c." + hashlib.sha256(container.encode(errors="surrogatepass")).hexdigest()[:16]


def _held(attachment: Attachment) -> Held:
    now = attachment.now
    requests = tuple([it.admitted.request for it in now.record.attached]) if now.record is not None else None
    return Held(part=attachment.part, cdi_devices=now.cdi_devices, requests=requests)


def _requests(attachments: Iterable[Attachment]) -> Iterator[AttachedRequest]:
    nows = [it.now for it in attachments]
    return (item for now in nows if now.record is not None for item in now.record.attached)


def _concerns(attachment: Attachment, container: str, cdi_devices: Collection[str]) -> bool:
    if not attachment.part or any(name in attachment.now.cdi_devices for name in cdi_devices):
        return True
    record = attachment.now.record
    return record is not None and any(it.admitted.request.scope.covers(container) for it in record.attached)

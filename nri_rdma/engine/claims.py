"""Claims that the kubelet has prepared: admitted, and not before their devices are free.

Law: a claim is prepared before its pod's sandbox exists and is attached like what any driver gives: by its CDI device
(nri_rdma.decide.granted). So what is decided here has to be in its CDI spec.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from nri_rdma.attach.attachment import Attachment
from nri_rdma.decide.advertised import Advertised, advertised, slice_name
from nri_rdma.decide.claims import AdmittedClaim, admit_claim, holder_of
from nri_rdma.engine.engine import Engine
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.claim import Claim, ClaimRequest
from nri_rdma.model.device import DeviceId, RdmaDevice
from nri_rdma.model.pool import PoolDoor
from nri_rdma.model.request import Mode

POLL_S = 0.05
"""Between two looks whether a device is free; nobody waits for this thread."""


class Claims:
    """Safe for use by several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._offering = engine.placer.offering

    def advertise(self) -> tuple[Advertised, ...]:
        """Return what the scheduler may allocate: devices that pods have as they were on the host, and of the others
        those that the host does not use."""
        node, offer = self._engine.placer.node.cache.current, self._offering.offer
        pools = [it for it in self._offering.policy.pools.values() if it.door is PoolDoor.CLAIMS]
        shown: dict[DeviceId, tuple[RdmaDevice, str]] = {
            device.id: (device, pool.name) for pool in pools for device in offer.by_pool[pool.name] if not device.in_use
        }
        for device in _attached(self._engine.attachments.all()):
            pool_name = next((pool.name for pool in pools if pool.has(device)), None)
            if pool_name is not None:
                shown[device.id] = (device, pool_name)
        return advertised(node, shown.values())

    def prepare(self, claim: Claim, by: float) -> tuple[AdmittedClaim, ...]:
        """Return the requests of a claim as they may be served, when their devices are free. Raise NriRdmaError, also
        where they are not free at `by`, in seconds of `time.monotonic`."""
        return tuple(self._prepare(claim, request, by) for request in claim.requests)

    def _prepare(self, claim: Claim, request: ClaimRequest, by: float) -> AdmittedClaim:
        where = f"claim {claim.namespace}/{claim.name}, request {request.name}"
        while True:
            placer = self._engine.placer
            node = placer.node.cache.current
            known = {slice_name(device.id): device for device in node.devices}
            missing = [name for name in request.devices if name not in known]
            why = f"this node has no RDMA device {missing[0]} now" if missing else ""
            if not why:
                devices = tuple(known[name] for name in request.devices)
                admitted = admit_claim(self._offering.policy, node, claim, request, devices)
                taken = placer.reservations.taken() if not request.is_admin else {}
                why = holder_of(devices, taken, admitted.mode)
                if not why and admitted.mode is Mode.EXCLUSIVE:
                    why = next((f"{it.name} has no netdev on the host now" for it in devices if it.lacks_netdev), "")
                if not why:
                    return admitted
            if time.monotonic() >= by:
                raise PlacementError(
                    ErrorCode.DEVICE_CONFLICT, why, where=where, hint="nothing to do: the kubelet tries again"
                )
            time.sleep(POLL_S)


def _attached(attachments: tuple[Attachment, ...]) -> Iterator[RdmaDevice]:
    """Yield the devices that pods have, as they were before."""
    for it in attachments:
        record = it.now.record
        for item in record.attached if record is not None else ():
            if not item.admitted.request.admin_access:  # the device may have been in another pod by then
                yield from (held.device for held in item.devices)

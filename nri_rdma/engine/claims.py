"""Claims that the kubelet has prepared: admitted, and not before their devices are free.

Law: a claim is prepared before its pod's sandbox exists and is attached like what any driver gives: by its CDI device
(nri_rdma.decide.granted). So what is decided here has to be in its CDI spec.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future

from nri_rdma.attach.attachment import Attachment
from nri_rdma.decide.advertised import (
    Advertised,
    advertised,
    is_up_for_claims,
    lacks_netdev_for_claims,
    slice_name,
)
from nri_rdma.decide.claim_admission import AdmittedClaim, admit_claim, holder_of
from nri_rdma.decide.policy import Policy
from nri_rdma.engine.engine import Engine
from nri_rdma.model.claim import Claim, ClaimRequest
from nri_rdma.model.device import CharDevice, RdmaDevice
from nri_rdma.model.pool import DownPorts, Pool, PoolDoor
from nri_rdma.model.request import Mode


class Claims:
    """Safe for use by several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._offering = engine.offering
        self._lock = threading.Lock()
        self._change = _next_change()
        engine.node.on_read.append(self._note_change)
        engine.reservations.on_release.append(self._note_change)

    @property
    def names_holders(self) -> bool:
        """Return whether who made a claim may read which other pods hold a device."""
        return self._offering.policy.names_holders

    def advertise(self) -> tuple[Advertised, ...]:
        """Return what the scheduler may allocate: devices that pods have as they were on the host, and of the others
        those that a pod could have now."""
        shown = {
            device.id: (device, pool)
            for device, pool in self._unused()
            if not self._is_withheld(device, pool) and not self._is_refused(device, pool)
        }
        for device in _attached(self._engine.attachments.all()):
            pool_of_it = next((pool for pool in self._pools() if pool.has(device)), None)
            if pool_of_it is not None:
                shown[device.id] = (device, pool_of_it)
        return advertised(self._engine.node.current, shown.values())

    def withheld(self) -> tuple[str, ...]:
        """Return the names of the devices that are not advertised for want of their netdevs."""
        return tuple(device.name for device, pool in self._unused() if self._is_withheld(device, pool))

    def _pools(self) -> list[Pool]:
        return [it for it in self._offering.policy.pools.values() if it.door is PoolDoor.CLAIMS]

    def _unused(self) -> Iterator[tuple[RdmaDevice, Pool]]:
        """Yield the devices that claims are for and that the host does not use, each with its pool."""
        offer = self._offering.offer
        return ((it, pool) for pool in self._pools() for it in offer.by_pool[pool.name] if not it.in_use)

    def _is_withheld(self, device: RdmaDevice, pool: Pool) -> bool:
        """Return whether new claims cannot have a device for want of its netdev. One that is held has its netdev in a
        pod, or on its way from there or to there, so that it does not go for a moment."""
        return lacks_netdev_for_claims(device, pool) and not self._is_held(device)

    def _is_refused(self, device: RdmaDevice, pool: Pool) -> bool:
        """Return whether the pool gives the device to nobody for want of an active port."""
        return pool.down_ports is DownPorts.REFUSE and not is_up_for_claims(device, pool) and not self._is_held(device)

    def _is_held(self, device: RdmaDevice) -> bool:
        return not all(it.looks_on for it in self._engine.reservations.taken().get(device.id, ()))

    @property
    def rdma_cm(self) -> CharDevice | None:
        """Return the node of the RDMA connection manager, None where the host has none."""
        return self._engine.node.current.rdma_cm

    def admission(self, claim: Claim) -> Admission:
        """Return what admits this claim as soon as its devices are free. Raise KubeletError where the claim's pods are
        not known."""
        self._engine.kubelet.claims.refuse_untold(claim)
        return Admission(self._engine, claim)

    def next_change(self) -> Future[None]:
        """Return what is done when devices were released, or the node was read, the next time: then a claim that waits
        may look again. It cannot be cancelled."""
        return self._change

    def _note_change(self) -> None:
        with self._lock:
            done, self._change = self._change, _next_change()
        done.set_result(None)


class Admission:
    """A claim on its way to its devices. Its words are judged once for the same devices: each look is cheap, since a
    claim may have to wait long."""

    def __init__(self, engine: Engine, claim: Claim) -> None:
        self._engine = engine
        self._claim = claim
        self._judged: dict[str, tuple[Policy, AdmittedClaim]] = {}
        self.why = ""
        """Why the claim could not be served at the last look."""
        self.hint = ""
        """What to do about that."""
        self.where = ""
        """The request that this is about."""

    def look(self) -> tuple[AdmittedClaim, ...] | None:
        """Return the requests of the claim as they may be served now; None while one of its devices is not free. Raise
        NriRdmaError for what does not change by waiting."""
        admitted = []
        for request in self._claim.requests:
            self.where = f"claim {self._claim.namespace}/{self._claim.name}, request {request.name}"
            found = self._look(request)
            if found is None:
                return None
            admitted.append(found)
        return tuple(admitted)

    def _look(self, request: ClaimRequest) -> AdmittedClaim | None:
        self.hint = "nothing to do: the kubelet tries again"
        node, policy = self._engine.node.current, self._engine.offering.policy
        known = {slice_name(device.id): device for device in node.devices}
        missing = [name for name in request.devices if name not in known]
        if missing:
            self.why = f"this node has no RDMA device {missing[0]} now"
            return None
        devices = tuple(known[name] for name in request.devices)
        judged, admitted = self._judged.get(request.name, (None, None))
        if admitted is None or judged is not policy or admitted.devices != devices:
            admitted = admit_claim(policy, node, self._claim, request, devices)
            self._judged[request.name] = policy, admitted
        self.why = "" if request.is_admin else holder_of(devices, self._engine.reservations.taken(), admitted.mode)
        if not self.why and admitted.mode is Mode.EXCLUSIVE:
            self.why = next((f"{it.name} has no netdev on the host now" for it in devices if it.lacks_netdev), "")
            self.hint = (
                "delete the pod, so that its next claim gets another device, or bring the netdev back to the host"
            )
        return None if self.why else admitted


def _next_change() -> Future[None]:
    change: Future[None] = Future()
    change.set_running_or_notify_cancel()  # of many that wait for it none can cancel it
    return change


def _attached(attachments: tuple[Attachment, ...]) -> Iterator[RdmaDevice]:
    """Yield the devices that pods have, as they were before."""
    for it in attachments:
        record = it.now.record
        for item in record.attached if record is not None else ():
            if not item.admitted.request.admin_access:  # the device may have been in another pod by then
                yield from (held.device for held in item.devices)

"""The DRA side of the engine: the devices that claims can get, and the admission of claims that the kubelet prepares.

A claim is admitted only when its devices are free. Law: the kubelet has a claim prepared before the pod's sandbox
exists. Later its devices are attached like those of any other DRA driver, by their CDI device
(nri_rdma.decide.granted); so everything that is decided here has to be in the CDI spec.
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
    """The part of the engine that the DRA driver calls: it lists the devices that claims can get, and admits claims.
    Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._offering = engine.offering
        self._lock = threading.Lock()
        self._change = _next_change()
        engine.node.on_read.append(self._note_change)
        engine.reservations.on_release.append(self._note_change)

    @property
    def names_holders(self) -> bool:
        """Whether the author of a claim may read in an error which other pods hold a device."""
        return self._offering.policy.names_holders

    def advertise(self) -> tuple[Advertised, ...]:
        """Return the devices that the scheduler may allocate: those that pods have, described as they were on the host,
        and those of the other devices that a pod could get now."""
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
        """Return the names of the devices that are not advertised because their netdevs are missing."""
        return tuple(device.name for device, pool in self._unused() if self._is_withheld(device, pool))

    def _pools(self) -> list[Pool]:
        return [it for it in self._offering.policy.pools.values() if it.door is PoolDoor.CLAIMS]

    def _unused(self) -> Iterator[tuple[RdmaDevice, Pool]]:
        """Yield the devices of the pools for claims, each with its pool; without the devices that the host itself
        uses."""
        offer = self._offering.offer
        return ((it, pool) for pool in self._pools() for it in offer.by_pool[pool.name] if not it.in_use)

    def _is_withheld(self, device: RdmaDevice, pool: Pool) -> bool:
        """Return whether new claims cannot get the device because its netdev is missing. A device that a pod holds is
        not withheld: its netdev is in the pod, or is being moved, and the device must not vanish from the advertised
        list meanwhile."""
        return lacks_netdev_for_claims(device, pool) and not self._is_held(device)

    def _is_refused(self, device: RdmaDevice, pool: Pool) -> bool:
        """Return whether new claims cannot get the device because it has no active port, and its pool refuses such
        devices."""
        return pool.down_ports is DownPorts.REFUSE and not is_up_for_claims(device, pool) and not self._is_held(device)

    def _is_held(self, device: RdmaDevice) -> bool:
        return not all(it.looks_on for it in self._engine.reservations.taken().get(device.id, ()))

    @property
    def rdma_cm(self) -> CharDevice | None:
        """The device node of the RDMA connection manager; None if the host has none."""
        return self._engine.node.current.rdma_cm

    def admission(self, claim: Claim) -> Admission:
        """Return the Admission that admits this claim as soon as its devices are free. Raise KubeletError if the
        kubelet's checkpoint does not say which pods have the claim."""
        self._engine.kubelet.claims.refuse_untold(claim)
        return Admission(self._engine, claim)

    def next_change(self) -> Future[None]:
        """Return a future that is done the next time devices are released or the node is rescanned. A waiting claim can
        try again then. The future cannot be cancelled."""
        return self._change

    def _note_change(self) -> None:
        with self._lock:
            done, self._change = self._change, _next_change()
        done.set_result(None)


class Admission:
    """A claim that is waiting for its devices. `look` is cheap, because a claim may have to wait long: its parameters
    are checked again only if the devices or the policy have changed."""

    def __init__(self, engine: Engine, claim: Claim) -> None:
        self._engine = engine
        self._claim = claim
        self._judged: dict[str, tuple[Policy, AdmittedClaim]] = {}
        self.why = ""
        """The reason why the claim could not be admitted at the last look."""
        self.hint = ""
        """The next step for people, for the reason in `why`."""
        self.where = ""
        """The claim and the request to which `why` belongs."""

    def look(self) -> tuple[AdmittedClaim, ...] | None:
        """Return the claim's admitted requests; None while one of its devices is not free. Raise NriRdmaError if
        waiting cannot help."""
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
    change.set_running_or_notify_cancel()  # several claims wait for this future, so none of them may cancel it
    return change


def _attached(attachments: tuple[Attachment, ...]) -> Iterator[RdmaDevice]:
    """Yield the devices that pods have, as they were on the host before the attach."""
    for it in attachments:
        record = it.now.record
        for item in record.attached if record is not None else ():
            if not item.admitted.request.admin_access:  # such a device may have been in another pod at the attach
                yield from (held.device for held in item.devices)

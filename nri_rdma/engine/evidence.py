"""Finds out which devices other programs (DRA drivers by CDI, device plugins) gave to a container that is being
created.

Law: CreateContainer is answered from memory, unless what is in memory does not explain the container's device nodes.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError

from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.holdings import NOTHING, Holdings
from nri_rdma.cdi.grants import CdiGrant, Origin, devices_of, grants_in
from nri_rdma.cdi.index import NO_NODES, Index
from nri_rdma.decide.granted import refuse_unallocated, shown_devices
from nri_rdma.decide.lacking import Evidence
from nri_rdma.engine.container import Container
from nri_rdma.engine.kubelet import KubeletEvidence
from nri_rdma.engine.offering import Offering
from nri_rdma.engine.rereading import Rereading
from nri_rdma.engine.sandbox import Sandbox, Sandboxes, Sighting
from nri_rdma.engine.specs import SpecCache, specs_not_read
from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.device import DeviceId, DeviceNumbers

_WAIT_S = 0.2
"""How long CreateContainer waits for readings of specs and devices. It is short, because NRI serialises all events of
the node. After it the container is refused, and the kubelet retries."""


class EvidenceCollector:
    """Reads CDI specs, the kubelet's allocation and a container's device nodes into the container's evidence.
    Thread-safe."""

    def __init__(
        self,
        specs: SpecCache,
        kubelet: KubeletEvidence,
        sandboxes: Sandboxes,
        rereading: Rereading,
        offering: Offering,
        attachments: Attachments,
    ) -> None:
        self._specs = specs
        self._kubelet = kubelet
        self._sandboxes = sandboxes
        self._rereading = rereading
        self._offering = offering
        self._attachments = attachments

    def concerns(self, container: Container) -> bool:
        """Return whether a container may have RDMA devices from other programs, according to the specs read so far.
        Cheap, because it runs for every container of the node."""
        return self._concerns(container, self._sandboxes.get(container.sandbox_id))

    def await_concerned(self, container: Container, deadline: float) -> bool:
        """Return whether a container may have RDMA devices from other programs, once the specs were read for the first
        time. Raise NotReadyError if that is not done by the deadline."""
        if self._specs.now.majors is None and self.concerns(container):
            self._specs.await_ready(container.pod, deadline)
        return self.concerns(container)

    def of(self, container: Container, holdings: Holdings, by: float) -> Evidence:
        """Return the evidence of a container that is being created, and remember it for `status`. `holdings` are the
        attachments of its sandbox.

        If the specs and devices in memory do not explain the container's RDMA device nodes, they are read again first:
        a driver may have written a spec, or the pod's network may have brought a device, a moment before.

        Raise NotReadyError if the readings are not done by that time, or if the kubelet does not report which
        containers name the pod's claims; CdiError if an unreadable spec may be about the container's RDMA nodes.
        """
        sandbox = self._sandboxes.get(container.sandbox_id)
        if sandbox is not None and sandbox.has_unseen_claims:
            self._kubelet.claims.look_at(container.pod, holdings.by_cdi_device)
        until = min(by, time.monotonic() + _WAIT_S)
        evidence = self.read(container, holdings)
        if evidence.unread and container.has_major(self._specs.now.majors):
            self._await_specs(container, evidence.unread, until)
            evidence = self.read(container, self._attachments.of(container.sandbox_id))
        if evidence.unexplained:
            self._rereading.await_read(container.pod, container.name, evidence.unexplained, until)
            evidence = self.read(container, self._attachments.of(container.sandbox_id))
        self.note(container, evidence)
        return evidence

    def read(self, container: Container, holdings: Holdings = NOTHING) -> Evidence:
        """Return the RDMA devices that other programs gave to a container (its evidence), according to the last
        readings of specs, kubelet and runtime. `holdings` are the attachments of its sandbox."""
        now, sandbox = self._specs.now, self._sandboxes.get(container.sandbox_id)
        named = _reported(container, sandbox)
        withheld = _withheld(now.index, container, _listed(container, sandbox))
        for name in withheld:
            del named[name]
        unread, unexplained = tuple(self._specs.unread(named, now)), NO_NODES
        nodes, attached = _telling_nodes(container), holdings.by_cdi_device
        if nodes:
            named |= dict.fromkeys(now.index.shown(named, nodes, attached), Origin.NODES)
            if self._rereading.reads and not container.was_there:
                unexplained = now.index.unexplained(named, nodes, attached, now.rdma_majors)
        grants = grants_in(now.index, container.name, named, attached)
        return Evidence(
            container=container.name,
            grants=grants,
            withheld=withheld,
            unread=unread,
            unexplained=unexplained,
        )

    def note(self, container: Container, evidence: Evidence, own: frozenset[DeviceId] = frozenset()) -> None:
        """Remember, for `status`, which RDMA devices the container has from other programs. `own` are the devices that
        nri-rdma gave to the container already; their nodes are not from other programs."""
        adoption, grants = self._offering.adoption, evidence.grants
        seen = [(it.name, [device.name for device in it.devices], it.origin, _handling(it, adoption)) for it in grants]
        bare = self._bare(container, grants, own)
        if bare:
            seen.append(("device nodes", [*bare], Origin.NODES, str(adoption.of("").adopt)))
        if seen:
            self._sandboxes.take(container.sandbox_id).sightings[container.name] = tuple(
                Sighting(
                    pod=container.pod_name,
                    container=container.name,
                    what=what,
                    devices=tuple(devices),
                    source=str(origin),
                    adopt=handling,
                    is_privileged=container.is_privileged,
                )
                for what, devices, origin, handling in seen
            )

    def refuse_unallocated(self, container: Container, holdings: Holdings, grants: Iterable[CdiGrant]) -> None:
        """Raise PlacementError if the administrator enforces allocations, and the container has nodes of a device that
        is neither attached for it nor allocated to it. If the kubelet or the runtime reports the container's CDI
        devices, device nodes do not count as evidence of an allocation."""
        adoption = self._offering.adoption
        if container.is_privileged or not adoption.enforces:
            return
        sandbox = self._sandboxes.get(container.sandbox_id)
        knows = (sandbox is not None and sandbox.allocation is not None) or bool(container.cdi_devices)
        covered = devices_of(grant for grant in grants if not (knows and grant.origin is Origin.NODES))
        own, now = holdings.devices(container.name), self._specs.now
        where = f"{container.pod_name}, container {container.name}"
        refuse_unallocated(now.node, container.devices, own | covered, now.index.vendors_of, adoption, where)

    # -- below -------------------------------------------------------------------------------------------------------

    def _concerns(self, container: Container, sandbox: Sandbox | None) -> bool:
        now = self._specs.now
        if container.has_major(now.majors):
            return True
        if sandbox is not None and (sandbox.has_unseen_claims or sandbox.unnamed):
            return True
        return not now.index.is_empty and any(map(now.index.knows, _reported(container, sandbox)))

    def _await_specs(self, container: Container, unread: tuple[str, ...], until: float) -> None:
        """Wait until the specs are read again, until `until` (seconds of `time.monotonic`). Raise CdiError if a CDI
        device in `unread` is in no readable spec, a spec is unreadable, and nothing else explains the container's RDMA
        nodes."""
        try:
            self._specs.reading_for([*unread]).result(max(0.0, until - time.monotonic()))
        except FutureTimeoutError as error:
            raise specs_not_read(container.pod) from error
        evidence, problems = self.read(container), self._specs.now.registry.problems
        if evidence.unread and problems and self._bare(container, evidence.grants):
            raise CdiError(
                ErrorCode.CDI_FILE,
                f"no spec that can be read has the CDI device {evidence.unread[0]} of container {container.name}",
                file=problems[0].file,
                hint="see `nri-rdma cdi list`, and mend or remove what it names",
                path=problems[0].path,
            )

    def _bare(
        self, container: Container, grants: Iterable[CdiGrant], own: frozenset[DeviceId] = frozenset()
    ) -> tuple[str, ...]:
        """Return the names of the RDMA devices whose nodes the container has, but which neither nri-rdma (`own`) nor a
        CDI device (`grants`) gave to it."""
        explained = own | devices_of(grants)
        shown = shown_devices(self._specs.now.node, container.devices)
        return tuple(device.name for device in shown if device.id not in explained)


def _listed(container: Container, sandbox: Sandbox | None) -> tuple[str, ...]:
    """Return the CDI devices that the kubelet lists for the container."""
    allocation = sandbox.allocation if sandbox is not None else None
    there = allocation.containers if allocation is not None else ()
    return tuple(name for item in there if item.name == container.name for name in item.cdi_devices)


def _reported(container: Container, sandbox: Sandbox | None) -> dict[str, Origin]:
    """Return the CDI devices that the runtime and the kubelet report for the container or its whole pod, each with its
    surest origin. CDI devices that gave the container the guard (an OCI hook) are among them, even if the runtime
    reports none: the hook refuses a container that lacks them."""
    named = dict.fromkeys((*container.cdi_devices, *container.guarded_devices), Origin.RUNTIME)
    whole = sandbox.unnamed if sandbox is not None else ()
    return named | dict.fromkeys((*_listed(container, sandbox), *whole), Origin.KUBELET)


def _withheld(index: Index, container: Container, listed: tuple[str, ...]) -> tuple[str, ...]:
    """Return the CDI devices that the kubelet lists for the container, but that the container was not given.

    The kubelet (tried: 1.34 to 1.37) lists a container with all devices of its claims, even if the container uses
    only one request of a claim. The runtime gives the container only the devices of that request. The CDI devices
    that the runtime reports show which these are, or else the container's device nodes.
    """
    if container.cdi_devices:
        return tuple(name for name in listed if name not in container.cdi_devices)
    if container.is_privileged:
        return ()
    nodes = dict(container.devices)
    return tuple(name for name in listed if index.paths(name) and not index.has_paths(name, nodes))


def _telling_nodes(container: Container) -> dict[str, DeviceNumbers]:
    """Return the container's device nodes as evidence of its devices; none for a privileged container, because it has
    all nodes of the host."""
    return {} if container.is_privileged else dict(container.devices)


def _handling(grant: CdiGrant, adoption: Adoption) -> str:
    """Return what nri-rdma does with the CDI device, as `status` shows it: the setting `adopt` for its vendor, or "its
    own keys" if its spec has nri-rdma's annotations."""
    asks = grant.problem is not None or bool(grant.meaning and grant.meaning.asked)
    return "its own keys" if asks else str(adoption.of(grant.vendor).adopt)

"""Finds out what CDI and device plugins gave to a container that is being created.

Law: CreateContainer is answered from memory unless that explains too little of a container's devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import TimeoutError as FutureTimeoutError

from nri_rdma.cdi.grants import Attached, CdiGrant, NodesAt, Origin, devices_of, grants_in, unexplained
from nri_rdma.cdi.registry import Registry
from nri_rdma.decide.granted import lacks, refuse_unallocated, shown_devices
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.engine.container import Container
from nri_rdma.engine.kubelet import Kubelet, KubeletEvidence
from nri_rdma.engine.rereading import Rereading
from nri_rdma.engine.sandbox import Sandboxes, Sighting
from nri_rdma.engine.specs import Read, SpecCache, specs_not_read
from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.device import DeviceId, DeviceNumbers, Node

_WAIT_S = 0.2
"""How long a handler waits for readings, since NRI serialises all events of the node. After that a container is refused
and retried."""


class EvidenceCollector:
    """Safe for use by several threads."""

    def __init__(
        self,
        *,
        node: Callable[[], Node],
        registry: Callable[[], Registry],
        prefix: str,
        kubelet: Kubelet | None = None,
        reread: Read | None = None,
        reread_node: Read | None = None,
        is_ready: bool = True,
    ) -> None:
        """`reread_node` has a worker read the node again; the others are as for `SpecCache`. Without `reread` and
        `reread_node` the last reading is complete."""
        self.sandboxes = Sandboxes()
        """What is remembered of sandboxes."""
        self.specs = SpecCache(node=node, registry=registry, prefix=prefix, reread=reread, is_ready=is_ready)
        self.kubelet = KubeletEvidence(kubelet, self.specs, self.sandboxes)
        self.adoption = Adoption()
        """What the administrator wants done with devices from others."""
        self._rereading = Rereading((it for it in (reread, reread_node) if it is not None), self.sandboxes)

    def concerns(self, container: Container) -> bool:
        """Return whether a container has anything from others that could matter, as far as the specs are read. Cheap,
        since it runs for every container of the node."""
        now = self.specs.now
        if container.has_major(now.majors):
            return True
        known = self.sandboxes.get(container.sandbox_id)
        if known is not None and (known.has_unseen_claims or known.unnamed):
            return True
        return not now.index.is_empty and any(map(now.index.knows, self._reported(container)))

    def await_concerned(self, container: Container, deadline: float) -> bool:
        """Return the same once the specs are read. Raise NotReadyError where that is not before the deadline."""
        if self.specs.now.majors is None and self.concerns(container):
            self.specs.await_ready(container.pod, deadline)
        return self.concerns(container)

    def await_known(self, container: Container, attached: Attached, deadline: float) -> None:
        """Wait until the container's devices are explained, as far as they can be: drivers write specs moments before,
        and devices arrive with the pod's network. `attached` is as for `grants`.

        Raise NotReadyError at the deadline, and where the kubelet does not tell what it has to; raise CdiError where an
        unreadable spec may be about the container's RDMA nodes.
        """
        self.kubelet.claims.look_at(container.pod, attached)
        until = min(deadline, time.monotonic() + _WAIT_S)
        self._await_names(container, until)
        nodes = self._unexplained(container, attached)
        if nodes:
            self._rereading.await_read(container.pod, container.name, nodes, until)

    def grants(
        self, container: Container, attached: Attached, own: frozenset[DeviceId] = frozenset()
    ) -> tuple[CdiGrant, ...]:
        """Return the CDI devices of a container that concern us, each with its surest origin. `attached` are the CDI
        devices that its sandbox has something attached for, with their RDMA devices; `own` are the devices that it
        already has from us: their nodes are from nobody else."""
        index = self.specs.now.index
        grants = grants_in(index, container.name, self._named(container), _telling_nodes(container), attached)
        self._note(container, grants, own)
        return grants

    def traces(self, grants: Iterable[CdiGrant]) -> frozenset[str]:
        """Return the `traceparent` of each call that prepared one of these CDI devices."""
        return frozenset(map(self.specs.now.index.trace_of, (grant.name for grant in grants))) - {""}

    def withheld(self, container: Container) -> tuple[str, ...]:
        """Return the CDI devices that the kubelet lists for the container and that it was not given.

        The kubelet lists a container with all devices of its claims (seen with 1.34 to 1.37), also where the container
        asks for one request of a claim. The runtime gives it what it asks for: the CDI devices that the runtime
        reports, or else the device nodes, prove which those are.
        """
        told = self._listed(container)
        if container.cdi_devices:
            return tuple(name for name in told if name not in container.cdi_devices)
        if container.is_privileged:
            return ()
        index, nodes = self.specs.now.index, dict(container.devices)
        return tuple(name for name in told if index.paths(name) and not index.has_paths(name, nodes))

    def refuse_unallocated(self, container: Container, own: frozenset[DeviceId], grants: Iterable[CdiGrant]) -> None:
        """Raise PlacementError where the administrator enforces that and the container has nodes of a device that is
        neither its `own` nor allocated to it by these grants. Nodes that look like those of a CDI device prove nothing
        where the kubelet was asked, which knows."""
        if container.is_privileged or not self.adoption.enforces:
            return
        knows = self.kubelet.allocated(container.sandbox_id) is not None or bool(container.cdi_devices)
        covered = devices_of(grant for grant in grants if not (knows and grant.origin is Origin.NODES))
        now, where = self.specs.now, f"{container.pod_name}, container {container.name}"
        refuse_unallocated(now.node, container.devices, own | covered, now.index.vendors_of, self.adoption, where)

    def lacks(self, grants: Iterable[CdiGrant], attached: Iterable[AttachedRequest]) -> bool:
        """Return whether these CDI devices ask for anything that is not attached for their containers."""
        return lacks(grants, (item.admitted.request for item in attached), self.adoption)

    # -- below -------------------------------------------------------------------------------------------------------

    def _listed(self, container: Container) -> tuple[str, ...]:
        """Return the CDI devices that the kubelet lists for the container."""
        allocation = self.kubelet.allocated(container.sandbox_id)
        there = allocation.containers if allocation is not None else ()
        return tuple(name for item in there if item.name == container.name for name in item.cdi_devices)

    def _reported(self, container: Container) -> dict[str, Origin]:
        """Return the CDI devices that the runtime and the kubelet report for the container or its whole pod, each with
        its surest origin. The guard's hook names its device also where the runtime does not, and asks for that one."""
        named = dict.fromkeys((*container.cdi_devices, *container.guarded_devices), Origin.RUNTIME)
        known = self.sandboxes.get(container.sandbox_id)
        whole = known.unnamed if known is not None else ()
        return named | dict.fromkeys((*self._listed(container), *whole), Origin.KUBELET)

    def _named(self, container: Container) -> dict[str, Origin]:
        """Return the same without those that the container was not given."""
        named = self._reported(container)
        for name in self.withheld(container):
            del named[name]
        return named

    def _await_names(self, container: Container, until: float) -> None:
        """Wait until the specs of all CDI devices that the runtime or kubelet reports for the container are read."""
        unread = self.specs.unread(self._named(container))
        if not unread or not container.has_major(self.specs.now.majors):
            return
        try:
            self.specs.reading_for(unread).result(max(0.0, until - time.monotonic()))
        except FutureTimeoutError as error:
            raise specs_not_read(container.pod) from error
        still, now = self.specs.unread(self._named(container)), self.specs.now
        if still and now.registry.problems and self._bare(container, self.grants(container, {})):
            problem = now.registry.problems[0]
            raise CdiError(
                ErrorCode.CDI_FILE,
                f"no spec that can be read has the CDI device {still[0]} of container {container.name}",
                file=problem.file,
                hint="see `nri-rdma cdi list`, and mend or remove what it names",
                path=problem.path,
            )

    def _unexplained(self, container: Container, attached: Attached) -> NodesAt:
        """Return a container's RDMA nodes that nothing known explains, and that something not yet read may explain."""
        nodes, now = _telling_nodes(container), self.specs.now
        if not nodes or container.was_there or not self._rereading.is_possible:
            return frozenset()
        found = unexplained(now.index, self._named(container), nodes, attached)
        return frozenset((path, number) for path, number in found if number[0] in now.rdma_majors)

    def _bare(
        self, container: Container, grants: Iterable[CdiGrant], own: frozenset[DeviceId] = frozenset()
    ) -> tuple[str, ...]:
        """Return the RDMA devices whose nodes the container has, that are not its `own`, and that none of these grants
        is about."""
        explained = own | devices_of(grants)
        shown = shown_devices(self.specs.now.node, container.devices)
        return tuple(device.name for device in shown if device.id not in explained)

    def _note(self, container: Container, grants: tuple[CdiGrant, ...], own: frozenset[DeviceId]) -> None:
        """Remember what the container has from others, for `status`."""
        seen = [self._sighting(container, grant) for grant in grants]
        bare = self._bare(container, grants, own)
        if bare:
            adopt = str(self.adoption.of("").adopt)
            seen.append(_sighting(container, "device nodes", bare, str(Origin.NODES), adopt))
        if seen:
            self.sandboxes.take(container.sandbox_id).sightings[container.name] = tuple(seen)

    def _sighting(self, container: Container, grant: CdiGrant) -> Sighting:
        asks = grant.problem is not None or bool(grant.meaning and grant.meaning.asked)
        adopt = "its own keys" if asks else str(self.adoption.of(grant.vendor).adopt)
        return _sighting(container, grant.name, tuple(it.name for it in grant.devices), str(grant.origin), adopt)


def _telling_nodes(container: Container) -> dict[str, DeviceNumbers]:
    """Return the container's device nodes; none for a privileged container, which has all nodes of the host."""
    return {} if container.is_privileged else dict(container.devices)


def _sighting(container: Container, what: str, devices: tuple[str, ...], source: str, adopt: str) -> Sighting:
    return Sighting(
        pod=container.pod_name,
        container=container.name,
        what=what,
        devices=devices,
        source=source,
        adopt=adopt,
        is_privileged=container.is_privileged,
    )

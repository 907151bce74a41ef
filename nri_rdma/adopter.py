"""Finds out what others gave to containers: asks the kubelet before a sandbox runs, and looks at what a container has
when it is made.

Law: CreateContainer is answered from memory. The specs are read by a thread of their own, the kubelet is asked for a
pod once, and within its own budget; what it does not tell in time is found out when the container is made.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from nri_rdma.cdi.index import Index
from nri_rdma.cdi.registry import Registry
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError
from nri_rdma.grants import Grant, Numbers, Source, shown_devices
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.device import CharKind, DeviceId, Node, RdmaDevice
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker

log = logging.getLogger(__name__)

_KEPT_PODS = 4096
"""Of which the kubelet's answer and what was seen are remembered: more than any node runs."""


class Kubelet(Protocol):
    """Who knows what was allocated to pods."""

    @property
    def tells(self) -> bool:
        """Whether it has answered."""

    def of_pod(self, namespace: str, name: str) -> PodAllocation | None:
        """None: it does not know the pod. Raises KubeletError, after its budget at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What a container that is made brings along from others, and its pod.

    `cdi_devices` are the names that the runtime tells, `devices` the nodes by path. A privileged container has all
    nodes of the host, which says nothing.
    """

    pod: Pod
    asker: Asker
    container: str
    cdi_devices: tuple[str, ...]
    devices: Mapping[str, Numbers]
    is_privileged: bool = False
    net_devices: frozenset[str] = frozenset()
    """The host's netdevs that the runtime would move into the container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A container with RDMA devices from others, for `status`: `what` are the CDI devices, or "device nodes"."""

    pod: str
    container: str
    what: str
    devices: tuple[str, ...]
    source: str
    adopt: str
    is_privileged: bool


class Adopter:
    """Safe for use by several threads."""

    def __init__(
        self,
        *,
        node: Callable[[], Node],
        registry: Callable[[], Registry],
        prefix: str,
        adoption: Adoption | None = None,
        kubelet: Kubelet | None = None,
        is_ready: bool = True,
    ) -> None:
        """`node` and `registry` give what was read last, and never block. One that is not ready knows no specs yet:
        `set_ready` is still to come."""
        self._node = node
        self._registry = registry
        self._prefix = prefix
        self.kubelet = kubelet
        self._adoption = adoption or Adoption()
        self._lock = threading.Lock()
        self._told: OrderedDict[str, PodAllocation] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str], tuple[Sighting, ...]] = OrderedDict()
        self._ready = threading.Event()
        self._index = Index(registry(), node(), prefix)
        self._numbers: frozenset[Numbers] = frozenset()
        self.majors: frozenset[int] | None = None
        """The major numbers of the node's RDMA devices; None: not ready."""
        self.is_relevant = False
        """Whether there are CDI devices that concern us, so that it matters who has which."""
        self.asks_kubelet = False
        """Whether there are CDI devices that concern us, so that it matters which the kubelet allocated."""
        if is_ready:
            self.set_ready()
        else:
            self.read_again()

    @property
    def adoption(self) -> Adoption:
        """What the administrator wants done."""
        return self._adoption

    @adoption.setter
    def adoption(self, adoption: Adoption) -> None:
        self._adoption = adoption
        self.read_again()

    def read_again(self) -> None:
        """The specs, the node or the settings are others now. Not for a handler: it looks at every spec."""
        with self._lock:
            node = self._node()
            self._index = Index(self._registry(), node, self._prefix)
            self._numbers = frozenset(
                (char.major, char.minor)
                for device in node.devices
                for char in device.char_devices
                if char.kind is CharKind.UVERBS
            )
            self.is_relevant = self._index.is_relevant
            self.asks_kubelet = self.kubelet is not None and self.is_relevant
            if self._ready.is_set():
                self.majors = frozenset(major for major, _ in self._numbers)

    def set_ready(self) -> None:
        """The specs were read, or cannot be."""
        self._ready.set()
        self.read_again()

    def await_ready(self, pod: Pod | None, deadline: float) -> None:
        """Wait until then (seconds of `time.monotonic`). Raises NotReadyError."""
        if self.majors is None and not self._ready.wait(max(0.0, deadline - time.monotonic())):
            raise NotReadyError(
                ErrorCode.NOT_READY,
                "network is not ready: the CDI specs of the node are still being read",
                where=str(pod or ""),
                hint="nothing to do: the kubelet asks again",
            )

    def ask(self, pod: Pod) -> PodAllocation | None:
        """What the kubelet allocated to the pod; None when it does not tell. Blocks for its budget at most."""
        if self.kubelet is None:
            return None
        try:
            allocation = self.kubelet.of_pod(pod.namespace, pod.name)
        except NriRdmaError as error:
            log.warning("the kubelet does not tell what it allocated", extra={"pod": str(pod), "error": str(error)})
            return None
        if allocation is not None:
            _remember(self._told, pod.sandbox_id, allocation)
        return allocation

    @property
    def kubelet_tells(self) -> bool:
        """Whether a kubelet is there that tells what it allocates."""
        return self.kubelet is not None and self.kubelet.tells

    def was_told(self, sandbox_id: str) -> bool:
        """Whether the kubelet has told of this sandbox."""
        return sandbox_id in self._told

    def told(self, allocation: PodAllocation | None) -> tuple[Grant, ...]:
        """The CDI devices in the kubelet's answer that concern us."""
        containers = allocation.containers if allocation is not None else ()
        return tuple(
            grant
            for container in containers
            for grant in self._grants(container.name, dict.fromkeys(container.cdi_devices, Source.KUBELET))
        )

    def may_be_ours(self, devices: Mapping[str, Numbers]) -> bool:
        """Whether any of these nodes has the major number of an RDMA device; True as long as that is not known."""
        majors = self.majors
        if majors is None:
            return bool(devices)
        for major, _ in devices.values():  # noqa: SIM110 - a loop is half the cost of any() with a generator
            if major in majors:
                return True
        return False

    def concerns(self, brought: Brought) -> bool:
        """Whether a container brings anything along that could matter: cheap, for every container of the node."""
        told = self._told.get(brought.pod.sandbox_id)
        return (
            not self._numbers.isdisjoint(brought.devices.values())
            or bool(brought.cdi_devices)
            or (told is not None and brought.container in told.named)
        )

    def grants(self, brought: Brought) -> tuple[Grant, ...]:
        """The CDI devices of a container that concern us, with the surest way in which each is known."""
        names: dict[str, Source] = {}
        told = self._told.get(brought.pod.sandbox_id)
        for container in told.containers if told is not None else ():
            if container.name == brought.container:
                names.update(dict.fromkeys(container.cdi_devices, Source.KUBELET))
        for name in brought.cdi_devices:
            names.setdefault(name, Source.RUNTIME)
        if not brought.is_privileged:
            for name in self._index.recognise(brought.devices):
                names.setdefault(name, Source.NODES)
        grants = self._grants(brought.container, names)
        self._see(brought, grants)
        return grants

    def covered(self, brought: Brought, grants: Iterable[Grant]) -> frozenset[DeviceId]:
        """The ids of the devices that these grants allocate to the container. That nodes look like those of a CDI
        device proves nothing where somebody was asked who knows: the kubelet."""
        knows = brought.pod.sandbox_id in self._told or bool(brought.cdi_devices)
        return frozenset(
            device.id
            for grant in grants
            if grant.meaning is not None and not (knows and grant.source is Source.NODES)
            for device in grant.meaning.devices
        )

    @property
    def vendors(self) -> Mapping[DeviceId, str]:
        """Whose CDI devices have the nodes of each device."""
        return self._index.vendor_of

    def forget(self, sandbox_id: str) -> None:
        """The sandbox has ended."""
        self._told.pop(sandbox_id, None)
        for key in [key for key in self._seen.copy() if key[0] == sandbox_id]:
            self._seen.pop(key, None)

    def sightings(self) -> tuple[Sighting, ...]:
        """The containers with RDMA devices from others, oldest first."""
        return tuple(sighting for seen in self._seen.copy().values() for sighting in seen)

    def _grants(self, container: str, names: Mapping[str, Source]) -> tuple[Grant, ...]:
        found = []
        for name, source in names.items():
            try:
                meaning = self._index.meaning(name)
            except NriRdmaError as problem:
                found.append(Grant(container=container, name=name, source=source, problem=problem))
                continue
            if meaning is not None and (meaning.devices or meaning.asked):
                found.append(Grant(container=container, name=name, source=source, meaning=meaning))
        return tuple(found)

    def _see(self, brought: Brought, grants: tuple[Grant, ...]) -> None:
        seen = [self._sighting(brought, grant.name, _devices(grant), str(grant.source), grant) for grant in grants]
        explained = {device.id for grant in grants for device in _devices(grant)}
        rest = [it for it in shown_devices(self._node(), brought.devices) if it.id not in explained]
        if rest:
            seen.append(self._sighting(brought, "", tuple(rest), str(Source.NODES), None))
        if seen:
            _remember(self._seen, (brought.pod.sandbox_id, brought.container), tuple(seen))

    def _sighting(
        self, brought: Brought, what: str, devices: tuple[RdmaDevice, ...], source: str, grant: Grant | None
    ) -> Sighting:
        asks = grant is not None and (grant.problem is not None or bool(grant.meaning and grant.meaning.asked))
        vendor = grant.vendor if grant is not None else ""
        return Sighting(
            pod=str(brought.pod),
            container=brought.container,
            what=what or "device nodes",
            devices=tuple(device.name for device in devices),
            source=source,
            adopt="its own keys" if asks else str(self._adoption.of(vendor).adopt),
            is_privileged=brought.is_privileged,
        )


def _devices(grant: Grant) -> tuple[RdmaDevice, ...]:
    return grant.meaning.devices if grant.meaning is not None else ()


def _remember(memory: OrderedDict, key: object, value: object) -> None:  # type: ignore[type-arg]  # both kinds
    memory[key] = value
    while len(memory) > _KEPT_PODS:
        memory.popitem(last=False)

"""Finds out what CDI and device plugins gave to containers: asks the kubelet before a sandbox runs, and reads a
container's devices when it is created.

Law: CreateContainer is answered from memory unless that explains too little of a container's devices. A thread of its
own reads the specs; the kubelet is asked once per pod, within its own budget. What it does not report in time is found
out when the container is created.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Protocol

from nri_rdma.cdi.index import Index
from nri_rdma.cdi.registry import Registry
from nri_rdma.decide.gpus import GpuNames, KnownGpus, PodGpus, Shown, of_shown, pod_gpus
from nri_rdma.decide.granted import Grant, Source, shown_devices
from nri_rdma.engine.rereading import Read, Rereading
from nri_rdma.engine.sandbox import NodesAt, Sandboxes, Sighting
from nri_rdma.errors import CdiError, ErrorCode, NotReadyError, NriRdmaError
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.device import CharKind, DeviceId, DeviceNumbers, Node, RdmaDevice
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.tasks.waiting import settled

log = logging.getLogger(__name__)

_KEPT_NAMES = 4096
"""Names of CDI devices that no spec had are remembered up to this number, which is more than the pods of any node
have."""
_FRESH_S = 1.0
"""How long a name that a reading did not find counts as unknown; then the specs are read again. The kubelet's attempts
are as far apart."""
_WAIT_S = 0.2
"""How long a handler waits for readings, since NRI serialises all events of the node. After that a container is refused
and retried; a pod is placed without waiting longer."""
_UVERBS_MAJOR = 231
"""The kernel's number for the first 32 devices (IB_UVERBS_MAJOR in its drivers/infiniband/core/uverbs_main.c): a node
whose first one has just come is not known to have any."""


class Kubelet(Protocol):
    """Reports what was allocated to pods."""

    @property
    def is_there(self) -> bool:
        """Return whether the node has a kubelet to ask."""

    @property
    def tells(self) -> bool:
        """Return whether the kubelet has answered."""

    def of_pod(self, namespace: str, name: str) -> PodAllocation | None:
        """Return the pod's allocation; None: the kubelet does not know the pod. Raise KubeletError, after its budget at
        the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletWord:
    """What the kubelet allocated to a pod, or None with the reason why it does not report. Both empty: there is no
    kubelet. `is_unknown_pod`: the kubelet answers, and does not know the pod."""

    allocation: PodAllocation | None = None
    problem: str = ""
    is_unknown_pod: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """The devices that a new container has from CDI or a device plugin, and its pod.

    `cdi_devices` are the names that the runtime reports, `devices` the nodes by path. A privileged container has all
    nodes of the host, which proves nothing.
    """

    pod: Pod
    asker: Asker
    container: str
    cdi_devices: tuple[str, ...]
    devices: Mapping[str, DeviceNumbers]
    is_privileged: bool = False
    net_devices: frozenset[str] = frozenset()
    """The host's netdevs that the runtime would move into the container."""
    was_there: bool = False
    """Whether the container was created before this daemon started: then no explanation of its devices is still to
    come."""


class Adopter:
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
        """`node` and `registry` return the last reading and never block. `reread` has a worker read the specs again,
        `reread_node` the node; each is done when `read_again` was called afterwards (None: the last reading is
        complete). An adopter that is not ready knows no specs until `set_ready`."""
        self._node = node
        self._registry = registry
        self._prefix = prefix
        self.kubelet = kubelet
        self._reread = reread
        self.sandboxes = Sandboxes()
        """What is remembered of sandboxes."""
        self._rereading = Rereading((it for it in (reread, reread_node) if it is not None), self.sandboxes)
        self.adoption = Adoption()
        """What the administrator wants done with devices from others."""
        self._lock = threading.Lock()
        self._readings: OrderedDict[str, tuple[Future[None], float]] = OrderedDict()
        """Readings for names that no spec had, with the time of each request."""
        self._ready = threading.Event()
        self._index = Index(Registry(devices={}), node(), prefix)
        self.gpu_names = GpuNames()
        """The GPUs of the node as last read."""
        self._majors = frozenset({_UVERBS_MAJOR})
        self.majors: frozenset[int] | None = None
        """The major numbers that RDMA devices of the node have or had: devices that moved to pods are not in the node's
        list. None: not ready."""
        self.is_relevant = False
        """Whether there are CDI devices that concern us, so that it matters which container has which."""
        self.asks_kubelet = False
        """Whether there are CDI devices that concern us, so that it matters which the kubelet allocated."""
        self.read_again()
        if is_ready:
            self.set_ready()

    def read_again(self) -> None:
        """Handle changed specs or a changed node. Not for a handler thread: it reads every spec."""
        with self._lock:
            self._build()

    def set_ready(self) -> None:
        """Mark the specs as read, and wake those who wait for them."""
        with self._lock:
            self._build()
            self.majors = self._majors
            self._ready.set()

    def _build(self) -> None:
        """Rebuild the index. The caller holds the lock."""
        node = self._node()
        self._index = Index(self._registry(), node, self._prefix)
        self.gpu_names = GpuNames.of(node.gpus)
        self._majors |= {
            char.major for device in node.devices for char in device.char_devices if char.kind is CharKind.UVERBS
        }
        self.is_relevant = self._index.is_relevant
        self.asks_kubelet = self.kubelet is not None and self.is_relevant
        if self._ready.is_set():
            self.majors = self._majors

    def await_ready(self, pod: Pod | None, deadline: float) -> None:
        """Wait until the specs are read, or until `deadline` (seconds of `time.monotonic`): then raise
        NotReadyError."""
        if self.majors is None and not self._ready.wait(max(0.0, deadline - time.monotonic())):
            raise _specs_not_read(pod)

    # -- what the kubelet tells --------------------------------------------------------------------------------------

    def ask(self, pod: Pod) -> KubeletWord:
        """Return what the kubelet allocated to the pod. Blocks for its budget at most."""
        if self.kubelet is None or not self.kubelet.is_there:
            return KubeletWord()
        try:
            allocation = self.kubelet.of_pod(pod.namespace, pod.name)
        except NriRdmaError as error:
            log.warning("the kubelet does not tell what it allocated", extra={"pod": str(pod), "error": str(error)})
            return KubeletWord(problem=f"{error.what} ({error.code})")
        if allocation is None:
            return KubeletWord(problem="the kubelet does not know this pod", is_unknown_pod=True)
        if allocation.named:
            self.sandboxes.take(pod.sandbox_id).allocation = allocation
        return KubeletWord(allocation=allocation)

    @property
    def asks_for_gpus(self) -> bool:
        """Return whether the node has GPUs, and a kubelet that may report whose they are."""
        return bool(self.gpu_names.gpus) and self.kubelet is not None and self.kubelet.is_there

    def gpus_told(self, word: KubeletWord) -> PodGpus | None:
        """Return what the kubelet's answer says of a pod's GPUs; None: there is no kubelet. Wait for a reading of the
        specs where the answer names CDI devices that no spec had: drivers write specs moments before."""
        if word.allocation is None:
            return PodGpus(unanswered=word.problem, is_unknown_pod=word.is_unknown_pod) if word.problem else None
        claimed = (name for container in word.allocation.containers for name in container.cdi_devices)
        unread = [name for name in claimed if not self._index.has_read(name)]
        if unread and self._reread is not None:
            settled(self._reading_for(unread), _WAIT_S)
        return self.gpus_of(word.allocation)

    def gpus_of(self, allocation: PodAllocation) -> PodGpus | None:
        """Return what an answer of the kubelet says of a pod's GPUs, from memory; None on a node without any."""
        return pod_gpus(allocation, self.gpu_names, self._registry().devices) if self.gpu_names.gpus else None

    def gpus_shown(self, shown: Shown) -> KnownGpus:
        """Return the GPUs of a new container, from memory."""
        return of_shown(shown, self.gpu_names, self._registry().devices)

    @property
    def kubelet_tells(self) -> bool:
        """Return whether a kubelet reports its allocations."""
        return self.kubelet is not None and self.kubelet.tells

    def was_told(self, sandbox_id: str) -> bool:
        """Return whether the kubelet has reported devices for containers of this sandbox."""
        return self._allocation_of(sandbox_id) is not None

    def told(self, allocation: PodAllocation | None) -> tuple[Grant, ...]:
        """Return the CDI devices in the kubelet's answer that concern us."""
        containers = allocation.containers if allocation is not None else ()
        return tuple(
            grant
            for container in containers
            for grant in self._grants(container.name, dict.fromkeys(container.cdi_devices, Source.KUBELET))
        )

    # -- what a container brings -------------------------------------------------------------------------------------

    def may_be_ours(self, devices: Mapping[str, DeviceNumbers]) -> bool:
        """Return whether any of these nodes has the major number of an RDMA device; True as long as that is not
        known."""
        majors = self.majors
        if majors is None:
            return bool(devices)
        for major, _ in devices.values():  # noqa: SIM110 - a loop is half the cost of any() with a generator
            if major in majors:
                return True
        return False

    def concerns(self, brought: Brought) -> bool:
        """Return whether a container has anything from others that could matter. Cheap, since it runs for every
        container of the node."""
        return self.may_be_ours(brought.devices) or any(map(self._index.knows, self._names_told(brought)))

    def await_known(self, brought: Brought, attached: Mapping[str, frozenset[DeviceId]], deadline: float) -> None:
        """Wait until the container's devices are explained, as far as they can be: drivers write specs moments before,
        and devices arrive with the pod's network. `attached` is as for `grants`.

        Raise NotReadyError at the deadline; raise CdiError where an unreadable spec may be about the container's RDMA
        nodes.
        """
        until = min(deadline, time.monotonic() + _WAIT_S)
        self._await_names(brought, until)
        nodes = self._unexplained(brought, attached)
        if nodes:
            self._rereading.await_read(brought.pod, brought.container, nodes, until)

    def _await_names(self, brought: Brought, until: float) -> None:
        """Wait until the specs of all CDI devices that the runtime or kubelet reports for the container are read."""
        if self._reread is None or not self.may_be_ours(brought.devices) or not self._unknown(brought):
            return
        try:
            self._reading_for(self._unknown(brought)).result(max(0.0, until - time.monotonic()))
        except FutureTimeoutError as error:
            raise _specs_not_read(brought.pod) from error
        unknown, problems = self._unknown(brought), self._registry().problems
        explained = {device.id for grant in self.grants(brought) for device in _devices(grant)}
        bare = [it for it in shown_devices(self._node(), brought.devices) if it.id not in explained]
        if unknown and problems and bare:
            raise CdiError(
                ErrorCode.CDI_FILE,
                f"no spec that can be read has the CDI device {unknown[0]} of container {brought.container}",
                file=problems[0].file,
                hint="see `nri-rdma cdi list`, and mend or remove what it names",
                path=problems[0].path,
            )

    def _unexplained(self, brought: Brought, attached: Mapping[str, frozenset[DeviceId]]) -> NodesAt:
        """Return a container's RDMA nodes that nothing known explains, and that something not yet read may explain."""
        if brought.is_privileged or brought.was_there or not self._rereading.is_possible:
            return frozenset()
        index, present = self._index, brought.devices
        names = {*self._names_of(brought, attached), *index.recognise(present)}
        nodes = {node for name in names for node in index.nodes(name).items()}
        devices = (
            device for grant in self._grants("", dict.fromkeys(names, Source.NODES)) for device in _devices(grant)
        )
        numbers = {(char.major, char.minor) for device in devices for char in device.char_devices}
        paths = {path for name in attached if index.has_paths(name, present) for path in index.paths(name)}
        return frozenset(
            (path, number)
            for path, number in present.items()
            if number[0] in self._majors and path not in paths and number not in numbers and (path, number) not in nodes
        )

    def grants(self, brought: Brought, attached: Mapping[str, frozenset[DeviceId]] | None = None) -> tuple[Grant, ...]:
        """Return the CDI devices of a container that concern us, each with its surest source.

        `attached` are the CDI devices that its sandbox has something attached for, with their RDMA devices. Reported
        CDI devices explain the container's nodes. Only other nodes are matched: first with what its sandbox has, then
        with other devices.
        """
        names = self._names_of(brought, attached or {})
        grants = self._grants(brought.container, names)
        found = {grant.name for grant in grants}
        grants += tuple(  # devices that moved to the pod are known only by being in its sandbox
            Grant(container=brought.container, name=name, source=source)
            for name, source in names.items()
            if name in (attached or {}) and name not in found
        )
        self._see(brought, grants)
        return grants

    def covered(self, brought: Brought, grants: Iterable[Grant]) -> frozenset[DeviceId]:
        """Return the ids of the devices that these grants allocate to the container. Nodes that look like those of a
        CDI device prove nothing where the kubelet was asked, which knows."""
        knows = self.was_told(brought.pod.sandbox_id) or bool(brought.cdi_devices)
        return frozenset(
            device.id for grant in grants if not (knows and grant.source is Source.NODES) for device in _devices(grant)
        )

    @property
    def node(self) -> Node:
        """Return the node's last scan."""
        return self._node()

    @property
    def vendors(self) -> Mapping[DeviceId, frozenset[str]]:
        """Return the vendors whose CDI devices have the nodes of each device."""
        return self._index.vendors_of

    # -- below -------------------------------------------------------------------------------------------------------

    def _allocation_of(self, sandbox_id: str) -> PodAllocation | None:
        sandbox = self.sandboxes.get(sandbox_id)
        return sandbox.allocation if sandbox is not None else None

    def _named(self, brought: Brought) -> Iterator[tuple[str, Source]]:
        """Yield the CDI devices that the kubelet and the runtime report for the container; of one name the surest
        source last."""
        for name in brought.cdi_devices:
            yield name, Source.RUNTIME
        told = self._allocation_of(brought.pod.sandbox_id)
        for container in told.containers if told is not None else ():
            if container.name == brought.container:
                for name in container.cdi_devices:
                    yield name, Source.KUBELET

    def _names_told(self, brought: Brought) -> Iterator[str]:
        return (name for name, _ in self._named(brought))

    def _unknown(self, brought: Brought) -> list[str]:
        return [name for name in self._names_told(brought) if not self._index.has_read(name)]

    def _reading_for(self, names: list[str]) -> Future[None]:
        """Return a reading that began after these names were requested, or at most a moment before."""
        assert self._reread is not None  # otherwise nobody calls this
        now = time.monotonic()
        known = [self._readings.get(name) for name in names]
        if any(it is None or (it[0].done() and now - it[1] > _FRESH_S) for it in known):
            reading = (self._reread(), now)
            for name in names:
                self._readings[name] = reading
            while len(self._readings) > _KEPT_NAMES:
                self._readings.popitem(last=False)
        return self._readings[names[-1]][0]

    def _names_of(self, brought: Brought, attached: Mapping[str, frozenset[DeviceId]]) -> dict[str, Source]:
        """Return the container's CDI devices as far as known, ours or not, reported or recognised by their nodes."""
        names = dict(self._named(brought))
        if not brought.is_privileged:
            explained = {device.id for grant in self._grants("", names) for device in _devices(grant)}
            explained |= {device for name in names for device in attached.get(name, ())}
            for name in self._recognised(brought.devices, attached, explained):
                names.setdefault(name, Source.NODES)
        return names

    def _recognised(
        self,
        devices: Mapping[str, DeviceNumbers],
        attached: Mapping[str, frozenset[DeviceId]],
        explained: Collection[DeviceId],
    ) -> Iterator[str]:
        for name in self._index.recognise(devices):
            own = frozenset(device.id for grant in self._grants("", {name: Source.NODES}) for device in _devices(grant))
            if own and own <= set(explained):
                continue
            yield next((other for other, ids in attached.items() if own and own <= ids), name)
        for name, ids in attached.items():  # devices that moved to the pod are known by their paths
            if not ids <= set(explained) and self._index.has_paths(name, devices):
                yield name

    def _grants(self, container: str, names: Mapping[str, Source]) -> tuple[Grant, ...]:
        found = []
        for name, source in names.items():
            try:
                meaning = self._index.meaning(name)
            except NriRdmaError as problem:
                found.append(Grant(container=container, name=name, source=source, problem=problem))
                continue
            if meaning is not None and meaning.devices:
                found.append(Grant(container=container, name=name, source=source, meaning=meaning))
        return tuple(found)

    def _see(self, brought: Brought, grants: tuple[Grant, ...]) -> None:
        seen = [self._sighting(brought, grant.name, _devices(grant), str(grant.source), grant) for grant in grants]
        explained = {device.id for grant in grants for device in _devices(grant)}
        rest = [it for it in shown_devices(self._node(), brought.devices) if it.id not in explained]
        if rest:
            seen.append(self._sighting(brought, "", tuple(rest), str(Source.NODES), None))
        if seen:
            self.sandboxes.take(brought.pod.sandbox_id).sightings[brought.container] = tuple(seen)

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
            adopt="its own keys" if asks else str(self.adoption.of(vendor).adopt),
            is_privileged=brought.is_privileged,
        )


def _devices(grant: Grant) -> tuple[RdmaDevice, ...]:
    return grant.meaning.devices if grant.meaning is not None else ()


def _specs_not_read(pod: Pod | None) -> NotReadyError:
    return NotReadyError(
        ErrorCode.NOT_READY,
        "network is not ready: the CDI specs of the node are still being read",
        where=str(pod or ""),
        hint="nothing to do: the kubelet asks again",
    )

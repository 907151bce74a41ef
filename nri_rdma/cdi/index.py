"""The CDI devices of a node that concern nri-rdma, made once for each reading of specs and hardware.

CreateContainer uses it: every question is a look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nri_rdma.cdi.meaning import CdiMeaning, Hardware, is_uverbs, meaning
from nri_rdma.cdi.registry import Registry, ResolvedDevice
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import DeviceId, DeviceNumbers, Node

CLAIM_KEY = "claims.noderesource.dev/name"
"""Annotation of the spec of one of our claims: its namespace and name, for a daemon that starts when the claim is
prepared. Which pods have the claim says the kubelet's checkpoint. It is no key of our prefix, which are requests."""
TRACE_KEY = "claims.noderesource.dev/trace"
"""Annotation of a spec: the `traceparent` of the call that wrote it."""
_Nodes = frozenset[tuple[str, DeviceNumbers]]
"""The RDMA nodes of a container: paths, with the numbers there."""


class Index:
    """Frozen; safe for use by several threads."""

    def __init__(self, registry: Registry, node: Node, prefix: str, before: Index | None = None) -> None:
        """`before` is the index of an earlier reading: what has not changed since has the same meaning. A node has a
        spec for each claim, and each new one is a reading."""
        hardware = Hardware.of(node)
        self._made_for = (node, prefix)
        if before is not None and (before._made_for[0] is not node or before._made_for[1] != prefix):
            before = None
        self._meanings: dict[str, CdiMeaning | NriRdmaError] = {}
        self._nodes: dict[str, _Nodes] = {}
        names: dict[_Nodes, str] = {}
        self._read = registry.devices
        vendors: dict[DeviceId, set[str]] = {}
        self.is_for_any = False
        """Whether there is a CDI device that concerns us and any pod may have: one that is not of a claim of ours."""
        for name, device in registry.devices.items():  # in the order of names
            if before is not None and _is_same(device, before._read.get(name)):
                if name not in before._meanings:
                    continue
                found, nodes = before._meanings[name], before._nodes[name]
            else:
                found, nodes = _meaning(device, hardware, prefix), _nodes(device, hardware)
                if isinstance(found, CdiMeaning) and not found.devices:
                    continue
            self._meanings[name], self._nodes[name] = found, nodes
            self.is_for_any |= device.annotation(CLAIM_KEY) is None
            names.setdefault(nodes, name)
            for item in found.devices if isinstance(found, CdiMeaning) else ():
                vendors.setdefault(item.id, set()).add(name.partition("/")[0])
        self._names: Mapping[_Nodes, str] = names
        """The first name of CDI devices with the same nodes: a driver that writes a spec per claim has many."""
        self._by_number: dict[DeviceNumbers, list[_Nodes]] = {}
        for nodes in names:
            for number in {number for _, number in nodes}:
                self._by_number.setdefault(number, []).append(nodes)
        self.vendors_of: Mapping[DeviceId, frozenset[str]] = {key: frozenset(own) for key, own in vendors.items()}
        """The vendors whose CDI devices have the nodes of each RDMA device."""

    @property
    def is_empty(self) -> bool:
        """Return whether no CDI device concerns us."""
        return not self._meanings

    def knows(self, name: str) -> bool:
        """Return whether that CDI device concerns us."""
        return name in self._meanings

    def trace_of(self, name: str) -> str:
        """Return the `traceparent` of the call that wrote the spec of that CDI device, "" where it does not say."""
        device = self._read.get(name)
        return (device.annotation(TRACE_KEY) or "") if device is not None else ""

    def has_read(self, name: str) -> bool:
        """Return whether there is a spec of that CDI device, ours or not."""
        return name in self._read

    def has_paths(self, name: str, present: Mapping[str, DeviceNumbers]) -> bool:
        """Return whether a container has nodes at all paths where that CDI device puts uverbs nodes, whatever their
        numbers: a device that moved has other numbers, and the host may not see it."""
        device = self._read.get(name)
        paths = [node.path for node in device.rdma_nodes if is_uverbs(node)] if device is not None else []
        return bool(paths) and all(path in present for path in paths)

    def paths(self, name: str) -> frozenset[str]:
        """Return the paths where that CDI device puts RDMA nodes, whatever their numbers."""
        device = self._read.get(name)
        return frozenset(node.path for node in device.rdma_nodes) if device is not None else frozenset()

    def meaning(self, name: str) -> CdiMeaning | None:
        """Return the meaning of a CDI device, None when it does not concern us. Raises the error of a spec that asks
        us."""
        found = self._meanings.get(name)
        if isinstance(found, NriRdmaError):
            raise found.with_traceback(None)  # else it would grow with every raise
        return found

    def meanings(self, names: Iterable[str]) -> tuple[tuple[str, CdiMeaning | NriRdmaError], ...]:
        """Return those of these CDI devices that concern us, with what each means, or with what its spec does wrong."""
        found = ((name, self._meanings.get(name)) for name in names)
        return tuple(
            (name, it.with_traceback(None) if isinstance(it, NriRdmaError) else it)
            for name, it in found
            if it is not None
        )

    def nodes(self, name: str) -> Mapping[str, DeviceNumbers]:
        """Return the RDMA nodes of a container with this CDI device, by path, with the host's numbers; empty when the
        device does not concern us."""
        return dict(self._nodes.get(name, ()))

    def recognise(self, present: Mapping[str, DeviceNumbers]) -> tuple[str, ...]:
        """Return the CDI devices that a container seems to have, by its device nodes: all RDMA nodes of each are there,
        at their paths and with the numbers that the node has now. When one of two devices has all nodes of the other,
        the bigger one is returned; of two with the same nodes the first by name."""
        have = frozenset(present.items())
        found = {nodes for number in {*present.values()} for nodes in self._by_number.get(number, ()) if nodes <= have}
        return tuple(sorted(self._names[nodes] for nodes in found if not any(nodes < other for other in found)))


def _is_same(device: ResolvedDevice, old: ResolvedDevice | None) -> bool:
    """Return whether the device is of a file that was not parsed again."""
    if old is None or old.file != device.file:
        return False
    return (
        old.device is device.device
        and old.spec_edits is device.spec_edits
        and old.spec_annotations is device.spec_annotations
    )


def _meaning(device: ResolvedDevice, hardware: Hardware, prefix: str) -> CdiMeaning | NriRdmaError:
    try:
        return meaning(device, hardware, prefix)
    except NriRdmaError as problem:
        return problem


def _nodes(device: ResolvedDevice, hardware: Hardware) -> _Nodes:
    """Return the RDMA nodes of a container with this device. Empty when the nodes do not identify it: without a uverbs
    node, since other nodes are of no particular device, and with a node that neither host nor spec has a number for."""
    nodes = [(node.path, hardware.numbers_at(node)) for node in device.rdma_nodes]
    known = frozenset((path, numbers) for path, numbers in nodes if numbers is not None)
    return known if len(known) == len({*nodes}) and any(map(is_uverbs, device.rdma_nodes)) else frozenset()

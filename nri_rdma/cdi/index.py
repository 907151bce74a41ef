"""The CDI devices of a node that concern nri-rdma, computed once for each reading of specs and hardware.

CreateContainer waits for the answers, so each answer is only a look-up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from nri_rdma.cdi.meaning import CdiMeaning, Hardware, is_uverbs, meaning
from nri_rdma.cdi.registry import Registry, ResolvedDevice
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import DeviceId, DeviceNumbers, Node

CLAIM_KEY = "claims.noderesource.dev/name"
"""The annotation with a claim's namespace and name, in a spec that nri-rdma wrote for the claim. A daemon that starts
later reads it; which pods have the claim is in the kubelet's checkpoint. The key differs from nri-rdma's key for
requests, so that it is not read as a request."""
TRACE_KEY = "claims.noderesource.dev/trace"
"""The annotation with the `traceparent` of the call that wrote the spec."""
ALLOCATION_KEY = "claims.noderesource.dev/allocation"
"""The annotation with a digest of the allocation for which the spec was written.

A claim outlives its pods; its next allocation may have other devices or parameters.
"""
NodesAt: TypeAlias = frozenset[tuple[str, DeviceNumbers]]
"""Device nodes of a container: each with its path and its major and minor number."""
NO_NODES: NodesAt = frozenset()
Attached: TypeAlias = Mapping[str, frozenset[DeviceId]]
"""The CDI devices for which RDMA devices are attached to a sandbox, each with the ids of the RDMA devices."""


class Index:
    """The CDI devices that concern nri-rdma, from one reading of the specs. Immutable, so that several threads may use
    it."""

    def __init__(self, registry: Registry, node: Node, prefix: str, before: Index | None = None) -> None:
        """Find the RDMA devices and requests of each CDI device. `prefix` is the key of nri-rdma's annotations in
        specs. `before` is the index of an earlier reading: what it knows about an unchanged CDI device is copied. This
        saves time, because each claim has a spec, and each new spec causes a reading of all."""
        hardware = Hardware.of(node)
        self._made_for = (node, prefix)
        if before is not None and (before._made_for[0] is not node or before._made_for[1] != prefix):
            before = None
        self._meanings: dict[str, CdiMeaning | NriRdmaError] = {}
        self._nodes: dict[str, NodesAt] = {}
        names: dict[NodesAt, str] = {}
        self._read = registry.devices
        vendors: dict[DeviceId, set[str]] = {}
        self.is_for_any = False
        """Whether any pod may have one of the CDI devices; false if each of them belongs to a claim that nri-rdma
        prepared."""
        for name, device in registry.devices.items():  # in the order of names
            if before is not None and _is_same(device, before._read.get(name)):
                if name not in before._meanings:
                    continue
                found, nodes = before._meanings[name], before._nodes[name]
            else:
                found, nodes = _meaning(device, hardware, prefix), _nodes(device, hardware)
                if isinstance(found, CdiMeaning) and not (found.devices or found.away):
                    continue
            self._meanings[name], self._nodes[name] = found, nodes
            self.is_for_any |= device.annotation(CLAIM_KEY) is None
            names.setdefault(nodes, name)
            for item in found.devices if isinstance(found, CdiMeaning) else ():
                vendors.setdefault(item.id, set()).add(name.partition("/")[0])
        self._names: Mapping[NodesAt, str] = names
        """By the device nodes of a CDI device: its name. If several CDI devices have equal nodes, it is the first of
        their names; a driver that writes a spec for each claim has many such devices."""
        self._by_number: dict[DeviceNumbers, list[NodesAt]] = {}
        for nodes in names:
            for number in {number for _, number in nodes}:
                self._by_number.setdefault(number, []).append(nodes)
        self.vendors_of: Mapping[DeviceId, frozenset[str]] = {key: frozenset(own) for key, own in vendors.items()}
        """By RDMA device, the vendors whose CDI devices have its nodes."""

    @property
    def is_empty(self) -> bool:
        """Whether no CDI device concerns nri-rdma."""
        return not self._meanings

    def knows(self, name: str) -> bool:
        """Return whether the CDI device concerns nri-rdma."""
        return name in self._meanings

    def trace_of(self, name: str) -> str:
        """Return the `traceparent` of the call that wrote the CDI device's spec; "" if the spec has none."""
        return self._told(name, TRACE_KEY)

    def allocation_of(self, name: str) -> str:
        """Return the digest of the allocation for which the CDI device's spec was written; "" if the spec has none."""
        return self._told(name, ALLOCATION_KEY)

    def _told(self, name: str, key: str) -> str:
        device = self._read.get(name)
        return (device.annotation(key) or "") if device is not None else ""

    def has_read(self, name: str) -> bool:
        """Return whether any spec has this CDI device, even if it does not concern nri-rdma."""
        return name in self._read

    def has_paths(self, name: str, present: Mapping[str, DeviceNumbers]) -> bool:
        """Return whether a container has a device node at the path of each uverbs node of the CDI device. The numbers
        of the nodes are not compared: an RDMA device that moved to a pod has new numbers, and the host may not see
        it."""
        device = self._read.get(name)
        paths = [node.path for node in device.rdma_nodes if is_uverbs(node)] if device is not None else []
        return bool(paths) and all(path in present for path in paths)

    def paths(self, name: str) -> frozenset[str]:
        """Return the paths of the CDI device's RDMA nodes."""
        device = self._read.get(name)
        return frozenset(node.path for node in device.rdma_nodes) if device is not None else frozenset()

    def meaning(self, name: str) -> CdiMeaning | None:
        """Return the RDMA devices of a CDI device and the requests to nri-rdma in its spec; None if it does not concern
        nri-rdma. Raise the error of the spec if such a request cannot be read or fulfilled."""
        found = self._meanings.get(name)
        if isinstance(found, NriRdmaError):
            raise found.with_traceback(None)  # otherwise its traceback would grow with every raise
        return found

    def meanings(self, names: Iterable[str]) -> tuple[tuple[str, CdiMeaning | NriRdmaError], ...]:
        """Return each CDI device in `names` that concerns nri-rdma, with its RDMA devices and requests (CdiMeaning), or
        with the error of its spec."""
        found = ((name, self._meanings.get(name)) for name in names)
        return tuple(
            (name, it.with_traceback(None) if isinstance(it, NriRdmaError) else it)
            for name, it in found
            if it is not None
        )

    def nodes(self, name: str) -> Mapping[str, DeviceNumbers]:
        """Return the RDMA nodes that a container with this CDI device has, by path, each with its numbers on the host.
        Empty if the CDI device does not concern nri-rdma."""
        return dict(self._nodes.get(name, ()))

    def shown(self, named: Iterable[str], nodes: Mapping[str, DeviceNumbers], attached: Attached) -> tuple[str, ...]:
        """Return the names of CDI devices that only the container's device nodes (`nodes`) reveal. `named` has the CDI
        devices that the kubelet and the runtime report; their RDMA devices are not searched for again.

        If an RDMA device can belong to several CDI devices, one in `attached` wins: the container's sandbox has RDMA
        devices for it.
        """
        explained = set(self._devices(named)).union(*[attached.get(name, ()) for name in named])
        found = []
        for name in self.recognise(nodes):
            own = self._devices((name,))
            if not own or not own <= explained:
                found.append(next((other for other, ids in attached.items() if own and own <= ids), name))
        # Devices that moved to the pod have new numbers, but the same paths.
        found += [name for name, ids in attached.items() if not ids <= explained and self.has_paths(name, nodes)]
        return tuple(dict.fromkeys(name for name in found if name not in named))

    def unexplained(
        self, names: Iterable[str], nodes: Mapping[str, DeviceNumbers], attached: Attached, majors: Collection[int]
    ) -> NodesAt:
        """Return the RDMA device nodes of a container (`nodes`) that belong to no known CDI device. Known are the CDI
        devices in `names`, those that `recognise` finds, and those in `attached`, for which the sandbox has RDMA
        devices. `majors` are the major numbers of RDMA device nodes."""
        known = {*names, *self.recognise(nodes)}
        explained = {node for name in known for node in self._nodes.get(name, ())}
        devices = [item for _, it in self.meanings(known) if isinstance(it, CdiMeaning) for item in it.devices]
        numbers = {(char.major, char.minor) for device in devices for char in device.char_devices}
        paths = {path for name in attached if self.has_paths(name, nodes) for path in self.paths(name)}
        return frozenset(
            (path, number)
            for path, number in nodes.items()
            if number[0] in majors and path not in paths and number not in numbers and (path, number) not in explained
        )

    def _devices(self, names: Iterable[str]) -> frozenset[DeviceId]:
        """Return the ids of the RDMA devices on this node that the CDI devices in `names` name."""
        found = [it.devices for _, it in self.meanings(names) if isinstance(it, CdiMeaning)]
        return frozenset([device.id for devices in found for device in devices])

    def recognise(self, present: Mapping[str, DeviceNumbers]) -> tuple[str, ...]:
        """Return the CDI devices that a container seems to have, because it has all RDMA nodes of each, with equal
        paths and numbers. If one CDI device has all nodes of another and more, only the larger one is returned. If
        several have equal nodes, only the first by name is returned."""
        have = frozenset(present.items())
        found = {nodes for number in {*present.values()} for nodes in self._by_number.get(number, ()) if nodes <= have}
        return tuple(sorted(self._names[nodes] for nodes in found if not any(nodes < other for other in found)))


def _is_same(device: ResolvedDevice, old: ResolvedDevice | None) -> bool:
    """Return whether `device` and `old`, of an earlier reading, come from one parsing of one file."""
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


def _nodes(device: ResolvedDevice, hardware: Hardware) -> NodesAt:
    """Return the RDMA nodes that a container with this CDI device has. Empty if they do not identify the CDI device: it
    has no uverbs node (other nodes belong to no particular RDMA device), or a node's numbers are neither on the host
    nor in the spec."""
    nodes = [(node.path, hardware.numbers_at(node)) for node in device.rdma_nodes]
    known = frozenset((path, numbers) for path, numbers in nodes if numbers is not None)
    return known if len(known) == len({*nodes}) and any(map(is_uverbs, device.rdma_nodes)) else frozenset()

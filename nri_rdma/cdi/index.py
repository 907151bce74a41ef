"""The CDI devices of a node that concern nri-rdma, computed once for each reading of specs and hardware.

CreateContainer uses it, so that each question is a look-up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from nri_rdma.cdi.meaning import CdiMeaning, Hardware, is_uverbs, meaning
from nri_rdma.cdi.registry import Registry, ResolvedDevice
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import DeviceId, DeviceNumbers, Node

CLAIM_KEY = "claims.noderesource.dev/name"
"""The annotation with the claim's namespace and name, in the spec of a claim that nri-rdma prepared. A daemon that
starts later reads it; which pods have the claim is in the kubelet's checkpoint. The key does not have the prefix of
annotations with requests."""
TRACE_KEY = "claims.noderesource.dev/trace"
"""The annotation with the `traceparent` of the call that wrote the spec."""
NodesAt: TypeAlias = frozenset[tuple[str, DeviceNumbers]]
"""Device nodes of a container: each with its path and its major and minor number."""
NO_NODES: NodesAt = frozenset()
Attached: TypeAlias = Mapping[str, frozenset[DeviceId]]
"""The CDI devices for which a sandbox has attachments, each with the attached RDMA devices."""


class Index:
    """The CDI devices of one reading. Immutable, so that several threads may use it."""

    def __init__(self, registry: Registry, node: Node, prefix: str, before: Index | None = None) -> None:
        """Build the index. `before` is the index of an earlier reading: unchanged devices keep their meaning from
        there, because a node has a spec for each claim and each new spec causes a reading."""
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
        """Whether any pod may have one of these CDI devices; false if all of them are of claims that nri-rdma
        prepared."""
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
        self._names: Mapping[NodesAt, str] = names
        """The first name of the CDI devices that have the same nodes, by these nodes. A driver that writes a spec for
        each claim has many such devices."""
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
        device = self._read.get(name)
        return (device.annotation(TRACE_KEY) or "") if device is not None else ""

    def has_read(self, name: str) -> bool:
        """Return whether any spec has this CDI device, even if it does not concern nri-rdma."""
        return name in self._read

    def has_paths(self, name: str, present: Mapping[str, DeviceNumbers]) -> bool:
        """Return whether a container has nodes at all paths of the CDI device's uverbs nodes. Their numbers are not
        compared: a device that moved to a pod has new numbers, and the host may not see it."""
        device = self._read.get(name)
        paths = [node.path for node in device.rdma_nodes if is_uverbs(node)] if device is not None else []
        return bool(paths) and all(path in present for path in paths)

    def paths(self, name: str) -> frozenset[str]:
        """Return the paths of the CDI device's RDMA nodes."""
        device = self._read.get(name)
        return frozenset(node.path for node in device.rdma_nodes) if device is not None else frozenset()

    def meaning(self, name: str) -> CdiMeaning | None:
        """Return the meaning of a CDI device; None if it does not concern nri-rdma. Raise the error of its spec if the
        spec's request to nri-rdma is wrong."""
        found = self._meanings.get(name)
        if isinstance(found, NriRdmaError):
            raise found.with_traceback(None)  # otherwise its traceback would grow with every raise
        return found

    def meanings(self, names: Iterable[str]) -> tuple[tuple[str, CdiMeaning | NriRdmaError], ...]:
        """Return those of these CDI devices that concern nri-rdma, each with its meaning or with the error of its
        spec."""
        found = ((name, self._meanings.get(name)) for name in names)
        return tuple(
            (name, it.with_traceback(None) if isinstance(it, NriRdmaError) else it)
            for name, it in found
            if it is not None
        )

    def nodes(self, name: str) -> Mapping[str, DeviceNumbers]:
        """Return the RDMA nodes that a container with this CDI device has: by path, with the host's numbers. Empty if
        the device does not concern nri-rdma."""
        return dict(self._nodes.get(name, ()))

    def shown(self, named: Iterable[str], nodes: Mapping[str, DeviceNumbers], attached: Attached) -> tuple[str, ...]:
        """Return the CDI devices that a container's nodes show beside those in `named`, which the kubelet and the
        runtime report: only nodes that these do not explain are compared, first with the CDI devices of the sandbox's
        attachments, then with all others."""
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
        """Return the nodes of a container that belong to none of its known CDI devices, which are in `names`."""
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
        """Return the RDMA devices of the node that these CDI devices name."""
        found = [it.devices for _, it in self.meanings(names) if isinstance(it, CdiMeaning)]
        return frozenset([device.id for devices in found for device in devices])

    def recognise(self, present: Mapping[str, DeviceNumbers]) -> tuple[str, ...]:
        """Return the CDI devices that a container seems to have: all RDMA nodes of each are in the container, at their
        paths and with their present numbers. If one device has all nodes of another and more, only the larger one is
        returned; of devices with the same nodes, the first by name."""
        have = frozenset(present.items())
        found = {nodes for number in {*present.values()} for nodes in self._by_number.get(number, ()) if nodes <= have}
        return tuple(sorted(self._names[nodes] for nodes in found if not any(nodes < other for other in found)))


def _is_same(device: ResolvedDevice, old: ResolvedDevice | None) -> bool:
    """Return whether the device is from the same parsing of the same file as before."""
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
    """Return the RDMA nodes that a container with this device has. Empty if they do not identify it: there is no uverbs
    node (other nodes belong to no particular device), or neither host nor spec has the number of a node."""
    nodes = [(node.path, hardware.numbers_at(node)) for node in device.rdma_nodes]
    known = frozenset((path, numbers) for path, numbers in nodes if numbers is not None)
    return known if len(known) == len({*nodes}) and any(map(is_uverbs, device.rdma_nodes)) else frozenset()

"""The CDI devices of a node that concern nri-rdma, made once for each reading of specs and hardware.

CreateContainer looks into it: every question is a look-up.
"""

from __future__ import annotations

from collections.abc import Mapping

from nri_rdma.cdi.meaning import CdiMeaning, Hardware, meaning
from nri_rdma.cdi.registry import Registry, ResolvedDevice
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import CharKind, DeviceId, Node

Numbers = tuple[int, int]


class Index:
    """Frozen; safe for use by several threads."""

    def __init__(self, registry: Registry, node: Node, prefix: str) -> None:
        hardware = Hardware.of(node.devices)
        self._meanings: dict[str, CdiMeaning | NriRdmaError] = {}
        self._by_number: dict[Numbers, list[tuple[str, frozenset[tuple[str, Numbers]]]]] = {}
        vendors: dict[DeviceId, str] = {}
        for name, device in registry.devices.items():
            found = _meaning(device, hardware, prefix)
            if isinstance(found, CdiMeaning) and not found.devices:
                continue
            self._meanings[name] = found
            for item in found.devices if isinstance(found, CdiMeaning) else ():
                vendors.setdefault(item.id, name.partition("/")[0])
            nodes = _nodes(device, hardware)
            for _, number in nodes:
                self._by_number.setdefault(number, []).append((name, nodes))
        self.vendor_of: Mapping[DeviceId, str] = vendors
        """Whose CDI devices have the nodes of each RDMA device."""

    @property
    def is_relevant(self) -> bool:
        """Whether any CDI device concerns us."""
        return bool(self._meanings)

    def meaning(self, name: str) -> CdiMeaning | None:
        """What a CDI device means, None when it is none of ours. Raises what its spec does wrong that asks us."""
        found = self._meanings.get(name)
        if isinstance(found, NriRdmaError):
            raise found
        return found

    def recognise(self, present: Mapping[str, Numbers]) -> tuple[str, ...]:
        """The CDI devices that a container seems to have, by its device nodes: all RDMA nodes of each are there, at
        their paths and with the numbers that the node has now. Of two, one of which has all nodes of the other, it is
        the bigger one; of two with the same nodes the first by name."""
        have = frozenset(present.items())
        candidates = {
            name: nodes
            for number in {*present.values()}
            for name, nodes in self._by_number.get(number, ())
            if nodes <= have
        }
        return tuple(
            name
            for name, nodes in sorted(candidates.items())
            if not any(nodes < other or (nodes == other and rival < name) for rival, other in candidates.items())
        )


def _meaning(device: ResolvedDevice, hardware: Hardware, prefix: str) -> CdiMeaning | NriRdmaError:
    try:
        return meaning(device, hardware, prefix)
    except NriRdmaError as problem:
        return problem


def _nodes(device: ResolvedDevice, hardware: Hardware) -> frozenset[tuple[str, Numbers]]:
    """The RDMA nodes of a container with this device: path and number. Empty without a uverbs node, as that says
    nothing of any device."""
    nodes = [
        (node.path, char)
        for node in device.rdma_nodes
        if (known := hardware.by_path.get(node.host_path or node.path)) is not None
        for char in (known[1],)
    ]
    if not any(char.kind is CharKind.UVERBS for _, char in nodes):
        return frozenset()
    return frozenset((path, (char.major, char.minor)) for path, char in nodes)

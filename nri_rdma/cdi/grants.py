"""Finds the CDI devices of a container by their names and by the container's device nodes. Pure.

A CdiGrant is one CDI device in one container, with the source of this knowledge. What the device means for nri-rdma is
in its spec (nri_rdma.cdi.meaning).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nri_rdma.cdi.index import Index
from nri_rdma.cdi.meaning import CdiMeaning
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import DeviceId, DeviceNumbers, RdmaDevice

NodesAt = frozenset[tuple[str, DeviceNumbers]]
"""Device nodes of a container: each with its path and its major and minor number."""
Attached = Mapping[str, frozenset[DeviceId]]
"""The CDI devices for which a sandbox has attachments, each with the attached RDMA devices."""


class Origin(StrEnum):
    """The source from which a container's CDI device is known, the most reliable first."""

    KUBELET = "kubelet"
    RUNTIME = "runtime"
    NODES = "device nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiGrant:
    """A CDI device of a container, or of all containers of the pod (`for_all`). `problem` is the error of its spec if
    the spec's request to nri-rdma cannot be read."""

    container: str
    name: str
    origin: Origin
    meaning: CdiMeaning | None = None
    problem: NriRdmaError | None = None
    for_all: bool = False

    @property
    def vendor(self) -> str:
        """The vendor of the device: the part of its name before the slash."""
        return self.name.partition("/")[0]

    @property
    def devices(self) -> tuple[RdmaDevice, ...]:
        """The RDMA devices that the CDI device names, as far as the node has them now."""
        return self.meaning.devices if self.meaning is not None else ()


def grants_of(index: Index, container: str, names: Mapping[str, Origin]) -> tuple[CdiGrant, ...]:
    """Return those of these CDI devices that concern nri-rdma, as grants of the container."""
    return tuple(
        CdiGrant(
            container=container,
            name=name,
            origin=names[name],
            meaning=found if isinstance(found, CdiMeaning) else None,
            problem=found if isinstance(found, NriRdmaError) else None,
        )
        for name, found in index.meanings(names)
    )


def grants_in(
    index: Index,
    container: str,
    named: Mapping[str, Origin],
    nodes: Mapping[str, DeviceNumbers],
    attached: Attached,
) -> tuple[CdiGrant, ...]:
    """Return the CDI devices of a container that concern nri-rdma, each with its most reliable origin.

    `named` are the devices that the kubelet and the runtime report; they explain some of the container's `nodes`. The
    other nodes are compared first with the CDI devices of the sandbox's attachments, then with all others. Without
    `nodes` nothing is compared.
    """
    names = names_in(index, named, nodes, attached)
    grants = grants_of(index, container, names)
    found = {grant.name for grant in grants}
    moved = (name for name in names if name in attached and name not in found)
    # The host no longer sees devices that moved to the pod: only the sandbox's attachments show them.
    return (*grants, *(CdiGrant(container=container, name=name, origin=names[name]) for name in moved))


def names_in(
    index: Index, named: Mapping[str, Origin], nodes: Mapping[str, DeviceNumbers], attached: Attached
) -> Mapping[str, Origin]:
    """Return all known CDI devices of the container, even those that do not concern nri-rdma: the devices in `named`,
    and those recognised by their nodes."""
    if not nodes:
        return named
    explained = {device.id for grant in grants_of(index, "", named) for device in grant.devices}
    explained.update(device for name in named for device in attached.get(name, ()))
    recognised = dict.fromkeys(_recognised(index, nodes, attached, explained), Origin.NODES)
    return {**named, **{name: origin for name, origin in recognised.items() if name not in named}}


def unexplained(
    index: Index, named: Mapping[str, Origin], nodes: Mapping[str, DeviceNumbers], attached: Attached
) -> NodesAt:
    """Return the nodes of a container that belong to none of its known CDI devices."""
    names = {*names_in(index, named, nodes, attached), *index.recognise(nodes)}
    explained = {node for name in names for node in index.nodes(name).items()}
    devices = (device for grant in grants_of(index, "", dict.fromkeys(names, Origin.NODES)) for device in grant.devices)
    numbers = {(char.major, char.minor) for device in devices for char in device.char_devices}
    paths = {path for name in attached if index.has_paths(name, nodes) for path in index.paths(name)}
    return frozenset(
        (path, number)
        for path, number in nodes.items()
        if path not in paths and number not in numbers and (path, number) not in explained
    )


def devices_of(grants: Iterable[CdiGrant]) -> frozenset[DeviceId]:
    """Return the ids of the RDMA devices that these grants name."""
    return frozenset(device.id for grant in grants for device in grant.devices)


def _recognised(
    index: Index, nodes: Mapping[str, DeviceNumbers], attached: Attached, explained: Collection[DeviceId]
) -> Iterator[str]:
    for name in index.recognise(nodes):
        own = devices_of(grants_of(index, "", {name: Origin.NODES}))
        if own and own <= set(explained):
            continue
        yield next((other for other, ids in attached.items() if own and own <= ids), name)
    for name, ids in attached.items():  # devices that moved to the pod have new numbers, but the same paths
        if not ids <= set(explained) and index.has_paths(name, nodes):
            yield name

"""Finds the CDI devices of a container by their names and by the container's device nodes. Pure.

A CdiGrant says that a container has a CDI device, and from which source this is known. The RDMA devices and requests of
the CDI device are in its spec (nri_rdma.cdi.meaning).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nri_rdma.cdi.index import Index
from nri_rdma.cdi.meaning import CdiMeaning
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import DeviceId, RdmaDevice


class Origin(StrEnum):
    """The source from which a container's CDI device is known, the most reliable first."""

    KUBELET = "kubelet"
    RUNTIME = "runtime"
    NODES = "device nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiGrant:
    """The fact that a container has a CDI device. `for_all`: all containers of the pod have it. `meaning` has its RDMA
    devices and its requests to nri-rdma. `problem` is the error of its spec if such a request cannot be read."""

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
        """The RDMA devices that the CDI device names and that the node has now."""
        return self.meaning.devices if self.meaning is not None else ()


def grants_of(index: Index, container: str, names: Mapping[str, Origin]) -> tuple[CdiGrant, ...]:
    """Return a CdiGrant for each CDI device in `names` that concerns nri-rdma: the fact that the container has it.
    `names` has for each CDI device the source from which this is known."""
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
    index: Index, container: str, names: Mapping[str, Origin], attached: Collection[str]
) -> tuple[CdiGrant, ...]:
    """Return a CdiGrant for each CDI device in `names` that concerns nri-rdma: the fact that the container has it.

    A CDI device concerns nri-rdma if its spec says so, or if it is in `attached`: its RDMA devices are then attached to
    the container's sandbox. RDMA devices that moved into the pod are invisible on the host, so that the spec alone does
    not show them.
    """
    grants = grants_of(index, container, names)
    found = {grant.name for grant in grants}
    moved = [name for name in names if name in attached and name not in found]
    return (*grants, *[CdiGrant(container=container, name=name, origin=names[name]) for name in moved])


def devices_of(grants: Iterable[CdiGrant]) -> frozenset[DeviceId]:
    """Return the ids of the RDMA devices that the CDI devices in `grants` name."""
    return frozenset(device.id for grant in grants for device in grant.devices)

"""Finds the CDI devices of a container by their names and by the container's device nodes. Pure.

A CdiGrant is one CDI device in one container, with the source of this knowledge. What the device means for nri-rdma is
in its spec (nri_rdma.cdi.meaning).
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
    index: Index, container: str, names: Mapping[str, Origin], attached: Collection[str]
) -> tuple[CdiGrant, ...]:
    """Return the CDI devices of a container that concern nri-rdma: those of `names` whose spec says so, and those that
    its sandbox has something `attached` for. The host no longer sees devices that moved to the pod: only the sandbox's
    attachments show them."""
    grants = grants_of(index, container, names)
    found = {grant.name for grant in grants}
    moved = [name for name in names if name in attached and name not in found]
    return (*grants, *[CdiGrant(container=container, name=name, origin=names[name]) for name in moved])


def devices_of(grants: Iterable[CdiGrant]) -> frozenset[DeviceId]:
    """Return the ids of the RDMA devices that these grants name."""
    return frozenset(device.id for grant in grants for device in grant.devices)

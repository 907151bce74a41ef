"""Compares the devices that other programs gave to a container with those that its sandbox has, and says what is
lacking. Pure.

A CDI device or a share makes a request. The sandbox may have the requested devices already, for this container or only
for another one, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from nri_rdma.cdi.grants import CdiGrant
from nri_rdma.cdi.index import NodesAt
from nri_rdma.model.request import DeviceRequest

Share: TypeAlias = tuple[str, str]
"""A share of a pool: the pool's resource and the share's id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The devices that other programs gave to a container, according to one reading of CDI specs, kubelet and
    runtime."""

    container: str
    is_concerned: bool = True
    """Whether the container has anything from other programs that may matter to nri-rdma."""
    grants: tuple[CdiGrant, ...] = ()
    """Its CDI devices that concern nri-rdma."""
    withheld: tuple[str, ...] = ()
    """CDI devices that the kubelet lists for the container, but that the container was not given."""
    unread: tuple[str, ...] = ()
    """CDI devices that the runtime or the kubelet names, but that no CDI spec has yet: another reading may find
    them."""
    unexplained: NodesAt = frozenset()
    """Its RDMA device nodes of unknown origin, as long as another reading may explain them."""
    shares: frozenset[Share] = frozenset()
    """The shares of nri-rdma's pools that the kubelet allocated to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The devices that one attachment of a sandbox has for containers. `part` is the attachment's name in the
    sandbox."""

    part: str
    cdi_devices: frozenset[str]
    """The CDI devices for which it attaches, or has attached, RDMA devices."""
    requests: tuple[DeviceRequest, ...] | None
    """The requests that it has attached; None while the attach runs."""

    def gives(self, name: str, container: str) -> bool:
        """Return whether the container gets the devices that were attached for this CDI device or share."""
        return self.requests is not None and all(it.scope.covers(container) for it in self.requests if it.is_for(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The need to add the container to those that get an attachment's devices, because it has the CDI device or share
    `name`. `is_given` false: the need to remove the container from them."""

    part: str
    name: str
    is_given: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """The need to attach the devices that these CDI devices or these shares request."""

    grants: tuple[CdiGrant, ...] = ()
    shares: tuple[Share, ...] = ()


Need: TypeAlias = Cover | Attach


def lacking(evidence: Evidence, held: tuple[Held, ...], pools_by_id: Collection[str] = ()) -> tuple[Need, ...]:
    """Return the needs of a container in order: what has to be done so that it has the devices that its evidence shows.
    `held` is what its sandbox has. In the pools of `pools_by_id` an id stands for one device, so that two containers
    with the same id have the same device.

    A CDI device without an attachment is a need, even if its spec seems to ask for nothing: its devices may be with an
    older sandbox of the pod, and the spec asks for them once they are on the host again.
    """
    return (*_of_shares(evidence, held, pools_by_id), *_of_grants(evidence, held))


def _of_shares(evidence: Evidence, held: tuple[Held, ...], pools_by_id: Collection[str]) -> Iterator[Need]:
    requests = [(it.part, request) for it in held for request in it.requests or ()]
    given = {share for _, it in requests if it.scope.covers(evidence.container) for share in it.shares}
    missing = []
    for pair in sorted(evidence.shares):
        if pair[1] in given:
            continue
        parts = [part for part, it in requests if it.pool in pools_by_id and it.is_for(pair[1])]
        yield from (Cover(part=part, name=pair[1]) for part in dict.fromkeys(parts))
        if not parts:
            missing.append(pair)
    if missing:
        yield Attach(shares=tuple(missing))


def _of_grants(evidence: Evidence, held: tuple[Held, ...]) -> Iterator[Need]:
    for name in evidence.withheld:
        holders = (it for it in held if name in it.cdi_devices)
        taken = (it for it in holders if it.requests is None or it.gives(name, evidence.container))
        yield from (Cover(part=it.part, name=name, is_given=False) for it in taken)
    bare = []
    for grant in evidence.grants:
        holder = next((it for it in held if grant.name in it.cdi_devices), None)
        if holder is None:
            bare.append(grant)
        elif not holder.gives(grant.name, evidence.container):
            yield Cover(part=holder.part, name=grant.name)
    if bare:
        yield Attach(grants=tuple(bare))

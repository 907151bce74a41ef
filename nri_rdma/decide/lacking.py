"""What a container lacks: the evidence of what others gave to it, beside what its sandbox has. Pure.

A CDI device or a share asks for something to be attached. Its sandbox may have that already, for this container or for
another one, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from nri_rdma.cdi.grants import CdiGrant, NodesAt
from nri_rdma.decide.granted import asks
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.request import DeviceRequest

Share: TypeAlias = tuple[str, str]
"""A share of one of our pools: the resource, and the id of the share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What others gave to a container, by one reading of CDI specs, kubelet and runtime."""

    container: str
    is_concerned: bool = True
    """Whether the container has anything from others that could matter here."""
    grants: tuple[CdiGrant, ...] = ()
    """Its CDI devices that concern us."""
    cdi_devices: frozenset[str] = frozenset()
    """The names of these."""
    withheld: tuple[str, ...] = ()
    """CDI devices that the kubelet lists for the container and that it was not given."""
    unread: tuple[str, ...] = ()
    """CDI devices that runtime or kubelet name and that no CDI spec has, as long as another reading may find them."""
    unexplained: NodesAt = frozenset()
    """Its RDMA device nodes that nothing known explains, as long as another reading may."""
    shares: frozenset[Share] = frozenset()
    """The shares of our pools that the kubelet allocated to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one attachment of a sandbox has for containers; `part` names it in the sandbox."""

    part: str
    cdi_devices: frozenset[str]
    """The CDI devices for which it attaches, or has attached."""
    requests: tuple[DeviceRequest, ...] | None
    """The requests that it has attached; None as long as the attach runs."""

    def gives(self, name: str, container: str) -> bool:
        """Return whether the container gets what was attached for this CDI device or share."""
        return self.requests is not None and all(it.scope.covers(container) for it in self.requests if it.is_for(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """Have an attachment cover the container too: it has the CDI device or share of this name. Where `is_given` is
    false, have it cover the container no longer."""

    part: str
    name: str
    is_given: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Attach what these CDI devices, or these shares, ask for."""

    grants: tuple[CdiGrant, ...] = ()
    shares: tuple[Share, ...] = ()


Need: TypeAlias = Cover | Attach


def lacking(
    evidence: Evidence, held: tuple[Held, ...], adoption: Adoption, pools_by_id: Collection[str] = ()
) -> tuple[Need, ...]:
    """Return what has to be done for a container, in order, so that it has what its evidence says. `held` is what its
    sandbox has. The shares of `pools_by_id` stand for devices: two containers with one id have one device."""
    return (*_of_shares(evidence, held, pools_by_id), *_of_grants(evidence, held, adoption))


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


def _of_grants(evidence: Evidence, held: tuple[Held, ...], adoption: Adoption) -> Iterator[Need]:
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
    if any(asks(grant, adoption) for grant in bare):
        yield Attach(grants=tuple(bare))

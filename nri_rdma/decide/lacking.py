"""Compares the devices that other programs gave to a container with those that nri-rdma attached to its sandbox, and
says what is lacking. Pure.

A CDI device or a share (an id that the kubelet allocates) makes a request. Its devices may be attached for this
container, only for another container of the sandbox, or not at all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from nri_rdma.cdi.grants import CdiGrant
from nri_rdma.cdi.index import NodesAt
from nri_rdma.model.request import DeviceRequest

Share: TypeAlias = tuple[str, str]
"""A share: an id that the kubelet allocates to a container. The first part is the pool's resource, the second the
id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The devices that other programs gave to a container, as found in one reading of the CDI specs, the kubelet's
    report and the runtime's message."""

    container: str
    is_concerned: bool = True
    """Whether another program gave the container anything that may matter to nri-rdma."""
    grants: tuple[CdiGrant, ...] = ()
    """The CDI devices of the container that concern nri-rdma."""
    withheld: tuple[str, ...] = ()
    """CDI devices that the kubelet lists for the container, but that the container did not get."""
    unread: tuple[str, ...] = ()
    """CDI devices that the runtime or the kubelet names, but that no CDI spec has yet. A later reading of the specs may
    find them."""
    unexplained: NodesAt = frozenset()
    """The container's RDMA device nodes that belong to no known CDI device; empty if a later reading cannot find one
    either."""
    shares: frozenset[Share] = frozenset()
    """The ids of nri-rdma's pools that the kubelet allocated to the container."""

    @property
    def cdi_devices(self) -> tuple[str, ...]:
        """The names of the container's CDI devices that concern nri-rdma."""
        return tuple([grant.name for grant in self.grants])


NO_EVIDENCE = Evidence(container="", is_concerned=False)
"""The evidence of every container that has nothing from other programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An attachment of a sandbox: RDMA devices that nri-rdma attached, with the requests that say for which containers.
    `part` is the attachment's name in the sandbox."""

    part: str
    cdi_devices: frozenset[str]
    """The CDI devices for which RDMA devices are attached, or are being attached."""
    requests: tuple[DeviceRequest, ...] | None
    """The requests whose devices are attached; None while the attach runs."""

    def gives(self, name: str, container: str) -> bool:
        """Return whether the container gets the devices that were attached for `name`, a CDI device or a share (an id
        that the kubelet allocates). False while the attach runs."""
        return self.requests is not None and all(it.scope.covers(container) for it in self.requests if it.is_for(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """A step: give the container the devices of the attachment `part` too, because it has the CDI device or share
    `name`. If `is_given` is false, the step is to take the container out of the attachment."""

    part: str
    name: str
    is_given: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """A step: attach the RDMA devices for CDI devices (`grants`), or for shares, which are ids that the kubelet
    allocates."""

    grants: tuple[CdiGrant, ...] = ()
    shares: tuple[Share, ...] = ()


Need: TypeAlias = Cover | Attach


def lacking(evidence: Evidence, held: tuple[Held, ...], pools_by_id: Collection[str] = ()) -> tuple[Need, ...]:
    """Return the steps, in order, after which a container has the RDMA devices that other programs gave it
    (`evidence`). `held` are the attachments that its sandbox has. In the pools of `pools_by_id` containers with one id
    share one device.

    A CDI device without an attachment always leads to a step, even if its spec shows no request: its RDMA devices may
    still be in an older sandbox of the pod, and the spec shows its request once they are on the host again.
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

"""Attaches shares that a container tells of when it is created, and that nothing was attached for at pod start.

The kubelet may have been late, or this daemon not there; and it never reports init containers. Law: a container with
shares gets a device for each of them, an error, or "not yet".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from nri_rdma.attach.attachment import Attachment
from nri_rdma.decide.shares import share_requests, unknown_ids
from nri_rdma.engine.asking import Asked
from nri_rdma.engine.barrier import Barrier
from nri_rdma.engine.container import Container
from nri_rdma.engine.late import LateAttach
from nri_rdma.engine.parts import attached_of
from nri_rdma.engine.placer import Placer
from nri_rdma.engine.refusals import forged_shares, lacks_guard, unknown_share, unknown_shares
from nri_rdma.model.allocation import ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.request import DeviceRequest, Match, PodRequest
from nri_rdma.text.shares import forged


class LateShares:
    """Called by the runtime's reader, one container at a time."""

    def __init__(self, placer: Placer, barrier: Barrier, late: LateAttach) -> None:
        self._placer = placer
        self._kubelet = placer.evidence.kubelet
        self._barrier = barrier
        self._late = late

    def attach(self, container: Container, parts: tuple[Attachment, ...], deadline: float) -> None:
        """Attach what is lacking of a container's shares; `parts` are what its sandbox has. Raise when the container
        came without the guard that was given with them, when that fails or when it is not done by the deadline."""
        key = forged(container.annotations)
        if key:
            raise forged_shares(container.pod, container.name, key)
        unguarded = self._kubelet.shares.unguarded(container)
        if unguarded:
            raise lacks_guard(container.pod, container.name, unguarded)
        for it in parts:
            self._barrier.await_attached(it, deadline)
        self._cover(container, parts, deadline)
        lacking = _lacking(container, parts)
        if not lacking:
            return
        self._refuse_unknown(container, lacking)
        by = self._late.await_older(container, parts, deadline)
        asked = self._asked(container, parts, lacking)
        self._late.attach_part(
            container, parts, lambda: self._placer.question(container.pod, container.asker, (), asked), by
        )
        self._kubelet.shares.told(container.shares)

    def _refuse_unknown(self, container: Container, shares: Collection[tuple[str, str]]) -> None:
        pools = self._kubelet.shares.pools.values()
        known = {pool.resource for pool in pools}
        for resource, _ in shares:
            if resource not in known:
                raise unknown_shares(container.pod, container.name, resource)
        for pool in pools:
            for share in unknown_ids(pool, (share for resource, share in shares if resource == pool.resource)):
                raise unknown_share(container.pod, container.name, share, pool)

    def _cover(self, container: Container, parts: tuple[Attachment, ...], deadline: float) -> None:
        """Cover the container by what its pod has for the same ids already: a device has one attachment in a pod."""
        own = self._kubelet.shares.pools_by_id
        for _resource, share in _lacking(container, parts):
            for holder in parts:
                requests = [item.admitted.request for item in attached_of((holder,))[0]]
                if any(it.pool in own and it.is_for(share) for it in requests):
                    self._late.cover(holder, share, container.name, deadline)

    def _asked(
        self, container: Container, parts: tuple[Attachment, ...], lacking: Collection[tuple[str, str]]
    ) -> Asked:
        """Return the request for these shares. A share that a container of the pod has already is the same device: the
        kubelet gives those of init containers to others again."""
        given = dict(_devices(parts))
        again = [pair for pair in lacking if pair[1] in given]
        requests = [*self._requests(container, [pair for pair in lacking if pair not in again])]
        for pair in again:
            (request,) = self._requests(container, [pair])
            device = Match() if request.count is None else Match(device=given[pair[1]])
            requests.append(replace(request, match=device))
        word = self._kubelet.ask(container.pod) if self._kubelet.asks_about_gpus else None
        gpus = self._kubelet.gpus_told(word) if word is not None else None
        return Asked(request=PodRequest(requests=tuple(requests)), gpus=gpus)

    def _requests(self, container: Container, shares: Collection[tuple[str, str]]) -> tuple[DeviceRequest, ...]:
        by_resource: dict[str, list[str]] = {}
        for resource, share in sorted(shares):
            by_resource.setdefault(resource, []).append(share)
        resources = tuple(DeviceIds(resource=name, ids=tuple(ids)) for name, ids in by_resource.items())
        own = ContainerAllocation(name=container.name, resources=resources)
        return share_requests(self._kubelet.shares.pools, PodAllocation(containers=(own,)))


def _lacking(container: Container, parts: tuple[Attachment, ...]) -> list[tuple[str, str]]:
    """Return the shares of the container that nothing is attached for which covers it."""
    requests = [item.admitted.request for item in attached_of(parts)[0]]
    covered = {share for it in requests if it.scope.covers(container.name) for share in it.shares}
    return [pair for pair in sorted(container.shares) if pair[1] not in covered]


def _devices(parts: tuple[Attachment, ...]) -> Iterator[tuple[str, str]]:
    """Yield the shares that something is attached for, each with its device."""
    for item in attached_of(parts)[0]:
        for index, attached in enumerate(item.devices):
            for share in item.admitted.request.shares_of(index, len(item.devices)):
                yield share, attached.device.name

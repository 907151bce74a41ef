"""What an engine knows at one moment, for those who show it: control socket, metrics, web page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.lost import LostNetdev
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.placement import Taken
from nri_rdma.decide.policy import Policy
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.parts import held_by_id
from nri_rdma.engine.refusals import RefusalRow
from nri_rdma.engine.sandbox import Aligned, Sighting, Unserved
from nri_rdma.engine.shares import Guarding, Registration
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.device import Node, RdmaDevice
from nri_rdma.model.pool import Pool, ShareGives


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A snapshot; each field is true of its own moment, and all are taken within microseconds."""

    node: Node
    policy: Policy
    adoption: Adoption
    memlock: MemlockBounds
    taken: Taken
    """Who holds which device."""
    attachments: tuple[Attachment, ...]
    """Oldest first; their `now` goes on."""
    namespaces_held: int
    """How many network namespaces are held open."""
    specs_are_read: bool
    kubelet_tells: bool
    """Whether a kubelet has reported what it allocated."""
    guarding: Guarding
    """Whether the kubelet gives the guard to containers with shares, or why not."""
    registrations: Mapping[str, Registration]
    """Whether the kubelet knows the resources of pools, by the pools' names."""
    sightings: tuple[Sighting, ...]
    """Containers with RDMA devices from others."""
    alignments: tuple[Aligned, ...]
    """How near the devices of containers are to their GPUs."""
    unserved: tuple[Unserved, ...]
    """Pods that run, or wait, without what they ask for."""
    unserved_count: int
    """How many were found since the start."""
    refused: tuple[RefusalRow, ...]
    """What was refused in the last ten minutes, the latest first."""
    refused_count: int
    """How many refusals there were since the start."""
    lost_netdevs: tuple[LostNetdev, ...]
    """Virtual netdevs that pods have lost, the latest first."""
    lost_count: int
    """How many were lost since the start."""

    @property
    def shares_are_guarded(self) -> bool:
        """Return whether the kubelet gives the guard to containers with shares."""
        return self.guarding is Guarding.ON

    def counted(self, pool: Pool, devices: Iterable[RdmaDevice]) -> tuple[int, int]:
        """Return how many a pool has of its resource, and how many of them pods have; `devices` are those that the
        host shows of it."""
        if pool.gives is not ShareGives.DEVICE:
            holdings = (holding for it in devices for holding in self.taken.get(it.id, ()))
            return pool.shares, len({share for holding in holdings for share in holding.shares})
        held = {it.id for it in held_by_id(self.attachments, pool.name)}
        return len(held.union(it.id for it in devices)), len(held)


def view_of(engine: Engine) -> View:
    """Return what the engine knows now."""
    placer, evidence = engine.placer, engine.placer.evidence
    return View(
        node=placer.node.cache.current,
        policy=placer.offering.policy,
        adoption=evidence.adoption,
        memlock=placer.offering.memlock,
        taken=placer.reservations.taken(),
        attachments=engine.attachments.all(),
        namespaces_held=engine.attachments.held(),
        specs_are_read=evidence.specs.now.majors is not None,
        kubelet_tells=evidence.kubelet.tells,
        guarding=evidence.kubelet.shares.guarding,
        registrations=dict(evidence.kubelet.shares.registrations),
        sightings=evidence.sandboxes.sightings(),
        alignments=evidence.sandboxes.alignments(),
        unserved=engine.unserved,
        unserved_count=engine.synchronizer.count,
        refused=engine.refused.rows(),
        refused_count=engine.refused.count,
        lost_netdevs=engine.attachments.lost().rows(),
        lost_count=engine.attachments.lost().count,
    )

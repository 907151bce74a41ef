"""A snapshot of everything that the engine knows, for the control socket, the metrics and the web page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.lost import LostNetdev
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.placement import Taken
from nri_rdma.decide.policy import Policy
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.refusals import RefusalRow
from nri_rdma.engine.sandbox import Aligned, ImageChecked, Sighting, Unserved
from nri_rdma.engine.shares import SharesView
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.device import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A snapshot of the engine. The fields are read one after the other, within microseconds, without a common lock."""

    node: Node
    policy: Policy
    adoption: Adoption
    memlock: MemlockBounds
    taken: Taken
    """The reservations: which sandbox holds which device."""
    attachments: tuple[Attachment, ...]
    """All attachments, oldest first. They are not copied: their state may still change."""
    namespaces_held: int
    """How many network namespaces the daemon holds open."""
    specs_are_read: bool
    kubelet_tells: bool
    """Whether the kubelet has answered at least one question about allocations."""
    shares: SharesView
    sightings: tuple[Sighting, ...]
    """The RDMA devices that containers have from other programs."""
    alignments: tuple[Aligned, ...]
    """How near the devices of containers are to their GPUs."""
    images: tuple[ImageChecked, ...]
    """The results of the checks of containers' images."""
    unserved: tuple[Unserved, ...]
    """The pods that ask for devices, but run or wait without them."""
    unserved_count: int
    """How many pods were found running without their devices since the daemon's start."""
    refused: tuple[RefusalRow, ...]
    """The refusals of the last ten minutes, the latest first."""
    refused_by_code: Mapping[str, int]
    """How many refusals there were since the daemon's start, by error code."""
    lost_netdevs: tuple[LostNetdev, ...]
    """The netdevs that the host has lost in pods, the latest first."""
    lost_count: int
    """How many netdevs were lost since the daemon's start."""


def view_of(engine: Engine) -> View:
    """Return a snapshot of the engine."""
    return View(
        node=engine.node.current,
        policy=engine.offering.policy,
        adoption=engine.offering.adoption,
        memlock=engine.offering.memlock,
        taken=engine.reservations.taken(),
        attachments=engine.attachments.all(),
        namespaces_held=engine.attachments.held(),
        specs_are_read=engine.specs.now.majors is not None,
        kubelet_tells=engine.kubelet.tells,
        shares=engine.kubelet.shares.view(engine.reservations.taken(), engine.attachments.all()),
        sightings=engine.sandboxes.sightings(),
        alignments=engine.sandboxes.alignments(),
        images=engine.sandboxes.images(),
        unserved=engine.unserved,
        unserved_count=engine.synchronizer.count,
        refused=engine.refused.rows(),
        refused_by_code=engine.refused.by_code(),
        lost_netdevs=engine.attachments.lost().rows(),
        lost_count=engine.attachments.lost().count,
    )

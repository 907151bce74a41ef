"""CreateContainer: compute a container's edits from memory. This is the hot path; it reads from top to bottom.

Fail closed: a container whose pod asked for devices gets no answer before they are attached.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from nri_rdma.attach.attachment import Attachment, attached_of
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.record import Phase
from nri_rdma.decide.granted import Grant
from nri_rdma.decide.inject import inject, shown_as
from nri_rdma.engine.alignment_check import AlignmentCheck, Show
from nri_rdma.engine.barrier import Barrier, failed_late
from nri_rdma.engine.evidence import Brought
from nri_rdma.engine.late import LateAttach
from nri_rdma.engine.placer import Placer
from nri_rdma.engine.sandbox import Sandboxes
from nri_rdma.errors import ErrorCode, NotReadyError, PlacementError
from nri_rdma.model.device import CharDevice, RdmaDevice
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.observe.spans import Recorder

log = logging.getLogger(__name__)


class ContainerCreation:
    """Answers CreateContainer for every door. Safe for use by several threads."""

    def __init__(
        self,
        attachments: Attachments,
        known: Sandboxes,
        placer: Placer,
        barrier: Barrier,
        late: LateAttach,
        alignment: AlignmentCheck,
        spans: Recorder,
    ) -> None:
        self._attachments = attachments
        self._known = known
        self._placer = placer
        self._barrier = barrier
        self._late = late
        self._alignment = alignment
        self._spans = spans

    def create(
        self,
        sandbox_id: str,
        pod_name: str,
        annotations: Mapping[str, str],
        container: str,
        present_env: Collection[str],
        present_devices: Mapping[str, tuple[int, int]],
        deadline: float,
        brought: Brought | None = None,
        shown: Show | None = None,
    ) -> ContainerEdits:
        """Return a container's edits, from memory. Raise when its pod asked for devices and nothing is attached.

        `brought`: RDMA devices that the container already has from CDI or a device plugin, or None. If their spec asks
        for more and it was not attached at pod start, it is attached here. `shown` returns the container's GPU
        evidence; None: the node has no GPUs. Only strict requests are checked here; the others are checked when the
        container starts.
        """
        known = self._known.get(sandbox_id)
        if known is not None and known.failure is not None:
            raise failed_late(known.failure)
        parts = self._attachments.of(sandbox_id)
        if (not parts or parts[0].part) and self._placer.asks_for_devices(annotations):
            # Before anything is attached for the container's CDI devices.
            raise _not_decided(pod_name) if self._known.is_missed(sandbox_id) else _not_attached(pod_name)
        # One deadline for all waits of this call.
        by = min(deadline, time.monotonic() + self._barrier.waits.barrier_s)
        grants = self._late.adopt(brought, by) if brought is not None else ()
        if grants:  # its CDI devices have attachments of their own by now
            parts = (*(it for it in parts if not it.part), *(it for it in self._attachments.of(sandbox_id) if it.part))
        if len(parts) > 1 or (parts and parts[0].part):
            parts = tuple(it for it in parts if _concerns(it, container, grants))
        for sandbox in parts:
            if sandbox.state is not Phase.ATTACHED:
                with self._spans.span("barrier"):
                    self._barrier.await_attached(sandbox, by)
            self._barrier.await_present(sandbox, container, by)
        for sandbox in parts:
            if sandbox.ends:  # it began to end while we waited for another one
                self._barrier.await_attached(sandbox, by)
        attached, rdma_cm = attached_of(parts)
        if brought is not None:
            self._late.refuse_lacking(brought.pod, grants, attached)
        if not parts:
            return ContainerEdits()
        self._alignment.refuse_far(parts[0].pod, attached, container, shown)
        with self._spans.span("inject"):
            edits = inject(attached, rdma_cm, container, present_env, present_devices, self._placer.memlock.default)
            for node in edits.char_devices:
                if node.path in present_devices:
                    self._refuse_another(node, present_devices[node.path], f"{parts[0].pod}, container {container}")
            return replace(edits, moved_netdevs=_moved(parts, brought.net_devices)) if brought is not None else edits

    def _refuse_another(self, ours: CharDevice, theirs: tuple[int, int], where: str) -> None:
        """Refuse where our node would hide the node of another RDMA device at the same path: two parties want the
        container to have different devices of one name, and neither may win in silence. Numbers that belong to no
        device are stale (from a CDI file, say), and are corrected."""
        found = shown_as(ours.path, theirs, self._placer.node.devices)
        if found is not None:
            raise _another_at(ours, theirs, found, where)
        log.warning(
            "a device node of the container is replaced by ours",
            extra={
                "container": where,
                "path": ours.path,
                "theirs": f"{theirs[0]}:{theirs[1]}",
                "ours": f"{ours.major}:{ours.minor}",
            },
        )


def _moved(parts: tuple[Attachment, ...], names: Collection[str]) -> tuple[str, ...]:
    """Return which of these host netdevs we moved into the pod, so that the runtime must not move them."""
    moves = [move for sandbox in parts if sandbox.record is not None for move in sandbox.record.plan.moves]
    return tuple(move.link.name for move in moves if move.link.name in names)


def _another_at(
    ours: CharDevice, theirs: tuple[int, int], found: tuple[RdmaDevice, CharDevice], where: str
) -> PlacementError:
    device, char = found
    return PlacementError(
        ErrorCode.PATH_CONFLICT,
        f"{ours.path} of the container is {theirs[0]}:{theirs[1]} already, {char.path} of {device.name};"
        f" this pod's is {ours.major}:{ours.minor}",
        where=where,
        hint="let only one give it devices; the other is a device plugin, CDI or an NRI plugin before this one",
    )


def _concerns(sandbox: Attachment, container: str, grants: Iterable[Grant]) -> bool:
    """Return whether the container has to wait for this attachment. One that was made for another container is not
    waited for."""
    if not sandbox.part or any(grant.name in sandbox.cdi_devices for grant in grants):
        return True
    attached = sandbox.record.attached if sandbox.record is not None else ()
    return any(item.admitted.request.scope.covers(container) for item in attached)


def _not_decided(pod_name: str) -> NotReadyError:
    return NotReadyError(
        ErrorCode.NOT_READY,
        "network is not ready: this pod started while nri-rdma was away and is looked at now",
        where=pod_name,
        hint="nothing to do: the kubelet asks again",
    )


def _not_attached(pod_name: str) -> NotReadyError:
    return NotReadyError(
        ErrorCode.NOT_ATTACHED,
        "this pod asks for RDMA devices and none are attached to its sandbox",
        where=pod_name,
        hint="delete the pod so that it gets a new sandbox",
    )

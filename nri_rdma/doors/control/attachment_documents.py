"""Attachments and their containers in the status document, as JSON values."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any  # Any: JSON documents

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.plan import NetdevMove
from nri_rdma.decide.inventory import netdev_of
from nri_rdma.decide.port_gids import Gids, gid_words, moved_words
from nri_rdma.engine.sandbox import Aligned, ImageChecked
from nri_rdma.host.cgroup import read_rdma_use

UNSTARTED_S = 30.0
"""Seconds after its creation until a container that has not started is reported as unstarted."""


def attachment_document(attachment: Attachment) -> dict[str, Any]:
    """Return an attachment as JSON: its pod, state, devices, moved netdevs, and the containers that were created and
    have not started."""
    record = attachment.now.record
    return {
        "id": attachment.pod.sandbox_id,
        "part": attachment.part,
        "pod": str(attachment.pod),
        "uid": attachment.pod.uid,
        "state": str(attachment.shown),
        "devices": [item.device.name for it in record.attached for item in it.devices] if record is not None else [],
        "isolation": str(record.isolation or "") if record is not None else "",
        "moves": [_move(move) for move in record.plan.moves] if record is not None else [],
        "gids": _gids(record.gids) if record is not None else [],
        "gid_warnings": _gid_warnings(record.gids) if record is not None else [],
        "undo_error": attachment.now.undo_error,
        "unstarted": list(_unstarted(attachment, time.monotonic())),
        "proofs": [{"container": name, **asdict(it)} for name, it in attachment.containers.proofs.copy().items()],
    }


def rdma_use_of(attachments: Sequence[Attachment], cgroup_root: Path) -> Iterator[dict[str, Any]]:
    """Yield the RDMA resources that each container uses and may use, read from its cgroup now.

    A row is left out if the container neither got the device, nor uses it, nor has a limit for it. A container without
    a cgroup has no rows.
    """
    for attachment in attachments:
        own = [it for it in attachments if it.pod.sandbox_id == attachment.pod.sandbox_id]
        for container, cgroups_path in attachment.containers.cgroups.copy().items():
            given = _devices_given(own, container)
            for use in read_rdma_use(cgroup_root, cgroups_path):
                if use.device in given or use.is_noteworthy:
                    yield {
                        "pod": str(attachment.pod),
                        "sandbox": attachment.pod.sandbox_id,
                        "container": container,
                        **asdict(use),
                    }


def alignment_document(item: Aligned) -> dict[str, Any]:
    """Return as JSON how near a container's devices are to its GPUs: the largest distance, the distance of each pair,
    and a sentence."""
    alignment = item.alignment
    return {
        "pod": item.pod,
        "container": item.container,
        "gpus": [str(pci) for pci in alignment.gpus],
        "gpus_from": alignment.source,
        "distance": alignment.worst.name if alignment.worst is not None else None,
        "pairs": [{"device": it.device, "gpu": str(it.gpu), "distance": it.far.name} for it in alignment.pairs],
        "words": alignment.words,
        "problem": alignment.contradiction or alignment.problem,
    }


def _gids(gids: Gids) -> list[dict[str, Any]]:
    """Return the GID with which each port sends; `index` is None for a port without a usable GID."""
    return [
        {
            "device": it.device,
            "port": it.port,
            "index": it.gid.index if it.gid is not None else None,
            "address": str(it.gid.address) if it.gid is not None else "",
            "type": str(it.gid.type) if it.gid is not None else "",
            "own": it.is_own,
            "words": gid_words(it),
        }
        for it in gids.ports
    ]


def _gid_warnings(gids: Gids) -> list[str]:
    return [*([gids.problem] if gids.problem else []), *moved_words(gids)]


def image_documents(item: ImageChecked) -> Iterator[dict[str, Any]]:
    """Yield the reasons why the libraries in a container's image cannot use its devices. If the image could not be
    read, the reason for that has no error code."""
    container = {"pod": item.pod, "container": item.container}
    for problem in item.problems:
        yield {**container, "code": str(problem.code), "error": str(problem)}
    if item.unseen:
        yield {**container, "code": "", "error": item.unseen}


def _devices_given(parts: Iterable[Attachment], container: str) -> frozenset[str]:
    """Return the names of the devices that a container got from any of its sandbox's attachments."""
    records = [now.record for now in [it.now for it in parts] if now.record is not None]
    covering = (it for record in records for it in record.attached if it.admitted.request.scope.covers(container))
    return frozenset(item.device.name for it in covering for item in it.devices)


def _unstarted(attachment: Attachment, now: float) -> Iterator[dict[str, Any]]:
    """Yield the containers that have not started although they were created more than once, or longer than UNSTARTED_S
    ago."""
    for container, item in attachment.containers.unstarted.copy().items():
        if item.answers > 1 or now - item.since > UNSTARTED_S:
            yield {"container": container, "answers": item.answers, "seconds": round(now - item.since, 1)}


def _move(move: NetdevMove) -> dict[str, Any]:
    """Return a netdev that was moved into a pod: its name there, and its state on the host before the move."""
    return {
        "device": move.device,
        "pod_name": move.pod_name,
        "netdev": asdict(netdev_of(move.link)),
        "left_out": list(move.inherited.left_out),
    }

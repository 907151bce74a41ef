"""The status document of a running daemon, as JSON values."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any  # Any: JSON documents and generated messages

from nri_rdma import __version__
from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.plan import NetdevMove
from nri_rdma.config.settings import Settings
from nri_rdma.decide.inventory import netdev_of
from nri_rdma.decide.policy import Policy, offer
from nri_rdma.doors.control.document import DOCUMENT_VERSION, adoption_document, node_document, policy_document
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.guard import Contacts
from nri_rdma.engine.node_cache import NodeSource
from nri_rdma.engine.reservations import Allocations
from nri_rdma.engine.sandbox import Aligned
from nri_rdma.host.cgroup import read_rdma_use
from nri_rdma.model.device import Node
from nri_rdma.model.request import UNLIMITED
from nri_rdma.observe.spans import Recorder

MEMLOCK_IS_SET = "the setting memlock says so"
UNSTARTED_S = 30.0
"""A container that was answered for starts sooner, or something keeps it from it."""
NO_GUARD = "while this daemon is dead, pods start without their devices"
UNGUARDED = "containers started that it did not ask about: their runtime handler has no guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeView:
    """What `status` shows of the runtime; empty texts where nothing is known yet."""

    link: str
    """How far the session is: disconnected, connected or synchronized."""
    name: str
    version: str
    nri: str
    lacks: tuple[str, ...]
    """What this runtime's NRI cannot do."""
    launched: bool
    """Whether the runtime started this process."""
    error: str
    """Why there is no session, or why the last one ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFacts:
    """What the control socket reads; it changes nothing."""

    settings: Settings
    node: NodeSource
    engine: Engine
    allocations: Allocations
    sandboxes: Attachments
    spans: Recorder
    runtime: Callable[[], RuntimeView]
    reload_error: Callable[[], str]
    pinned: Callable[[], Mapping[str, int]] = dict
    """What pins network namespaces: how many there are, the threads and sockets inside, and how many a call that
    hangs keeps from closing."""


def guard_document(contacts: Contacts, sandboxes: Iterable[Attachment]) -> dict[str, Any]:
    """Which guard has asked since the boot, how often since our start and, in seconds since the epoch, when last; and
    the containers that started and were not asked about."""
    unguarded = [f"{it.pod}, container {name}" for it in sandboxes for name in sorted(it.unguarded.copy())]
    told = {**asdict(contacts), "unguarded": unguarded}
    if not contacts.last:
        return {"active": "none", "warning": NO_GUARD, **told}
    return {"active": "createRuntime hook", "warning": UNGUARDED if unguarded else "", **told}


def status_document(facts: DaemonFacts, *, started: float, guard: dict[str, Any]) -> dict[str, Any]:
    """What `status` shows, and what `explain` decides with: node_from reads the node out of it again."""
    policy, current = facts.engine.placer.policy, facts.node.current
    node = node_document(current)
    taken = facts.allocations.taken()
    for device in node["devices"]:
        holders = taken.get(device["id"], frozenset())
        device["holders"] = [
            {"pod": it.owner, "mode": str(it.mode), "gpus": sorted(map(str, it.gpus))}
            for it in sorted(holders, key=lambda it: it.owner)
        ]
    return {
        "version": DOCUMENT_VERSION,
        "daemon": {"version": __version__, "pid": os.getpid(), "started": started},
        "runtime": _runtime(facts),
        "guard": guard,
        "sysfs_root": str(facts.settings.sysfs_root),
        "annotation_prefix": facts.settings.annotation_prefix,
        "pools": _pools(policy, current),
        "policy": policy_document(policy),
        "adopt": adoption_document(facts.engine.adopter.adoption),
        "cdi_specs_read": facts.engine.adopter.majors is not None,
        "kubelet_tells": facts.engine.adopter.kubelet_tells,
        "reload_error": facts.reload_error(),
        "memlock": _memlock(facts),
        "namespaces_held": facts.sandboxes.held(),
        "pinned": dict(facts.pinned()),
        **node,
        "sandboxes": [_sandbox(sandbox) for sandbox in facts.sandboxes.all()],
        "rdma_use": list(_rdma_use(facts)),
        "from_others": [asdict(sighting) for sighting in facts.engine.adopter.sandboxes.sightings()],
        "alignment": [_aligned(item) for item in facts.engine.adopter.sandboxes.alignments()],
        "unserved_count": facts.engine.synchronizer.count,
        "unserved": [{"pod": str(item.pod), "why": item.why} for item in facts.engine.unserved],
    }


def _pools(policy: Policy, node: Node) -> list[dict[str, Any]]:
    """The pools with the names of the devices that each has now."""
    offered = offer(policy, node)
    return [
        {
            "name": pool.name,
            "modes": [str(mode) for mode in pool.modes],
            "devices": [device.name for device in offered.by_pool[pool.name]],
            "contested": [device.name for device in node.devices if pool.name in offered.contested.get(device.id, ())],
        }
        for pool in policy.pools.values()
    ]


def _runtime(facts: DaemonFacts) -> dict[str, Any]:
    runtime = asdict(facts.runtime())
    return {**runtime, "lacks": list(runtime["lacks"]), "socket": str(facts.settings.nri_socket)}


def _sandbox(sandbox: Attachment) -> dict[str, Any]:
    record = sandbox.record
    return {
        "id": sandbox.pod.sandbox_id,
        "part": sandbox.part,
        "pod": str(sandbox.pod),
        "uid": sandbox.pod.uid,
        "state": str(sandbox.shown),
        "devices": [item.device.name for it in record.attached for item in it.devices] if record is not None else [],
        "isolation": str(record.isolation or "") if record is not None else "",
        "moves": [_move(move) for move in record.plan.moves] if record is not None else [],
        "undo_error": sandbox.undo_error,
        "unstarted": list(_unstarted(sandbox, time.monotonic())),
    }


def _unstarted(sandbox: Attachment, now: float) -> Iterator[dict[str, Any]]:
    """Containers that were answered for and did not start: again, or for longer than a start takes."""
    for container, item in sandbox.unstarted.copy().items():
        if item.answers > 1 or now - item.since > UNSTARTED_S:
            yield {"container": container, "answers": item.answers, "seconds": round(now - item.since, 1)}


def _rdma_use(facts: DaemonFacts) -> Iterator[dict[str, Any]]:
    """What containers use and may, read from their cgroups now: of the devices that were given to them, and of any
    other that they use or are limited for. A container whose cgroup is gone has none."""
    for sandbox in facts.sandboxes.all():
        for container, cgroups_path in sandbox.containers.copy().items():
            given = _given_to(facts.sandboxes.of(sandbox.pod.sandbox_id), container)
            for use in read_rdma_use(facts.settings.cgroup_root, cgroups_path):
                if use.device in given or use.is_noteworthy:
                    yield {
                        "pod": str(sandbox.pod),
                        "sandbox": sandbox.pod.sandbox_id,
                        "container": container,
                        **asdict(use),
                    }


def _given_to(parts: tuple[Attachment, ...], container: str) -> frozenset[str]:
    attached = [it for sandbox in parts if sandbox.record is not None for it in sandbox.record.attached]
    covering = [it for it in attached if it.admitted.request.scope.covers(container)]
    return frozenset(item.device.name for it in covering for item in it.devices)


def _aligned(item: Aligned) -> dict[str, Any]:
    """How near a container's devices are to its GPUs: by its farthest pair, pair by pair, and in words."""
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


def _move(move: NetdevMove) -> dict[str, Any]:
    """A netdev that is in a pod, as it was on the host."""
    return {"device": move.device, "pod_name": move.pod_name, "netdev": asdict(netdev_of(move.link))}


def _memlock(facts: DaemonFacts) -> dict[str, Any]:
    memlock = facts.engine.placer.memlock
    value, dropped_by = memlock.default, memlock.dropped_by
    reason = MEMLOCK_IS_SET
    if dropped_by:
        reason = f"{dropped_by} does not set it for plugins"
    elif facts.settings.memlock.automatic:
        reason = _ceiling_words(value, facts.engine.placer.memlock.ceiling)
    return {
        "bytes": value,
        "reason": reason,
        "ceiling": facts.engine.placer.memlock.ceiling,
        "dropped_by": dropped_by,
    }


def _ceiling_words(value: int | None, ceiling: int) -> str:
    if value is not None:
        return "the runtime may raise it"
    if ceiling == UNLIMITED:
        return "no runtime has been heard of yet"
    return f"the runtime may not raise it above {ceiling} bytes"

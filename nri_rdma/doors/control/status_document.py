"""The status document of a running daemon, as JSON values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any  # Any: JSON documents and generated messages

from nri_rdma import __version__
from nri_rdma.attach.attachment import Attachment
from nri_rdma.config.settings import Settings
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.policy import offer
from nri_rdma.decide.share_limits import ShareLimits, share_limits
from nri_rdma.doors.control.attachment_documents import (
    alignment_document,
    attachment_document,
    image_documents,
    rdma_use_of,
)
from nri_rdma.doors.control.node_document import DOCUMENT_VERSION, adoption_document, node_document, policy_document
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.guard import Contacts
from nri_rdma.engine.view import View, view_of
from nri_rdma.model.request import UNLIMITED
from nri_rdma.observe.spans import Recorder

MEMLOCK_IS_SET = "the setting memlock says so"
UNKNOWN_GUARD = "no hook has asked; without a guard, pods start without their devices while this daemon is dead"
UNGUARDED = "containers started that it did not ask about: their runtime handler has no guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeView:
    """The container runtime as `status` shows it. An empty text means unknown."""

    link: str
    """The state of the NRI session: disconnected, connected or synchronized; "none" if this host needs no runtime with
    NRI."""
    name: str
    version: str
    nri: str
    lacks: tuple[str, ...]
    """The features that this runtime's NRI does not support."""
    launched: bool
    """Whether the runtime started this daemon as its plugin."""
    error: str
    """The reason why there is no session, or why the last one ended; "" while the runtime is synchronized."""
    error_since: float = 0.0
    """The time at which `error` was first seen, in seconds since the epoch; 0 without an error."""
    engines: tuple[str, ...] = ()
    """The container engines (podman, Docker) that use the OCI hook; empty unless `link` is "none"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFacts:
    """The parts of the daemon that the control socket reads. The socket changes nothing."""

    settings: Settings
    engine: Engine
    spans: Recorder
    runtime: Callable[[], RuntimeView]
    reload_error: Callable[[], str]
    traces: Callable[[], Mapping[str, Any] | None] = lambda: None
    """Returns how many spans were sent to a collector of traces, as the fields of ExportCounts; None if no spans are
    sent."""
    metrics: Callable[[], Mapping[str, Any] | None] = lambda: None
    """Returns the fields of MetricsView: the address of the metrics page, and why it is not served; None if it is
    switched off."""
    pinned: Callable[[], Mapping[str, int]] = dict
    """Returns counts of what keeps network namespaces alive: the namespaces, the threads and sockets in them, and the
    threads and sockets that cannot be closed because a call hangs."""
    driver: Callable[[], Mapping[str, Any] | None] = lambda: None
    """Returns the state of the DRA driver as the fields of DriverView; None if no pool serves claims."""
    troubles: Callable[[], tuple[Mapping[str, str], ...]] = tuple
    """Returns the problems since the daemon's start, such as a missing permission, each as the fields of Trouble."""
    guards: Callable[[], Mapping[str, bool]] = dict
    """Returns, by runtime handler, whether its containers have the guard, an OCI hook that keeps a container from
    starting without its devices. A handler is left out if this is unknown. Only for metrics."""


def guard_document(contacts: Contacts, sandboxes: Iterable[Attachment]) -> dict[str, Any]:
    """Describe the guard, an OCI hook that keeps a container from starting without its devices, as JSON.

    The document says whether the hook has asked a daemon since the boot, when it last asked (seconds since the
    epoch), how often since the daemon's start, and which containers started without asking.
    """
    unguarded = [f"{it.pod}, container {name}" for it in sandboxes for name in sorted(it.containers.unguarded.copy())]
    told = {**asdict(contacts), "unguarded": unguarded}
    if not contacts.last:
        return {"active": "unknown", "warning": UNKNOWN_GUARD, **told}
    return {"active": "createRuntime hook", "warning": UNGUARDED if unguarded else "", **told}


def status_document(facts: DaemonFacts, *, started: float, guard: dict[str, Any]) -> dict[str, Any]:
    """Return the document that `status` shows. `explain` reads the node and the policy from it.

    `started` is the daemon's start in seconds since the epoch. `guard` is the result of `guard_document`.
    """
    view = view_of(facts.engine)
    node = node_document(view.node)
    for device in node["devices"]:
        holders = view.taken.get(device["id"], frozenset())
        device["holders"] = [
            {"pod": it.owner, "mode": str(it.mode), "gpus": sorted(map(str, it.gpus))}
            | ({"shares": sorted(it.shares)} if it.shares else {})
            | ({"sole": True} if it.is_sole else {})
            | ({"looksOn": True} if it.looks_on else {})
            for it in sorted(holders, key=lambda it: it.owner)
        ]
    return {
        "version": DOCUMENT_VERSION,
        "daemon": {"version": __version__, "pid": os.getpid(), "started": started},
        "runtime": _runtime(facts),
        "guard": guard,
        "guard_resource": _guard_resource(facts.settings.guard_resource, view),
        "sysfs_root": str(facts.settings.sysfs_root),
        "annotation_prefix": facts.settings.annotation_prefix,
        "pools": _pools(view),
        "driver": facts.driver(),
        "policy": policy_document(view.policy),
        "adopt": adoption_document(view.adoption),
        "cdi_specs_read": view.specs_are_read,
        "kubelet_tells": view.kubelet_tells,
        "reload_error": facts.reload_error(),
        "troubles": list(facts.troubles()),
        "memlock": _memlock(view.memlock, automatic=facts.settings.memlock.automatic),
        "traces": facts.traces(),
        "metrics": facts.metrics(),
        "namespaces_held": view.namespaces_held,
        "pinned": dict(facts.pinned()),
        **node,
        "sandboxes": [attachment_document(it) for it in view.attachments],
        "rdma_use": list(rdma_use_of(view.attachments, facts.settings.cgroup_root)),
        "from_others": [asdict(sighting) for sighting in view.sightings],
        "alignment": [alignment_document(item) for item in view.alignments],
        "images": [it for item in view.images for it in image_documents(item)],
        "unserved_count": view.unserved_count,
        "unserved": [{"pod": str(item.pod), "why": item.why} for item in view.unserved],
        "refused_count": sum(view.refused_by_code.values()),
        "refused": [asdict(row) for row in view.refused],
        "lost_count": view.lost_count,
        "lost_netdevs": [asdict(row) for row in view.lost_netdevs],
    }


def _pools(view: View) -> list[dict[str, Any]]:
    """Return the pools with the names of their present devices. A pool with an extended resource also has the number of
    its shares (units of that resource), and how many of them pods use."""
    offered = offer(view.policy, view.node)
    found = []
    for pool in view.policy.pools.values():
        devices, contested = offered.by_pool[pool.name], offered.contested
        told: dict[str, Any] = {
            "name": pool.name,
            "modes": [str(mode) for mode in pool.modes],
            "devices": [device.name for device in devices],
            "contested": [device.name for device in view.node.devices if pool.name in contested.get(device.id, ())],
        }
        if pool.resource:
            shares, given = view.shares.counted(pool, devices)
            told |= {"resource": pool.resource, "shares": shares, "given": given, "gives": str(pool.gives)}
            told |= {"guarded": view.shares.are_guarded, "guarding": str(view.shares.guarding)}
            told["limits"] = {
                device.name: _share_limits(share_limits(view.node, offered, pool, device))
                for device in devices
                if pool.shares
            }
            told |= {"registration": asdict(known) if (known := view.shares.registrations.get(pool.name)) else None}
        found.append(told)
    return found


def _guard_resource(resource: str, view: View) -> dict[str, Any] | None:
    """Describe the guard resource: an extended resource that only adds the guard, the OCI hook that keeps a container
    from starting without its devices.

    The result has the resource's registration with the kubelet, and whether containers get the hook. None if no guard
    resource is configured.
    """
    known = view.shares.of_guard
    if known is None:
        return None
    told = {"resource": resource, "registration": asdict(known)}
    return {**told, "guarded": view.shares.are_guarded, "guarding": str(view.shares.guarding)}


def _share_limits(told: ShareLimits) -> dict[str, Any]:
    return {
        "hca_handle": told.limits.hca_handles,
        "hca_object": told.limits.hca_objects,
        "why": told.why,
        "words": told.words,
    }


def _runtime(facts: DaemonFacts) -> dict[str, Any]:
    runtime = asdict(facts.runtime())
    lists = {"lacks": list(runtime["lacks"]), "engines": list(runtime["engines"])}
    return {**runtime, **lists, "socket": str(facts.settings.nri_socket)}


def _memlock(memlock: MemlockBounds, *, automatic: bool) -> dict[str, Any]:
    reason = MEMLOCK_IS_SET
    if memlock.dropped_by:
        reason = f"{memlock.dropped_by} does not set it for plugins"
    elif automatic:
        reason = _ceiling_words(memlock.default, memlock.ceiling)
    return {
        "bytes": memlock.default,
        "reason": reason,
        "ceiling": memlock.ceiling,
        "dropped_by": memlock.dropped_by,
    }


def _ceiling_words(value: int | None, ceiling: int) -> str:
    if value is not None:
        return "the runtime may raise it"
    if ceiling == UNLIMITED:
        return "no runtime has connected yet"
    return f"the runtime may not raise it above {ceiling} bytes"

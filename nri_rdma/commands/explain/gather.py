"""Collects the facts on which `explain` decides: what the running daemon knows, otherwise this node's hardware with all
devices free."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any  # Any: the daemon's JSON document

import msgspec

from nri_rdma.commands.common.local_node import read_node
from nri_rdma.commands.explain.explanation import Away, Facts
from nri_rdma.commands.explain.host_network import read_host_network
from nri_rdma.commands.status.device_holders import taken_from
from nri_rdma.commands.status.document_check import look_through
from nri_rdma.commands.status.driver_line import driver_sentence
from nri_rdma.config.settings import Settings
from nri_rdma.decide.policy import configured_policy
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.control.node_document import node_from, policy_from
from nri_rdma.doors.control.status_document import MEMLOCK_IS_SET
from nri_rdma.errors import NotReadyError, SettingError
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.device import Netdev

AUTOMATIC_MEMLOCK = "unlimited, unless the runtime may not raise its own limit"
"""The reason for the RLIMIT_MEMLOCK of containers, if no daemon runs. Only a daemon knows the runtime's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsSource:
    """The facts, with sentences that say where they come from."""

    facts: Facts
    sentences: tuple[str, ...]
    memlock_reason: str
    claims: str = ""
    """A sentence about the node's DRA driver; "" if the node has none."""


def gather(settings: Settings, snapshot: Path | None = None, problem: SettingError | None = None) -> FactsSource:
    """Return the facts of the running daemon. This command reads the node itself if no daemon answers, if the daemon
    reads another sysfs tree, or if `snapshot` is given.

    `problem` is the error of an invalid configuration file. It is raised if the facts are not from a daemon, which
    would know the pools and rules.
    """
    if snapshot is not None and problem is not None:
        raise problem
    if snapshot is not None:
        return _from_node(settings, "What pods hold is not in a snapshot: all counts as free.", snapshot)
    try:
        document = ask_status(settings.control_path)
    except NotReadyError as error:
        if problem is not None:
            raise problem from error
        return _from_node(settings, f"What pods hold now counts as free: {error.what} ({settings.control_path}).")
    look_through(document)
    told = Path(document["sysfs_root"])
    default = next(item.default for item in fields(Settings) if item.name == "sysfs_root")
    if settings.sysfs_root not in {told, default}:
        if problem is not None:
            raise problem
        return _from_node(
            settings,
            f"The daemon reads its hardware from {told}, not from {settings.sysfs_root}: what pods hold there is not"
            " counted.",
        )
    return _from_daemon(document, settings)


def _from_node(settings: Settings, sentence: str, snapshot: Path | None = None) -> FactsSource:
    node, notes = read_node(settings, snapshot)
    source = "the snapshot's hardware" if snapshot is not None else f"the hardware of {settings.sysfs_root}"
    facts = Facts(
        node=node,
        policy=configured_policy(settings),
        taken=MappingProxyType({}),
        annotation_prefix=settings.annotation_prefix,
        default_memlock=settings.memlock.bytes,
        adoption=settings.adopt,
        lifelines=settings.lifelines(os.environ),
        host=read_host_network(node) if snapshot is None else None,
    )
    reason = AUTOMATIC_MEMLOCK if settings.memlock.automatic else MEMLOCK_IS_SET
    return FactsSource(
        facts=facts,
        sentences=(f"Decided on {source}. {sentence}", *notes, *(() if snapshot or node.devices else (_NO_DEVICE,))),
        memlock_reason=reason,
    )


_NO_DEVICE = (
    "This machine has no RDMA device: --snapshot FILE takes a node that has some (`nri-rdma snapshot` saves it)."
)


def _from_daemon(document: Mapping[str, Any], settings: Settings) -> FactsSource:
    memlock, node = document["memlock"], node_from(document)
    facts = Facts(
        node=node,
        lifelines=settings.lifelines(os.environ),
        host=read_host_network(node),
        policy=policy_from(document),
        taken=taken_from(document),
        away=_away(document),
        annotation_prefix=document["annotation_prefix"],
        default_memlock=memlock["bytes"],
        memlock_ceiling=memlock["ceiling"],
        memlock_dropped_by=memlock.get("dropped_by", ""),
        adoption=msgspec.convert(document.get("adopt", {}), Adoption),  # older daemons only observe
        kubelet_tells=bool(document.get("kubelet_tells")),
        gpus_are_reported=bool(document.get("kubelet_tells")),
    )
    held = sum(1 for device in document["devices"] if device["holders"])
    sentence = (
        f"Decided with what the daemon (pid {document['daemon']['pid']}) knows now: {held} of"
        f" {len(document['devices'])} devices are held by pods."
    )
    driver = document.get("driver")  # older daemons do not send this field
    claims = driver_sentence(driver, time.time()) if driver else ""
    return FactsSource(facts=facts, sentences=(sentence,), memlock_reason=memlock["reason"], claims=claims)


def _away(document: Mapping[str, Any]) -> tuple[Away, ...]:
    return tuple(
        Away(owner=sandbox["pod"], device=move["device"], netdev=Netdev(**move["netdev"]))
        for sandbox in document["sandboxes"]
        for move in sandbox["moves"]
    )

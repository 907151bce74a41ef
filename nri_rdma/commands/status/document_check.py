"""Checks the daemon's status document before a command reads it.

The document's version says what its fields mean; this check makes sure that the required fields exist. Fields that
later releases added are not required: commands read them with a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any  # Any: the daemon's JSON document

import msgspec

from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.device import Netdev
from nri_rdma.model.request import Mode


def look_through(document: Mapping[str, Any]) -> None:
    """Raise NotReadyError, with the field's name, if a required field is missing or has another type."""
    try:
        msgspec.convert(document, _Status)
    except msgspec.ValidationError as error:
        raise NotReadyError(
            ErrorCode.DAEMON_ABSENT,
            f"the daemon's answer cannot be read: {error}",
            hint="restart the daemon after an upgrade",
        ) from error


@dataclass
class _Daemon:
    version: str
    pid: int
    started: float


@dataclass
class _Runtime:
    name: str
    version: str
    link: str
    socket: str
    error: str


@dataclass
class _Guard:
    active: str
    warning: str


@dataclass
class _Pool:
    name: str
    modes: list[str]
    devices: list[str]
    contested: list[str]


@dataclass
class _Policy:
    rules: list[Any]


@dataclass
class _Memlock:
    bytes: int | None
    reason: str
    ceiling: int


@dataclass
class _Holder:
    pod: str
    mode: Mode


@dataclass
class _Named:
    name: str


@dataclass
class _Device:
    id: str
    name: str
    pci: str | None
    numa_node: int | None
    state: str | None
    netdevs: list[_Named]
    holders: list[_Holder]
    in_use: list[str]


@dataclass
class _Move:
    device: str
    pod_name: str
    netdev: Netdev
    left_out: list[str] = field(default_factory=list)
    """The configuration that stayed on the host. Empty if an older daemon does not send this field."""


@dataclass
class _Sandbox:
    id: str
    pod: str
    state: str
    devices: list[str]
    isolation: str
    moves: list[_Move]
    undo_error: str


@dataclass
class _Unserved:
    pod: str
    why: str


@dataclass
class _Status:
    daemon: _Daemon
    runtime: _Runtime
    guard: _Guard
    sysfs_root: str
    annotation_prefix: str
    pools: list[_Pool]
    policy: _Policy
    memlock: _Memlock
    namespaces_held: int
    rdma_netns: str
    rdma_cgroup: bool
    devices: list[_Device]
    sandboxes: list[_Sandbox]
    unserved: list[_Unserved]

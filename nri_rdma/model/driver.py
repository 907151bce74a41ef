"""What a daemon knows of its driver of claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nri_rdma.model.registration import Registration


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The ResourceSlices of the node at the API server when they were last as they shall be; no slice: never yet.

    `written` is when this daemon wrote them last, in seconds since the epoch, 0 where it found them so. `error` is why
    they are not as they shall be, "" where they are, and `error_since` since when there is a reason, in these seconds.
    """

    devices: int = 0
    slices: int = 0
    generation: int = 0
    written: float = 0.0
    error: str = ""
    error_since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClaims:
    """The numbers of claims that the kubelet has prepared, by what became of them.

    `attached`: a pod has devices of it. `failed`: the last attach failed, and no pod has any. `returning`: its pod has
    ended, and a device is not on the host yet. `waiting`: for its pod, or nothing of these."""

    attached: int = 0
    failed: int = 0
    returning: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverView:
    """The driver of claims, as `status` shows it. `rivals` are other drivers that publish devices of ours, with these
    devices' names in slices; `withheld` are devices that are not published for want of their netdevs."""

    name: str
    registration: Registration
    published: Published
    claims: PreparedClaims
    rivals: Mapping[str, Sequence[str]] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()

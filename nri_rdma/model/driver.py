"""The state of this daemon's DRA driver, as `status` shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nri_rdma.model.registration import Registration


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The state of the node's ResourceSlices at the API server. `devices`, `slices` and `generation` are from the last
    time when the slices were up to date; `slices` is 0 if they never were.

    `written` is when this daemon last wrote slices, in seconds since the epoch; 0 if it found them up to date. `error`
    says why they are not up to date, "" if they are; `error_since` is when the failure began, in seconds since the
    epoch.
    """

    devices: int = 0
    slices: int = 0
    generation: int = 0
    written: float = 0.0
    error: str = ""
    error_since: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedClaims:
    """The numbers of claims that the kubelet has prepared, by their state.

    `attached`: a pod has devices of the claim. `failed`: the last attach failed, and no pod has devices. `returning`:
    the pod has ended, and a device is not on the host yet. `waiting`: any other state, usually waiting for the pod to
    start.
    """

    attached: int = 0
    failed: int = 0
    returning: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverView:
    """The state of the DRA driver, as `status` shows it. `rivals` maps another driver to the devices that both drivers
    publish, by the names in the other driver's slices. `withheld` are devices that are not published, because their
    netdevs are not on the host."""

    name: str
    registration: Registration
    published: Published
    claims: PreparedClaims
    rivals: Mapping[str, Sequence[str]] = field(default_factory=dict)
    withheld: tuple[str, ...] = ()

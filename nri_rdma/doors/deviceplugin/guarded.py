"""The CDI spec that adds the guard's OCI hook to containers to which the kubelet allocated ids of a pool. Pure.

It has one CDI device for each pool, and one for the guard resource; their only edit is the hook. The runtime runs the
hook before the container starts, even if the daemon is dead. CreateContainer adds everything else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from nri_rdma.cdi.guard import guard
from nri_rdma.cdi.spec import Device, Edits, Kind, Spec, Version
from nri_rdma.cdi.version import minimum_version
from nri_rdma.model.pool import Pool

KIND = Kind(vendor="shares.rdma.noderesource.dev", device_class="pool")


def guarded(pools: Iterable[Pool], hook: Path, options: Sequence[str] = ()) -> Spec:
    """Return the CDI spec for these pools; `options` are the hook's flags with values other than the defaults."""
    devices = tuple(_device(pool, hook, options) for pool in pools)
    spec = Spec(version=next(iter(Version)), kind=KIND, devices=devices)
    return replace(spec, version=minimum_version(spec))


def cdi_device(pool: Pool) -> str:
    """Return the qualified name of the pool's CDI device, which the kubelet passes to the runtime."""
    return KIND.qualified(pool.name)


def _device(pool: Pool, hook: Path, options: Sequence[str]) -> Device:
    about = ("--resource", pool.resource) if pool.is_guard else ("--pool", pool.name)
    return Device(name=pool.name, edits=Edits(hooks=(guard(str(hook), options, *about),)))

"""The CDI spec of the shares: a device for each pool that has no node and the guard as its hook. The guard resource has
one, too. Pure.

The runtime runs the hook before a container with such a device starts, also while the daemon is dead. What else the
container gets comes from CreateContainer.
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
    """Return the spec; `options` are flags of the hook that differ from its defaults."""
    devices = tuple(_device(pool, hook, options) for pool in pools)
    spec = Spec(version=next(iter(Version)), kind=KIND, devices=devices)
    return replace(spec, version=minimum_version(spec))


def cdi_device(pool: Pool) -> str:
    """Return the name by which the kubelet gives the guard to a container."""
    return KIND.qualified(pool.name)


def _device(pool: Pool, hook: Path, options: Sequence[str]) -> Device:
    about = ("--resource", pool.resource) if pool.is_guard else ("--pool", pool.name)
    return Device(name=pool.name, edits=Edits(hooks=(guard(str(hook), options, *about),)))

"""The CDI spec that adds the guard, an OCI hook that keeps a container from starting without its devices. Pure.

It has one CDI device for each pool with an extended resource, which the kubelet passes to the runtime with each
allocation. The guard resource, an extended resource that only adds the guard, has one as well. Each CDI device adds
only the hook. The runtime runs the hook before the container starts, even if the daemon is dead.
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
    """Return a CDI spec with one CDI device for each pool. Each CDI device adds the guard: an OCI hook that keeps a
    container from starting without its devices.

    `hook` is the path of the hook's program. `options` are the hook's flags with values other than the defaults.
    """
    devices = tuple(_device(pool, hook, options) for pool in pools)
    spec = Spec(version=next(iter(Version)), kind=KIND, devices=devices)
    return replace(spec, version=minimum_version(spec))


def cdi_device(pool: Pool) -> str:
    """Return the qualified name of the CDI device that adds the guard's OCI hook for this pool. The kubelet passes it
    to the runtime."""
    return KIND.qualified(pool.name)


def _device(pool: Pool, hook: Path, options: Sequence[str]) -> Device:
    about = ("--resource", pool.resource) if pool.is_guard else ("--pool", pool.name)
    return Device(name=pool.name, edits=Edits(hooks=(guard(str(hook), options, *about),)))

"""Adds the guard to the CDI devices of another driver. The guard is an OCI hook that keeps a container from starting
without its devices, also while no daemon runs. Pure.

Each CDI device gets its own hook, because a hook of the whole spec does not learn which CDI device was requested. A CDI
device without an RDMA device node or netdev gets no guard, because our annotation has no effect on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from nri_rdma.cdi.guard import guard
from nri_rdma.cdi.meaning import is_uverbs
from nri_rdma.cdi.registry import ResolvedDevice
from nri_rdma.cdi.spec import Device, Edits, Hook, HookName, Spec
from nri_rdma.text.share_annotations import GUARD_HOOK


def with_guard(spec: Spec, prefix: str, hook: PurePath, options: Sequence[str] = ()) -> Spec:
    """Return the spec with the guard, an OCI hook that keeps a container from starting without its devices, on each CDI
    device that has our annotation and RDMA hardware. It is removed from the others.

    `prefix` is the key of our annotation. `hook` is the hook's program; `options` are its flags with values other than
    the defaults. The declared CDI version stays, because every version has hooks.
    """

    def guarded(device: Device) -> Device:
        has_key = prefix in dict((*spec.annotations, *device.annotations))
        asks = has_key and any(map(_names_hardware, (spec.edits, device.edits)))
        others = tuple(it for it in device.edits.hooks if not _is_guard(it))
        own = (guard(str(hook), options, "--device", spec.kind.qualified(device.name)),) if asks else ()
        return replace(device, edits=replace(device.edits, hooks=(*others, *own)))

    return replace(spec, devices=tuple(map(guarded, spec.devices)))


def guarded_devices(spec: Spec) -> tuple[str, ...]:
    """Return the qualified names of the CDI devices with the guard, an OCI hook that keeps a container from starting
    without its devices."""
    return tuple(spec.kind.qualified(it.name) for it in spec.devices if any(map(_is_guard, it.edits.hooks)))


def lacks_guard(device: ResolvedDevice, prefix: str) -> bool:
    """Return whether a CDI device requests something from nri-rdma by an annotation with the key `prefix`, but does not
    add the guard, an OCI hook that keeps a container from starting without its devices."""
    asks = device.annotation(prefix) is not None and any(map(_names_hardware, (device.spec_edits, device.device.edits)))
    return asks and not any(map(_is_guard, device.device.edits.hooks))


def _is_guard(hook: Hook) -> bool:
    is_ours = PurePath(hook.path).name == GUARD_HOOK and hook.hook_name is HookName.CREATE_RUNTIME
    return is_ours and "verify" in hook.args and "--device" in hook.args


def _names_hardware(edits: Edits) -> bool:
    return any(map(is_uverbs, edits.device_nodes)) or bool(edits.net_devices)

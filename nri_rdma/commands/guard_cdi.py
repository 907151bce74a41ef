"""The guard in the CDI spec of another driver: a container with a device that asks us does not start without what our
key adds, also while the daemon is dead. Pure.

The guard is a hook of the device, not of the spec, whose hooks do not know the device. A device whose key we would pass
over, because it names no RDMA device, has none: nothing would ever be attached for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from nri_rdma.cdi.meaning import is_uverbs
from nri_rdma.cdi.spec import Device, Hook, HookName, Spec
from nri_rdma.text.shares import GUARD_HOOK

HOOK_TIMEOUT_S = 10
"""For the OCI runtime, which then ends the hook and refuses the container; the hook's own question takes less."""


def with_guard(spec: Spec, prefix: str, hook: PurePath, options: Sequence[str] = ()) -> Spec:
    """Return the spec with the guard on each device that asks us, and on no other one. `options` are flags of the hook
    that differ from its defaults. Its own result stays the same.

    The declared version stays, too: every version has hooks."""

    def guarded(device: Device) -> Device:
        others = tuple(it for it in device.edits.hooks if not _is_guard(it))
        args = (GUARD_HOOK, "verify", *options, "--device", spec.kind.qualified(device.name))
        guard = Hook(hook_name=HookName.CREATE_RUNTIME, path=str(hook), args=args, timeout=HOOK_TIMEOUT_S)
        ours = (guard,) if _asks(spec, device, prefix) else ()
        return replace(device, edits=replace(device.edits, hooks=(*others, *ours)))

    return replace(spec, devices=tuple(map(guarded, spec.devices)))


def guarded_devices(spec: Spec) -> tuple[str, ...]:
    """Return the qualified names of the devices that have the guard."""
    return tuple(spec.kind.qualified(it.name) for it in spec.devices if any(map(_is_guard, it.edits.hooks)))


def _is_guard(hook: Hook) -> bool:
    is_ours = PurePath(hook.path).name == GUARD_HOOK and hook.hook_name is HookName.CREATE_RUNTIME
    return is_ours and "verify" in hook.args and "--device" in hook.args


def _asks(spec: Spec, device: Device, prefix: str) -> bool:
    """Return whether a device has our key, which may be the spec's, and names an RDMA device."""
    has_key = any(key == prefix for key, _ in (*device.annotations, *spec.annotations))
    nodes = (*spec.edits.device_nodes, *device.edits.device_nodes)
    return has_key and (any(map(is_uverbs, nodes)) or bool(spec.edits.net_devices or device.edits.net_devices))

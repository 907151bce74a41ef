"""The guard in CDI specs: an OCI hook that refuses a container without the devices that its pod asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nri_rdma.cdi.spec import Hook, HookName
from nri_rdma.text.share_annotations import GUARD_HOOK

HOOK_TIMEOUT_S = 10
"""After this many seconds the OCI runtime kills the hook and refuses the container. The hook gives up earlier by
itself."""


def guard(hook: str, options: Sequence[str], *about: str) -> Hook:
    """Return the guard, an OCI hook that keeps a container from starting without the devices that its pod asked for.
    `hook` is the path of its program, and `options` are flags that differ from the defaults. `about` is one more flag
    with its value: it names what the hook checks, for example ``--device`` and a CDI device."""
    args = (GUARD_HOOK, "verify", *options, *about)
    return Hook(hook_name=HookName.CREATE_RUNTIME, path=hook, args=args, timeout=HOOK_TIMEOUT_S)

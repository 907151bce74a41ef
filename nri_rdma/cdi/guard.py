"""The guard in CDI specs: an OCI hook that refuses a container without the devices that its pod asked for. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nri_rdma.cdi.spec import Hook, HookName
from nri_rdma.text.share_annotations import GUARD_HOOK

HOOK_TIMEOUT_S = 10
"""After this many seconds the OCI runtime kills the hook and refuses the container. The hook itself waits less long."""


def guard(hook: str, options: Sequence[str], *about: str) -> Hook:
    """Return the guard as a hook with the program at this path. `options` are flags that differ from the defaults;
    `about` is a flag with its value, for what the container must have."""
    args = (GUARD_HOOK, "verify", *options, *about)
    return Hook(hook_name=HookName.CREATE_RUNTIME, path=hook, args=args, timeout=HOOK_TIMEOUT_S)

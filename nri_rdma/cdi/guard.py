"""The guard as CDI specs bring it: a hook of the OCI runtime that refuses a container which is not complete. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from nri_rdma.cdi.spec import Hook, HookName
from nri_rdma.text.shares import GUARD_HOOK

HOOK_TIMEOUT_S = 10
"""For the OCI runtime, which then ends the hook and refuses the container; the hook's own question takes less."""


def guard(hook: str, options: Sequence[str], *about: str) -> Hook:
    """Return the hook at this path; `options` are flags that differ from its defaults, `about` says what the container
    has to have: a flag with its value."""
    args = (GUARD_HOOK, "verify", *options, *about)
    return Hook(hook_name=HookName.CREATE_RUNTIME, path=hook, args=args, timeout=HOOK_TIMEOUT_S)

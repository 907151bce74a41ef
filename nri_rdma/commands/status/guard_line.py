"""The lines of `nri-rdma status` about the guard, an OCI hook that keeps a container from starting without its devices,
also while no daemon runs.

The lines combine two sources: what the hook has asked the daemon, and what the runtime's configuration says. Neither is
enough alone: a hook that was just installed has not asked yet, and a hook that has asked may have been removed since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any  # Any: the daemon's JSON document

from nri_rdma.commands.common.screen import age
from nri_rdma.host.guard_setups import Setup


def guard_facts(
    guard: dict[str, Any], setups: Iterable[Setup], now: float, resource: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the lines of `status` about the guard, an OCI hook that keeps a container from starting without its
    devices.

    `setups` says for each runtime handler whether it adds the hook; empty if neither the runtime nor its configuration
    can be read. `resource` is the guard resource, an extended resource that only adds the hook; "" if the kubelet does
    not know it.
    """
    told = tuple(setups)
    guarded = [it.handler for it in told if not it.fault]
    faults = "; ".join(f"{it.handler}: {it.fault}" for it in told if it.fault and it.is_known)
    unknown = "; ".join(f"{it.handler}: {it.fault}" for it in told if not it.is_known)
    contact = _contact(guard, now)
    if guarded:
        yield "Guard", f"createRuntime hook for {', '.join(guarded)}: {contact}"
        if faults:
            yield "", f"WARNING, not guarded: {faults}"
    elif resource:
        yield "Guard", f"hook of containers with the resource {resource}: {contact}"
        if faults:
            yield "", f"WARNING, containers without it are not guarded: {faults}"
    elif faults:
        yield "Guard", f"WARNING, none: while this daemon is dead, pods start without their devices ({faults})"
        if guard.get("last"):
            yield "", f"earlier a createRuntime hook was there: {contact}"
    elif guard.get("asked"):
        yield "Guard", f"createRuntime hook: {contact}"
        unknown = unknown or "no runtime says which handlers have it; `nri-rdma doctor` on the host reads more"
    else:
        yield "Guard", f"WARNING, not known: {contact}; `nri-rdma doctor` on the host reads the runtime's configuration"
    if unknown:
        yield "", f"WARNING, not known: {unknown}"
    if unguarded := guard.get("unguarded"):
        yield "", f"WARNING, {guard['warning']}: {'; '.join(unguarded)}"


def lacking_guard(setups: Iterable[Setup], excluded: Collection[str], resource: str) -> Iterator[str]:
    """Yield a sentence for each runtime handler that does not add the guard, an OCI hook that keeps a container from
    starting without its devices, or for which this is unknown. Handlers in `excluded` need no guard.

    `resource` is an extended resource that adds the hook. If the kubelet serves it, nothing is yielded.
    """
    if resource:
        return
    told = tuple(setups)
    if not told:
        yield "it is not known which handlers have the guard: no runtime answers, and no configuration of one is here"
    for it in told:
        if it.name in excluded or not it.fault:
            continue
        if it.blocks:
            yield f"no container of {it.handler} starts: {it.fault}"
        elif it.is_known:
            yield f"{it.handler} has no guard, so pods may start without their devices: {it.fault}"
        else:
            yield f"it is not known whether {it.handler} has the guard: {it.fault}"


def _contact(guard: dict[str, Any], now: float) -> str:
    """Return words that say how often the guard's OCI hook has asked this daemon, and when a hook last asked since the
    boot."""
    asked, last = guard.get("asked", 0), guard.get("last", 0)
    if not last:
        return "it has asked about no container yet"
    if not asked:
        return f"it has asked about no container since this daemon started, last {age(now - last)} ago"
    refused = f" ({guard['refused']} refused)" if guard["refused"] else ""
    return f"asked about {asked} container{'' if asked == 1 else 's'}{refused}, last {age(now - last)} ago"

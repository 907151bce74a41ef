"""What the daemon's pod may do and sees of its node, and what becomes of pods without each: the rows of a table in
docs/kubernetes.md, each shown by test_chart_privileges.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: a manifest

Spec: TypeAlias = dict[str, Any]
RUNS, BARE = "runs", "runs without its devices"
BEGIN, END = "<!-- privileges -->", "<!-- end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that is taken away from the pod's spec by `take`.

    `annotation`, `share` and `claim` say of a pod that asks in that way that it runs, or words of the event that keeps
    it from that; `doctor` are words of the line that doctor has then, "" for none."""

    what: str
    take: Callable[[Spec], None]
    annotation: str = RUNS
    share: str = RUNS
    claim: str = RUNS
    doctor: str = ""


def _daemon(spec: Spec) -> Spec:
    found: Spec = spec["containers"][0]
    return found


def _without(capability: str) -> Callable[[Spec], None]:
    return lambda spec: _daemon(spec)["securityContext"]["capabilities"]["add"].remove(capability)


def _key(name: str) -> Callable[[Spec], None]:
    return lambda spec: spec.pop(name)


def _mount(name: str, **change: object) -> Callable[[Spec], None]:
    """Take a mount away, or change it."""

    def take(spec: Spec) -> None:
        mounts = _daemon(spec)["volumeMounts"]
        (found,) = (it for it in mounts if it["name"] == name)
        if change:
            found.update(change)
        else:
            mounts.remove(found)

    return take


ROWS = (
    Row(what="nothing", take=lambda _spec: None),
    Row(what="capability SYS_ADMIN", take=_without("SYS_ADMIN")),
    Row(what="capability NET_ADMIN", take=_without("NET_ADMIN")),
    Row(what="`hostNetwork`", take=_key("hostNetwork")),
    Row(what="`hostPID`", take=_key("hostPID")),
    Row(what="mount of `/var/run/netns`", take=_mount("netns")),
    Row(what="`mountPropagation` of `/var/run/netns`", take=_mount("netns", mountPropagation="None")),
    Row(what="mount of the NRI socket's folder", take=_mount("nri")),
    Row(what="mount of `/run/nri-rdma`", take=_mount("state")),
    Row(what="mount of `/sys`", take=_mount("sys")),
    Row(what="mount of `/dev`", take=_mount("dev")),
    Row(what="mount of `/run/udev`", take=_mount("udev")),
    Row(what="mount of `/var/run/cdi`", take=_mount("cdi-0")),
    Row(what="writing to `/var/run/cdi`", take=_mount("cdi-0", readOnly=True)),
    Row(what="mount of the kubelet's folder", take=_mount("kubelet")),
    Row(what="mount of the containerd socket's folder", take=_mount("containerd")),
    Row(what="mount of `hostDir`", take=_mount("host-dir")),
)


def table() -> str:
    """Return the rows as the page has them."""
    lines = ["| Without | Annotation | Share | Claim | doctor |", "|---|---|---|---|---|"]
    lines += [f"| {it.what} | {it.annotation} | {it.share} | {it.claim} | {it.doctor} |" for it in ROWS]
    return "\n".join(lines)


def outcome(phase: str, has_devices: bool, events: Mapping[str, object]) -> str:
    """Return how a pod ended, in the words of the table."""
    if phase == "Running":
        return RUNS if has_devices else BARE
    return "; ".join(map(str, events))

"""What the daemon's pod may do and sees of its node, and what becomes of pods without each: the rows of a table in
docs/kubernetes.md, each shown by test_chart_privileges.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: a manifest

Spec: TypeAlias = dict[str, Any]
RUNS, WAITS = "runs", "waits"
BEGIN, END = "<!-- privileges -->\n", "<!-- end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing that `take` takes away from the pod's spec.

    `annotation`, `share` and `claim` say what becomes of a pod that asks in that way: RUNS, WAITS, or the code
    of the refusal that its events have. `doctor` are words of the line that doctor then has, "" for none."""

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


_DOWN: Mapping[str, str] = {"annotation": WAITS, "share": WAITS, "claim": WAITS}
ROWS = (
    Row(what="(nothing)", take=lambda _spec: None),
    Row(
        what="capability SYS_ADMIN",
        take=_without("SYS_ADMIN"),
        annotation="DEVICES-EXHAUSTED",
        claim="DEVICE-IN-USE",
        doctor="CAP_SYS_ADMIN is missing: pods that ask for a device exclusively are refused",
    ),
    Row(
        what="capability NET_ADMIN",
        take=_without("NET_ADMIN"),
        annotation="PRIVILEGE",
        claim="PRIVILEGE",
        doctor="CAP_NET_ADMIN is missing: pods that ask for a device exclusively are refused",
    ),
    Row(
        what="`hostNetwork`",
        take=_key("hostNetwork"),
        annotation="DEVICES-EXHAUSTED",
        claim=WAITS,
        doctor="this container is not in the host's network namespace",
    ),
    Row(
        what="`hostPID`",
        take=_key("hostPID"),
        doctor="the runtime's process cannot be seen: the daemon assumes that it may set any RLIMIT_MEMLOCK",
    ),
    Row(
        what="`/var/run/netns`",
        take=_mount("netns"),
        annotation="ATTACH-FAILED",
        claim="ATTACH-FAILED",
        doctor="the host's /run/netns is not mounted into this container",
    ),
    Row(
        what="`mountPropagation` of `/var/run/netns`",
        take=_mount("netns", mountPropagation="None"),
        annotation="ATTACH-FAILED",
        claim="ATTACH-FAILED",
        doctor="mounts that the runtime makes in /run/netns do not reach this container",
    ),
    Row(
        what="`/var/run/nri`",
        take=_mount("nri"),
        **_DOWN,
        doctor="the host's /var/run/nri is not mounted into this container",
    ),
    Row(what="`/run/nri-rdma`", take=_mount("state"), **_DOWN, doctor="(the daemon does not start: SETTING)"),
    Row(
        what="`/var/run/cdi`",
        take=_mount("cdi-0"),
        annotation=WAITS,
        share=WAITS,
        claim="CDI-FILE",
        doctor="the host's /var/run/cdi is not mounted into this container",
    ),
    Row(
        what="writing to `/var/run/cdi`",
        take=_mount("cdi-0", readOnly=True),
        annotation=WAITS,
        share=WAITS,
        claim="CDI-FILE",
        doctor="/var/run/cdi cannot be written",
    ),
    Row(
        what="`/var/lib/kubelet`",
        take=_mount("kubelet"),
        annotation=WAITS,
        share=WAITS,
        claim=WAITS,
        doctor="the kubelet's /var/lib/kubelet is not mounted into this container as a whole",
    ),
    Row(what="`/run/containerd`, which releases before 2.3.3 are asked by", take=_mount("containerd")),
    Row(what="`/run/udev`", take=_mount("udev"), doctor="the host's /run/udev is not mounted into this container"),
    Row(
        what="`hostDir`",
        take=_mount("host-dir"),
        annotation=WAITS,
        doctor="is not mounted from the host into this container: containers with",
    ),
)


def table() -> str:
    """Return the rows as the page has them."""
    lines = ["| without | annotation | share | claim | `nri-rdma doctor` |", "|---|---|---|---|---|"]
    for row in ROWS:
        doctor = f"{row.doctor} ..." if row.doctor and not row.doctor.startswith("(") else row.doctor
        lines.append(f"| {row.what} | {row.annotation} | {row.share} | {row.claim} | {doctor} |")
    return "\n".join(lines)

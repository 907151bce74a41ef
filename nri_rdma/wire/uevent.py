"""Uevents: the kernel's reports of devices that are added, removed, moved or changed. Bytes to values, without I/O.

A datagram is ``ACTION@DEVPATH`` and then ``KEY=VALUE`` pairs, each ended by a NUL (lib/kobject_uevent.c). udev sends
its own events to another multicast group; those begin with ``libudev``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nri_rdma.wire.error import WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class Uevent:
    """A uevent. `number` is major and minor of the device's node, None if it has no node; `sequence` grows with every
    event."""

    action: str
    subsystem: str
    name: str
    sequence: int
    number: tuple[int, int] | None


def read_uevent(data: bytes) -> Uevent:
    """Return the event in a datagram of the kernel. Raises WireError if the datagram is not a uevent."""
    head, *rest = data.split(b"\0")
    action, at, path = head.decode(errors="replace").partition("@")
    if not at or not path.startswith("/"):
        raise WireError(f"a uevent begins with {head[:40]!r} instead of ACTION@/DEVPATH")
    pairs = dict(item.decode(errors="replace").split("=", 1) for item in rest if b"=" in item)
    return Uevent(
        action=action,
        subsystem=pairs.get("SUBSYSTEM", ""),
        name=path.rpartition("/")[2],
        sequence=_number(pairs, "SEQNUM"),
        number=(_number(pairs, "MAJOR"), _number(pairs, "MINOR")) if "MAJOR" in pairs else None,
    )


def _number(pairs: Mapping[str, str], key: str) -> int:
    text = pairs.get(key, "")
    if not (text.isascii() and text.isdecimal()):
        raise WireError(f"a uevent has {key}={text[:40]!r}")
    return int(text)

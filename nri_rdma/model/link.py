"""Links as the kernel tells them: with all that a move loses or a pod can change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

STABLE_SECRET: Final = "ipv6/conf/stable_secret"
"""The one of LinkState.sysctls that is not always there, and that changes another thing: who sets it sets addr_gen_mode
to 2 (stable-privacy) with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """An address, a route or a neighbour as the kernel told it: readable for people, whole for the way back.

    `raw` is the kernel's netlink message with all attributes, known to us or not; sent again it restores the thing.
    Two are the same when their `text` is, which holds what identifies them and every attribute that we know.
    """

    text: str
    raw: bytes
    kernel_made: bool
    """Made by the kernel when it likes, perhaps late (IPv6 link-local): restored when missing, never removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkState:
    """A netdev with everything that a move loses or a pod can change.

    `parent` is its bus device (``pci/0000:11:00.0``), "" when virtual; `permanent_mac` is "" when it has none; `master`
    and `lower` are the ifindex of what it is enslaved to and of what it is a child of, in the same namespace, or 0.
    """

    ifindex: int
    name: str
    kind: str
    parent: str
    permanent_mac: str
    mac: str
    mtu: int
    txqlen: int
    alias: str
    alt_names: tuple[str, ...]
    up: bool
    master: int = 0
    lower: int = 0
    xdp: bool = False
    addresses: tuple[Captured, ...] = ()
    routes: tuple[Captured, ...] = ()
    neighbours: tuple[Captured, ...] = ()
    """The permanent ones; what the kernel learned it learns again."""
    settings: tuple[tuple[str, int], ...] = ()
    """Numbers by name (flags, group, GSO and GRO sizes, addr_gen_mode): what this kernel has of them."""
    sysctls: str = ""
    """What the link has for itself under /proc/sys/net, of the families that it has: lines like
    ``ipv4/conf/rp_filter 1``. One text, because journals by the thousand are read at the start. A captured link's only,
    and "" in a journal of a daemon that did not know of them."""
    unreturnable: tuple[str, ...] = ()
    """What of the host depends on this link and could not be restored: such a link is not given away."""


def sysctls_text(values: Mapping[str, str]) -> str:
    """LinkState.sysctls of values by name."""
    return "\n".join(f"{name} {value}" for name, value in values.items())


def sysctls_of(text: str) -> dict[str, str]:
    """Values by name, of LinkState.sysctls."""
    lines = (line.partition(" ") for line in text.splitlines())
    return {name: value for name, _, value in lines}

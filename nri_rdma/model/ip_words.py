"""Addresses, routes and neighbours in the words of iproute2 (`ip address`, `ip route`, `ip neighbour`).

nri-rdma identifies an address, a route or a neighbour by a text with the kernel's numbers
(nri_rdma.model.link.Captured). For people this module replaces the numbers by the words of iproute2. A number without a
word in the tables stays a number.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Final

_TYPES: Final = {
    "1": "", "2": "local", "3": "broadcast", "4": "anycast", "5": "multicast", "6": "blackhole", "7": "unreachable",
    "8": "prohibit", "9": "throw", "10": "nat",
}  # fmt: skip
_PROTOCOLS: Final = {
    "0": "unspec", "1": "redirect", "2": "kernel", "3": "", "4": "static", "8": "gated", "9": "ra", "10": "mrt",
    "11": "zebra", "12": "bird", "16": "dhcp", "18": "keepalived", "42": "babel", "186": "bgp", "187": "isis",
    "188": "ospf", "189": "rip", "192": "eigrp",
}  # fmt: skip
"""RTPROT_BOOT (3), the protocol of routes added by hand, is not shown; `ip route` does not show it, either."""
_SCOPES: Final = {"0": "global", "200": "site", "253": "link", "254": "host", "255": "nowhere"}
_TABLES: Final = {"253": "default", "254": "", "255": "local"}
_METRICS: Final = (
    "", "lock", "mtu", "window", "rtt", "rttvar", "ssthresh", "cwnd", "advmss", "reordering", "hoplimit", "initcwnd",
    "features", "rto_min", "initrwnd", "quickack",
)  # fmt: skip
"""The names of the RTAX_* metrics, by number."""
_METRIC: Final = struct.Struct("=HHI")
_PREFERENCES: Final = {"00": "medium", "01": "high", "03": "low"}
_RTA_METRICS, _RTA_PREF = "attribute-8", "attribute-20"
_FLAGS: Final = {
    0x01: "secondary", 0x02: "nodad", 0x10: "home", 0x100: "mngtmpaddr", 0x200: "noprefixroute", 0x400: "autojoin",
}  # fmt: skip
_PERMANENT = 0x80
_PROTOCOLS_OF_ADDRESSES: Final = {"1": "kernel_lo", "2": "kernel_ra", "3": "kernel_ll"}
_PROXY = 0x08


def ip_words(text: str) -> str:
    """Return `text`, the text of a Captured (an address or a route with the kernel's numbers, for example), as iproute2
    would write it: ``10.0.0.0/24 type 1 proto 2`` becomes ``10.0.0.0/24 proto kernel``. Texts of queueing disciplines
    and forwarding entries are returned unchanged."""
    first, *rest = text.split()
    match rest[:1]:
        case ["type"]:
            return " ".join(filter(None, _route(first, rest)))
        case ["peer"]:
            return " ".join(filter(None, _address(first, _pairs(rest))))
        case _ if first == "neighbour":
            return " ".join(_neighbour(rest[0], _pairs(rest[1:])))
        case _:
            return text


def _route(destination: str, words: list[str]) -> Iterator[str]:
    is_onlink = "onlink" in words
    said = _pairs([word for word in words if word != "onlink"])
    yield _TYPES.get(said.pop("type", ""), "")
    yield "default" if destination in {"0.0.0.0/0", "::/0"} else _host(destination)
    yield _word("via", said)
    yield _word("table", said, _TABLES)
    yield _word("proto", said, _PROTOCOLS)
    scope = said.pop("scope", "0")
    yield f"scope {_SCOPES.get(scope, scope)}" if scope != "0" else ""
    yield _word("src", said)
    yield _word("tos", said, {"0": ""})
    yield _word("metric", said)
    yield "onlink" if is_onlink else ""
    yield from _metrics(said.pop(_RTA_METRICS, ""))
    preference = said.pop(_RTA_PREF, "")
    yield f"pref {_PREFERENCES.get(preference, preference)}" if preference else ""
    yield from (f"{key} {value}" for key, value in said.items())


def _metrics(text: str) -> Iterator[str]:
    """Yield the route metrics in `text`, which is the hexadecimal text of a netlink attribute: ``mtu 4200``, for
    example. A metric without a name is written with its number."""
    data = bytes.fromhex(text)
    while len(data) >= _METRIC.size:
        length, kind, value = _METRIC.unpack_from(data)
        name = _METRICS[kind] if 0 < kind < len(_METRICS) else f"metric-{kind}"
        yield f"{name} {value}"
        data = data[max(_METRIC.size, (length + 3) & ~3) :]


def _address(own: str, said: dict[str, str]) -> Iterator[str]:
    flags = int(said.pop("flags", "0"), 16)
    peer = said.pop("peer", "")
    yield own
    yield f"peer {peer}" if peer not in {own.partition("/")[0], "None"} else ""
    yield _word("broadcast", said, name="brd")
    yield _word("scope", said, _SCOPES)
    yield from (word for bit, word in _FLAGS.items() if flags & bit)
    left = flags & ~(sum(_FLAGS) | _PERMANENT)
    yield f"flags {left:#x}" if left else ""
    yield _word("label", said)
    yield _word("rt_priority", said, name="metric")
    yield _word("proto", said, _PROTOCOLS_OF_ADDRESSES)
    yield from (f"{key} {value}" for key, value in said.items())


def _neighbour(address: str, said: dict[str, str]) -> Iterator[str]:
    yield f"neighbour {address}"
    if int(said.get("flags", "0"), 16) & _PROXY:
        yield "proxy"
    else:
        yield f"lladdr {said.get('lladdr', '')} PERMANENT"


def _word(key: str, said: dict[str, str], names: Mapping[str, str] | None = None, name: str = "") -> str:
    """Remove the key and its value from `said`, and return them as text, such as ``proto kernel``. `names` maps kernel
    numbers to words; `name` is iproute2's name for the key, if it differs. Return "" if the key is missing or if
    iproute2 does not show the value."""
    value = said.pop(key, "")
    shown = (names or {}).get(value, value)
    return f"{name or key} {shown}" if shown else ""


def _host(destination: str) -> str:
    address, _, length = destination.partition("/")
    return address if length == ("128" if ":" in address else "32") else destination


def _pairs(words: list[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=False))

"""The queueing disciplines (qdiscs) and classes of a link, read from rtnetlink's messages; a link loses them when it
moves to another namespace.

Qdiscs that the kernel creates for every link have the handle 0 and come back by themselves. Qdiscs of an administrator
are captured and restored. A link whose qdiscs cannot be restored (filters, hardware offload) is not allocated to pods.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.model.link import Captured
from nri_rdma.wire.netlink import encode_attribute, read_attributes

NEWQDISC: Final = 36  # RTM_*, include/uapi/linux/rtnetlink.h
NEWTCLASS: Final = 40
_GETQDISC, _GETTCLASS, _GETTFILTER = 38, 42, 46
_TCMSG = struct.Struct("=BxxxiIII")  # family, ifindex, handle, parent, info
_U16 = struct.Struct("=H")
_HEADER_BYTES = 16
_FIRST_ATTRIBUTE = _HEADER_BYTES + _TCMSG.size
_KIND, _OPTIONS, _STATS, _XSTATS, _STATS2, _STAB, _PAD, _HW_OFFLOAD = 1, 2, 3, 4, 7, 8, 9, 12  # TCA_*
_INGRESS_BLOCK, _EGRESS_BLOCK = 13, 14
_BPF_NAME = 7  # TCA_BPF_NAME
_COUNTERS = frozenset({_STATS, _XSTATS, _STATS2, _PAD})
_ROOT, _INGRESS = 0xFFFFFFFF, 0xFFFFFFF1  # TC_H_*, include/uapi/linux/pkt_sched.h
_MAJOR = 0xFFFF0000
_CLSACT_SIDES = {0xFFFFFFF2: "ingress", 0xFFFFFFF3: "egress"}

RETURNABLE: Final = frozenset(
    {
        *("bfifo", "clsact", "fq", "htb", "ingress", "mq", "noqueue", "pfifo", "pfifo_fast", "pfifo_head_drop"),
        *("prio", "sfq", "tbf"),
    }
)
"""Kinds of qdiscs that can be restored: the kernel accepts the message that it sent for them, changed only by
`_taken_back`."""
_WITH_CLASSES = frozenset({"htb"})
"""Kinds of qdiscs whose classes an administrator creates and the daemon must restore. For other kinds, the kernel
creates the classes."""
_HTB_INIT = 2  # TCA_HTB_INIT, include/uapi/linux/pkt_sched.h
_HTB_GLOBAL = struct.Struct("=IIIII")  # version, rate2quantum, defcls, debug, direct_pkts
_HTB_VERSION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """The qdiscs, classes and filters of a link. `captured` has qdiscs and classes to restore, parents first.
    `unreturnable` has the reasons why some could not be restored (for LinkState.unreturnable), and `programs` the
    distinct names of eBPF filters."""

    captured: tuple[Captured, ...] = ()
    unreturnable: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()


_NOTHING: Final = Queues()


@dataclass(frozen=True, slots=True)
class _Node:
    """A queueing discipline or a class, from the kernel's message `raw`. `told` are the message's attributes by
    number."""

    raw: bytes
    ifindex: int
    handle: int
    parent: int
    told: Mapping[int, bytes]

    @property
    def kind(self) -> str:
        return self.told.get(_KIND, b"").partition(b"\0")[0].decode(errors="backslashreplace")

    @property
    def is_class(self) -> bool:
        return int(_U16.unpack_from(self.raw, 4)[0]) == NEWTCLASS

    def captured(self) -> Captured:
        what = "class" if self.is_class else "qdisc"
        text = f"{what} {self.kind} {_words(self.handle)} parent {_words(self.parent)}"
        for number, value in self.told.items():
            if number not in _COUNTERS | {_KIND}:
                text += f" attribute-{number} {_without_counters(self.kind, number, value).hex()}"
        return Captured(text=text, raw=self.raw, kernel_made=False)


def read_queues(route: RouteSocket, ifindexes: Collection[int]) -> Mapping[int, Queues]:
    """Return the qdiscs, classes and filters of each link, by ifindex. Raises KernelError if the kernel refuses a
    query, and WireError for a malformed message.

    The qdiscs of all the namespace's links are listed and then selected, because a query of a single link's qdiscs also
    sends an event to every listener. Classes and filters are queried only for links with qdiscs of an administrator.
    """
    wanted = frozenset(ifindexes)
    dump = route.dump(_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0), "list qdiscs", lambda raw: _is_made(raw, wanted))
    made: dict[int, list[_Node]] = {}
    for raw in dump:
        made.setdefault((node := _node(raw)).ifindex, []).append(node)
    return {it: _queues(route, it, made[it]) if it in made else _NOTHING for it in wanted}


def payload_of(thing: Captured, ifindex: int) -> bytes:
    """Return the body of the request that restores or removes a captured qdisc or class: struct tcmsg with the link's
    present ifindex, and attributes without counters."""
    node = _node(thing.raw)
    kept = (
        encode_attribute(number, _taken_back(node.kind, number, value))
        for number, value in node.told.items()
        if number not in _COUNTERS | {_HW_OFFLOAD}
    )
    return _TCMSG.pack(0, ifindex, node.handle, node.parent, 0) + b"".join(kept)


def _is_made(raw: bytes, ifindexes: Collection[int]) -> bool:
    """Return whether an administrator created this qdisc, on one of these links. A qdisc that the kernel created has
    the handle 0."""
    _, ifindex, handle, _, _ = _TCMSG.unpack_from(raw, _HEADER_BYTES)
    return bool(handle) and ifindex in ifindexes


def _queues(route: RouteSocket, ifindex: int, made: Collection[_Node]) -> Queues:
    classes = _classes(route, ifindex, {it.handle for it in made if it.kind in _WITH_CLASSES})
    nodes = [*made, *classes]
    depths, filters = _depths(nodes), _filters(route, ifindex, nodes)
    filtered = (f"has tc filters ({where}), which its move would remove for good" for where in filters)
    return Queues(
        captured=tuple(it.captured() for it in sorted(nodes, key=lambda it: depths[it.is_class, it.handle])),
        unreturnable=tuple(dict.fromkeys((*_lost(made), *filtered))),
        programs=tuple(dict.fromkeys(name for found in filters.values() for name in _program_names(found))),
    )


def _classes(route: RouteSocket, ifindex: int, qdiscs: Collection[int]) -> list[_Node]:
    if not qdiscs:
        return []
    dump = route.dump(_GETTCLASS, _TCMSG.pack(0, ifindex, 0, 0, 0), f"list the classes of link {ifindex}")
    return [it for raw in dump if (it := _node(raw)).handle & _MAJOR in qdiscs]


def _depths(nodes: Collection[_Node]) -> Mapping[tuple[bool, int], int]:
    """Return the depth of each qdisc and class: how many qdiscs and classes are above it in the link's tree. The key is
    a pair: True for a class, and the handle."""
    qdiscs = {it.handle: it for it in nodes if not it.is_class}
    classes = {it.handle: it for it in nodes if it.is_class}

    def above(node: _Node) -> _Node | None:
        if node.parent in classes:
            return classes[node.parent]
        if not node.is_class and node.parent in {_ROOT, _INGRESS}:
            return None
        return qdiscs.get((node.handle if node.is_class else node.parent) & _MAJOR)

    def depth(node: _Node) -> int:
        steps, parent = 0, above(node)
        while parent is not None and steps <= len(nodes):
            steps, parent = steps + 1, above(parent)
        return steps

    return {(it.is_class, it.handle): depth(it) for it in nodes}


def _lost(qdiscs: Collection[_Node]) -> Iterator[str]:
    """Yield, for each of these qdiscs that could not be restored, the reason as a text that continues the link's
    name."""
    for it in qdiscs:
        name = f"the qdisc {it.kind} {_words(it.handle)}"
        if it.kind not in RETURNABLE:
            yield f"has {name}, which could not be restored"
        elif any(it.told.get(_HW_OFFLOAD, b"")):
            yield f"has {name} in hardware, which could not be restored"
        elif _STAB in it.told:
            yield f"has {name} with a table of sizes, which could not be restored"
        elif it.told.keys() & {_INGRESS_BLOCK, _EGRESS_BLOCK}:
            yield f"has {name} with a shared block of filters, which could not be restored"


def _filters(route: RouteSocket, ifindex: int, nodes: Collection[_Node]) -> Mapping[str, list[bytes]]:
    """Return the kernel's messages of a link's filters, by the place to which they are attached. Filters cannot be
    restored after a move, because a message may name an eBPF program or action only by its number."""
    found: dict[str, list[bytes]] = {}
    for it in nodes:
        sides = _CLSACT_SIDES if it.kind == "clsact" else {it.handle: f"at {_words(it.handle)}"}
        for parent, where in sides.items():
            body = _TCMSG.pack(0, ifindex, 0, parent, 0)
            if dump := route.dump(_GETTFILTER, body, f"list the filters of link {ifindex}"):
                found.setdefault(where, []).extend(dump)
    return found


def _program_names(filters: Iterable[bytes]) -> Iterator[str]:
    """Yield the name of each filter that is an eBPF program."""
    for raw in filters:
        told = dict(read_attributes(raw[_FIRST_ATTRIBUTE:]))
        if told.get(_KIND, b"").rstrip(b"\0") == b"bpf" and _OPTIONS in told:
            name = dict(read_attributes(told[_OPTIONS])).get(_BPF_NAME, b"")
            yield name.rstrip(b"\0").decode(errors="replace")


def _node(raw: bytes) -> _Node:
    _, ifindex, handle, parent, _ = _TCMSG.unpack_from(raw, _HEADER_BYTES)
    return _Node(raw, ifindex, handle, parent, dict(read_attributes(raw[_FIRST_ATTRIBUTE:])))


def _without_counters(kind: str, number: int, value: bytes) -> bytes:
    """Return an attribute's bytes without values that change by themselves: htb has a packet counter among its
    options."""
    return _htb(value, direct_packets=0) if (kind, number) == ("htb", _OPTIONS) else value


def _taken_back(kind: str, number: int, value: bytes) -> bytes:
    """Return an attribute's bytes in the form that the kernel accepts in a request. In a message, htb reports the
    version of its code; in a request, it expects the version of its interface."""
    return _htb(value, version=_HTB_VERSION) if (kind, number) == ("htb", _OPTIONS) else value


def _htb(options: bytes, *, version: int | None = None, direct_packets: int | None = None) -> bytes:
    def changed(number: int, value: bytes) -> bytes:
        if number != _HTB_INIT or len(value) != _HTB_GLOBAL.size:
            return value
        told, quantum, default, debug, packets = _HTB_GLOBAL.unpack(value)
        return _HTB_GLOBAL.pack(
            told if version is None else version,
            quantum,
            default,
            debug,
            packets if direct_packets is None else direct_packets,
        )

    return b"".join(encode_attribute(number, changed(number, value)) for number, value in read_attributes(options))


def _words(handle: int) -> str:
    """Return a handle in the notation of the command `tc`, for example "1:10"."""
    if handle in {_ROOT, _INGRESS}:
        return "root" if handle == _ROOT else "ingress"
    major, minor = handle >> 16, handle & 0xFFFF
    return f"{major:x}:{minor:x}" if minor else f"{major:x}:"

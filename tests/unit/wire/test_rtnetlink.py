"""News of links, addresses and routes: which links they are about."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.usage import Change
from nri_rdma.wire import WireError
from nri_rdma.wire.rtnetlink import read_changes


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def message(kind: int, payload: bytes) -> bytes:
    padding = b"\0" * (-len(payload) % 4)
    return struct.pack("=IHHII", 16 + len(payload), kind, 0, 0, 0) + payload + padding


def link(kind: int, ifindex: int, *attributes: bytes) -> bytes:
    return message(kind, struct.pack("=BxHiII", 0, 1, ifindex, 0x1043, 0) + b"".join(attributes))


NAME = attribute(3, b"rail0\0")
ENSLAVED = link(16, 5, NAME, attribute(10, struct.pack("=I", 9)))
CHILD = link(17, 7, attribute(3, b"rail0v\0"), attribute(5, struct.pack("=I", 5)))
ELSEWHERE = link(16, 7, attribute(3, b"veth1\0"), attribute(5, struct.pack("=I", 5)), attribute(37, bytes(4)))
PHYSICAL = link(16, 5, NAME, attribute(56, b"0000:17:00.0\0"))
_OWN, _PEER = bytes((10, 7, 0, 1)), bytes((10, 7, 0, 2))
ADDRESS = message(20, struct.pack("=BBBBI", 2, 24, 0, 0, 5) + attribute(1, _OWN))
PEERS = message(20, struct.pack("=BBBBI", 2, 24, 0, 0, 5) + attribute(1, _PEER) + attribute(2, _OWN))
NO_ADDRESS = message(21, struct.pack("=BBBBI", 2, 24, 0, 0, 5) + attribute(1, _OWN))
DEFAULT = message(24, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0))
OTHER = message(25, struct.pack("=BBBBBBBBI", 2, 16, 0, 0, 254, 3, 0, 1, 0))
RULE = message(32, struct.pack("=BBBBBBBBI", 2, 0, 32, 0, 101, 0, 0, 1, 0))
RULE_GONE = message(
    33, struct.pack("=BBBBBBBBI", 10, 0, 0, 0, 252, 0, 0, 1, 0) + attribute(15, struct.pack("=I", 4711))
)
RULE_OF_VRFS = message(32, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 0, 0, 0, 1, 0) + attribute(19, b"\1"))
QDISC = message(36, struct.pack("=BxxxiIII", 0, 5, 0x10000, 0xFFFFFFFF, 0))
FILTER = message(45, struct.pack("=BxxxiIII", 0, 5, 1, 0xFFFFFFF2, 0))
SHARED_FILTER = message(44, struct.pack("=BxxxiIII", 0, -1, 1, 7, 0))


@pytest.mark.parametrize(
    ("datagram", "changes"),
    [
        (ENSLAVED, [Change(ifindexes=frozenset({5, 9}), name="rail0")]),
        (CHILD, [Change(ifindexes=frozenset({5, 7}), name="rail0v")]),
        (ELSEWHERE, [Change(ifindexes=frozenset({7}), name="veth1")]),
        (PHYSICAL, [Change(ifindexes=frozenset({5}), name="rail0", is_physical=True)]),
        (ADDRESS, [Change(ifindexes=frozenset({5}), address=_OWN)]),
        (PEERS, [Change(ifindexes=frozenset({5}), address=_OWN)]),
        (NO_ADDRESS, [Change(ifindexes=frozenset({5}))]),
        (DEFAULT, [Change(is_default_route=True)]),
        (OTHER, [Change()]),
        (RULE, [Change(rule_table=101)]),
        (RULE_GONE, [Change(rule_table=4711)]),
        (RULE_OF_VRFS, [Change(rule_table=0)]),
        (QDISC, [Change(ifindexes=frozenset({5}))]),
        (FILTER, [Change(ifindexes=frozenset({5}))]),
        (SHARED_FILTER, [Change()]),
        (message(28, bytes(12)), []),
        (ADDRESS + DEFAULT, [Change(ifindexes=frozenset({5}), address=_OWN), Change(is_default_route=True)]),
        (b"", []),
    ],
    ids=[
        "enslaved",
        "child",
        "of another namespace",
        "physical",
        "address",
        "peer",
        "no address",
        "default route",
        "route",
        "rule",
        "rule gone",
        "rule of VRFs",
        "qdisc",
        "filter",
        "shared filter",
        "neighbour",
        "two",
        "none",
    ],
)
def test_a_change_tells_what_it_is_about(datagram: bytes, changes: list[Change]) -> None:
    assert list(read_changes(datagram)) == changes


@pytest.mark.parametrize(
    "datagram",
    [b"\1", ADDRESS[:-1], message(16, b"short"), message(24, b""), link(16, 5, struct.pack("=HH", 200, 3))],
    ids=["no header", "cut", "a short link", "an empty route", "an attribute that is longer"],
)
def test_what_is_no_message_is_refused(datagram: bytes) -> None:
    with pytest.raises(WireError):
        list(read_changes(datagram))


@given(st.binary(max_size=200) | st.builds(lambda cut, data: PHYSICAL[:cut] + data, st.integers(0, 80), st.binary()))
def test_whatever_comes_is_changes_or_a_wire_error(data: bytes) -> None:
    try:
        list(read_changes(data))
    except WireError:
        return

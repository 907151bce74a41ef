"""Rules are read from bytes; that they are the kernel's is for the contract suite."""

import struct
from ipaddress import ip_network

import pytest

from nri_rdma.attach.ops import AddRule
from nri_rdma.host.netlink.routes.route_requests import add_rule_request
from nri_rdma.host.netlink.routes.rules import parse_rule
from nri_rdma.model.network import RoutingRule
from nri_rdma.wire.netlink import encode_attribute, encode_request, encode_u32

RULES = (
    RoutingRule(version=4, priority=5, table=7),
    RoutingRule(version=6, priority=6, table=4711, source=ip_network("fd00::/64"), iif="rail0", invert=True),
    RoutingRule(version=4, priority=7, table=254, destination=ip_network("10.0.0.0/8"), suppress_prefix_length=0),
    RoutingRule(version=4, priority=8, table=100, oif="rail0", fwmark=0x10, fwmask=0xFF),
)


def _message(rule: RoutingRule, more: bytes = b"") -> bytes:
    return encode_request(32, 0, 1, add_rule_request(AddRule(rule=rule)).body + more)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_what_is_added_is_read_back(rule: RoutingRule) -> None:
    known = parse_rule(_message(rule))
    assert (known.rule, known.foreign) == (rule, "")


@pytest.mark.parametrize(
    ("attribute", "words"),
    [
        (encode_attribute(22, b"\x06"), "ipproto"),
        (encode_attribute(23, struct.pack("=HH", 1, 2)), "sport"),
        (encode_u32(13, 4), "suppress_ifgroup"),
        (encode_attribute(19, b"\x01"), "l3mdev"),
        (encode_u32(77, 0), "attribute 77"),
    ],
)
def test_what_cannot_be_copied_is_named(attribute: bytes, words: str) -> None:
    assert parse_rule(_message(RULES[0], attribute)).foreign == words


def test_what_the_kernel_says_of_every_rule_is_nothing_special() -> None:
    said = encode_u32(13, 0xFFFFFFFF) + encode_u32(14, 0xFFFFFFFF) + encode_u32(11, 0) + encode_attribute(19, b"\0")
    assert parse_rule(_message(RULES[0], said)).foreign == ""
    assert parse_rule(_message(RULES[0], said)).rule == RULES[0]


def test_a_rule_that_looks_nothing_up_is_named() -> None:
    message = bytearray(_message(RULES[0]))
    message[16 + 7] = 6
    message[16 + 3] = 0x10
    assert parse_rule(bytes(message)).foreign == "blackhole, tos 0x10"

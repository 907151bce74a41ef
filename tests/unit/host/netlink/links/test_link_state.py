"""A link's message, laid out by hand as the kernel does, and the bytes of the requests that change a link."""

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.attach.ops import AddAltName, DropAltName, SetLink
from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links.link_state import (
    UNREADABLE,
    add_alt_name_request,
    change_request,
    drop_alt_name_request,
    move_request,
    number_of,
    parse_link,
    parse_readable,
    parse_start,
    read_link,
    read_links,
    tied_to,
)
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.wire import WireError
from tests.unit.host.netlink.made_messages import Scripted, attribute, link, u32

# IFLA_*, include/uapi/linux/if_link.h
ADDRESS, IFNAME, MTU, LINK, MASTER, TXQLEN, LINKINFO, ALIAS, NET_NS_FD = 1, 3, 4, 5, 10, 13, 18, 20, 28
LINK_NETNSID, XDP, NEW_IFINDEX, PROP_LIST, ALT_IFNAME, PERM_ADDRESS, PARENT, PARENT_BUS = 37, 43, 49, 52, 53, 54, 56, 57
NESTED = 0x8000
UP, BROADCAST = 0x1, 0x2
NAME = attribute(IFNAME, b"rail0\0")
MAC = attribute(ADDRESS, bytes.fromhex("021100000001"))
BROKEN = struct.pack("=HH", 400, ALIAS)
"""An attribute that is longer than its message."""


def kind(name: bytes) -> bytes:
    return attribute(LINKINFO, attribute(1, name + b"\0"))


def test_everything_of_a_link_is_read() -> None:
    names = b"".join(attribute(ALT_IFNAME, name) for name in (b"enp1s0\0", b"odd\xff\0"))
    state = parse_link(
        link(
            5,
            NAME,
            MAC,
            u32(MTU, 4200),
            u32(TXQLEN, 1000),
            u32(MASTER, 9),
            u32(LINK, 4),
            attribute(ALIAS, b"storage\0"),
            kind(b"vlan"),
            attribute(PROP_LIST | NESTED, names),
            attribute(PERM_ADDRESS, bytes.fromhex("0242ac110002")),
            attribute(PARENT, b"0000:17:00.0\0"),
            attribute(PARENT_BUS, b"pci\0"),
            attribute(XDP | NESTED, attribute(2, b"\2")),
            flags=UP | BROADCAST,
        )
    )
    assert (state.ifindex, state.name, state.kind, state.up) == (5, "rail0", "vlan", True)
    assert (state.mac, state.permanent_mac) == ("02:11:00:00:00:01", "02:42:ac:11:00:02")
    assert (state.mtu, state.txqlen, state.master, state.lower) == (4200, 1000, 9, 4)
    assert (state.alias, state.alt_names) == ("storage", ("enp1s0", "odd\udcff"))
    assert (state.parent, state.xdp) == ("pci/0000:17:00.0", True)


def test_a_link_that_says_little_has_empty_values() -> None:
    state = parse_link(link(1, attribute(IFNAME, b"lo\0"), attribute(XDP | NESTED, attribute(2, b"\0"))))
    assert (state.name, state.kind, state.parent, state.mac, state.permanent_mac) == ("lo", "", "", "", "")
    assert (state.up, state.xdp, state.master, state.lower, state.alt_names) == (False, False, 0, 0, ())


@pytest.mark.parametrize(
    "attributes",
    [
        (u32(LINK, 8), kind(b"veth")),
        (u32(LINK, 8), kind(b"macvlan"), u32(LINK_NETNSID, 0)),
        (u32(LINK, 5), kind(b"ipoib")),
    ],
    ids=["peer", "in another namespace", "itself"],
)
def test_a_number_that_is_no_parents_in_this_namespace_is_no_lower_link(attributes: tuple[bytes, ...]) -> None:
    assert parse_link(link(5, NAME, *attributes)).lower == 0


def test_a_message_that_cannot_be_parsed_is_left_out_and_hides_no_other() -> None:
    messages = [link(4, attribute(IFNAME, b"a\0")), link(5, NAME, BROKEN), link(6, attribute(IFNAME, b"b\0"))]
    assert [state.name for state in parse_readable(messages)] == ["a", "b"]
    with pytest.raises(WireError):
        parse_link(messages[1])


def test_of_a_message_that_cannot_be_parsed_the_start_is_read() -> None:
    state = parse_start(link(5, NAME, MAC, u32(MTU, 1400), u32(LINK, 4), u32(MASTER, 9), BROKEN, flags=UP))
    assert (state.ifindex, state.name, state.kind) == (5, "rail0", UNREADABLE)
    assert (state.mac, state.mtu, state.lower, state.master, state.up) == ("02:11:00:00:00:01", 1400, 4, 9, True)


def test_what_follows_a_wrong_length_does_not_replace_the_start() -> None:
    assert parse_start(link(5, NAME, attribute(IFNAME, b"mine\0"))).name == "rail0"


def test_a_long_message_whose_nested_length_has_wrapped_is_refused() -> None:
    """nla_len has 16 bits: what is nested then stands beside the link's own attributes."""
    sources = b"".join(attribute(4, bytes(6)) for _ in range(6_000))
    assert len(sources) > 0xFFFF
    with pytest.raises(WireError, match="an attribute is repeated"):
        parse_link(link(5, NAME, sources))
    with pytest.raises(WireError, match="an attribute is repeated"):
        parse_link(link(5, attribute(IFNAME, b"a\0"), NAME, attribute(200, bytes(65_000)), attribute(201, bytes(900))))


def test_a_long_message_that_repeats_nothing_is_read() -> None:
    names = attribute(PROP_LIST | NESTED, b"".join(attribute(ALT_IFNAME, b"x" * 127 + b"\0") for _ in range(480)))
    message = link(5, NAME, names, attribute(200, bytes(8_000)))
    assert len(message) > 0xFFFF
    assert len(parse_link(message).alt_names) == 480


@given(st.binary(max_size=120))
def test_any_bytes_after_the_header_are_read_or_refused(data: bytes) -> None:
    message = link(5, NAME, data)
    assert parse_start(message).name == "rail0"
    try:
        assert parse_readable([message]) == (parse_link(message),)
    except WireError:
        assert parse_readable([message]) == ()


def test_links_with_masters_slaves_and_children_are_tied() -> None:
    plain, bond, slave = link(1), link(9), link(5, u32(MASTER, 9))
    child, fellow = link(7, u32(LINK, 5)), link(6, u32(MASTER, 9))
    messages = [plain, bond, slave, child, fellow]
    assert [number_of(it) for it in tied_to({5}, messages)] == [9, 5, 7]
    assert [number_of(it) for it in tied_to({9}, messages)] == [9, 5, 6]
    assert tied_to(set(), messages) == []


def test_a_link_whose_number_means_something_in_a_pattern_is_found() -> None:
    number = int.from_bytes(b".*+(", "little")
    other = link(7, u32(LINK, int.from_bytes(b"xxx(", "little")))
    assert tied_to({number}, [link(number), other]) == [link(number)]


def test_links_are_asked_for_without_their_statistics() -> None:
    kernel = Scripted({18: [link(5, NAME), link(6)]})
    assert read_links(kernel) == [link(5, NAME), link(6)]
    assert read_link(kernel, 5) == link(5, NAME)
    without = struct.pack("=HHI", 8, 29, 0x8)  # IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS
    assert kernel.asked == [(18, struct.pack("=BxHiII", 0, 0, number, 0, 0) + without) for number in (0, 5)]


def test_this_kernel_shows_its_loopback() -> None:
    with RouteSocket() as route:
        states = parse_readable(read_links(route))
        (lo,) = (state for state in states if state.name == "lo")
        assert parse_link(read_link(route, lo.ifindex)) == lo
        with pytest.raises(KernelError) as caught:
            read_link(route, 0x7FFFFFF0)
    assert (lo.ifindex, lo.mac, lo.kind, lo.mtu) == (1, "00:00:00:00:00:00", "", 65536)
    assert caught.value.errno == errno.ENODEV


HEADER = struct.pack("=BxHiII", 0, 0, 5, 0, 0)
"""struct ifinfomsg of link 5 that changes no flag."""


@pytest.mark.parametrize(
    ("change", "body"),
    [
        (SetLink(), HEADER),
        (SetLink(up=True), struct.pack("=BxHiII", 0, 0, 5, 1, 1)),
        (SetLink(up=False), struct.pack("=BxHiII", 0, 0, 5, 0, 1)),
        (SetLink(mac="02:11:00:00:00:01"), HEADER + b"\x0a\0\x01\0\x02\x11\0\0\0\x01\0\0"),
        (SetLink(name="r\udcff"), HEADER + b"\x07\0\x03\0r\xff\0\0"),
        (SetLink(mtu=1400), HEADER + b"\x08\0\x04\0\x78\x05\0\0"),
        (SetLink(txqlen=0), HEADER + b"\x08\0\x0d\0\0\0\0\0"),
        (SetLink(alias="one"), HEADER + b"\x07\0\x14\0one\0"),
        (SetLink(alias=""), HEADER + b"\x04\0\x14\0"),
    ],
    ids=["nothing", "up", "down", "mac", "name", "mtu", "txqlen", "alias", "no alias"],
)
def test_a_change_is_these_bytes(change: SetLink, body: bytes) -> None:
    request = change_request(5, change)
    assert (request.kind, request.flags, request.body) == (16, 0, body)
    assert request.operation == f"set link 5: {change.describe()}"


def test_a_move_names_namespace_name_and_number() -> None:
    asked = HEADER + b"\x08\0\x1c\0\x07\0\0\0" + b"\x0a\0\x03\0rdma0\0\0\0"
    request = move_request(5, 7, "rdma0", 0, "move link 5")
    assert (request.kind, request.body, request.operation) == (16, asked, "move link 5")
    assert move_request(5, 7, "rdma0", 12, "move link 5").body == asked + b"\x08\0\x31\0\x0c\0\0\0"


def test_an_alternative_name_is_added_after_the_others_and_removed() -> None:
    body = HEADER + b"\x10\0\x34\x80" + b"\x0b\0\x35\0enp1s0\0\0"
    added = add_alt_name_request(5, AddAltName(name="enp1s0"))
    assert (added.kind, added.flags, added.body) == (108, 0x400 | 0x200 | 0x800, body)  # CREATE, EXCL, APPEND
    removed = drop_alt_name_request(5, DropAltName(name="enp1s0"))
    assert (removed.kind, removed.flags, removed.body) == (109, 0, body)

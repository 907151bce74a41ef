"""Routes as the kernel's bytes: which are looked at, what is read of them, and what a host could not restore."""

import errno
import socket
import struct
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.routes import routes
from nri_rdma.host.netlink.routes.routes import (
    Route,
    captured_route,
    captured_routes,
    default_links,
    parse_route,
    read_routes,
    read_routes_of,
    unreturnable,
)
from tests.unit.host.netlink.made_messages import DONE, attribute, error, message, route, u32

V4, V6 = 2, 10  # AF_INET, AF_INET6
DST, OIF, GATEWAY, PRIORITY, PREFSRC, MULTIPATH, TABLE, EXPIRES, NH_ID = 1, 4, 5, 6, 7, 9, 15, 23, 30  # RTA_*
CACHEINFO, VIA = 12, 18
NET, OWN, HOP = bytes((10, 5, 0, 0)), bytes((10, 0, 0, 1)), bytes((10, 0, 0, 9))
LOCAL_TABLE, KERNEL, STATIC, ANNOUNCED = 255, 2, 4, 9  # RT_TABLE_LOCAL, RTPROT_*


def paths(*ifindexes: int) -> bytes:
    """struct rtnexthop (len, flags, hops, ifindex), each with its gateway."""
    hops = (struct.pack("=HBBI", 16, 0, 0, ifindex) + attribute(GATEWAY, HOP) for ifindex in ifindexes)
    return attribute(MULTIPATH, b"".join(hops))


def parsed(raw: bytes) -> Route:
    return parse_route(raw)


def test_everything_of_a_route_is_read() -> None:
    raw = route(V4, 16, attribute(DST, NET), u32(OIF, 5), table=100, proto=STATIC, scope=253, kind=1, flags=4)
    found = parsed(raw)
    assert (found.raw, found.family, found.prefix, found.table, found.proto) == (raw, V4, 16, 100, STATIC)
    assert (found.scope, found.type, found.flags, found.tos) == (253, 1, 4, 0)
    assert (found.destination, found.link, found.paths) == ("10.5.0.0/16", 5, frozenset())
    assert (found.get(DST), found.get(GATEWAY)) == (NET, b"")


def test_the_links_of_a_multipath_route_are_its_paths() -> None:
    found = parsed(route(V4, 16, attribute(DST, NET), paths(5, 7)))
    assert (found.link, found.paths) == (0, frozenset({5, 7}))


def test_a_broken_path_ends_the_paths() -> None:
    broken = attribute(MULTIPATH, struct.pack("=HBBI", 0, 0, 0, 5) + struct.pack("=HBBI", 8, 0, 0, 7))
    assert parsed(route(V4, 16, broken)).paths == {5}


@pytest.mark.parametrize(
    ("raw", "links"),
    [
        (route(V4, 0, u32(OIF, 5)), {5}),
        (route(V6, 0, paths(5, 7)), {5, 7}),
        (route(V4, 0, kind=7), set()),  # RTN_UNREACHABLE
        (route(V4, 0, u32(OIF, 5), kind=6), set()),  # RTN_BLACKHOLE
        (route(V4, 16, attribute(DST, NET), u32(OIF, 5)), set()),
        (route(V4, 0), set()),
    ],
    ids=["one link", "paths", "unreachable", "blackhole", "no default", "no link"],
)
def test_a_default_route_leads_to_links(raw: bytes, links: set[int]) -> None:
    assert parsed(raw).default_links == links
    assert default_links([parsed(raw), parsed(route(V4, 0, u32(OIF, 9)))]) == links | {9}


def test_only_an_ipv6_route_can_be_announced() -> None:
    assert parsed(route(V6, 0, proto=ANNOUNCED)).is_announced
    assert not parsed(route(V4, 0, proto=ANNOUNCED)).is_announced
    assert not parsed(route(V6, 0, proto=STATIC)).is_announced


@pytest.mark.parametrize(("family", "text"), [(V4, "0.0.0.0/0"), (V6, "::/0")])
def test_the_destination_of_a_default_route_is_everywhere(family: int, text: str) -> None:
    assert parsed(route(family, 0)).destination == text


# What is captured


def text_of(raw: bytes) -> str:
    found = captured_route(parsed(raw))
    assert found is not None
    assert found.raw == raw
    return found.text


def test_a_route_is_told_with_every_attribute_but_its_link_and_age() -> None:
    raw = route(
        V4,
        16,
        attribute(DST, NET),
        u32(TABLE, 1000),
        u32(OIF, 5),
        attribute(GATEWAY, HOP),
        attribute(PREFSRC, OWN),
        u32(PRIORITY, 50),
        attribute(CACHEINFO, bytes(28)),
        u32(EXPIRES, 9),
        attribute(77, b"\xab"),
        table=252,
        proto=STATIC,
        flags=0x04,
    )
    assert text_of(raw) == (
        "10.5.0.0/16 type 1 proto 4 scope 0 tos 0 onlink table 1000 via 10.0.0.9 src 10.0.0.1 metric 50 attribute-77 ab"
    )


def test_the_same_route_over_another_link_has_the_same_text() -> None:
    first, second = (route(V4, 16, attribute(DST, NET), u32(OIF, ifindex)) for ifindex in (5, 9))
    assert text_of(first) == text_of(second)


@pytest.mark.parametrize(
    "raw", [route(V6, 128, flags=0x200), route(V4, 32, table=LOCAL_TABLE, proto=KERNEL)], ids=["clone", "local"]
)
def test_what_the_kernel_keeps_for_itself_is_not_captured(raw: bytes) -> None:
    assert captured_route(parsed(raw)) is None


def test_a_route_that_somebody_put_into_the_local_table_is_captured() -> None:
    assert text_of(route(V4, 32, attribute(DST, OWN), table=LOCAL_TABLE, proto=STATIC)).startswith("10.0.0.1/32")


@pytest.mark.parametrize(
    ("destination", "proto", "is_kernels"),
    [("fe80::", KERNEL, True), ("fe80::", STATIC, False), ("fd00::", KERNEL, False)],
)
def test_the_kernel_makes_link_local_routes(destination: str, proto: int, is_kernels: bool) -> None:
    found = captured_route(parsed(route(V6, 64, attribute(DST, ip_address(destination).packed), proto=proto)))
    assert found is not None
    assert found.kernel_made == is_kernels


@pytest.mark.parametrize(
    "gateway",
    [attribute(GATEWAY, HOP), attribute(VIA, struct.pack("=H", V6) + ip_address("fe80::9").packed)],
    ids=["of its family", "of the other"],
)
def test_routes_of_a_link_come_connected_ones_first(gateway: bytes) -> None:
    through = route(V4, 0, u32(OIF, 5), gateway)
    connected = route(V4, 16, attribute(DST, NET), u32(OIF, 5))
    others = route(V4, 16, attribute(DST, NET), u32(OIF, 6))
    found = captured_routes([parsed(it) for it in (through, others, connected)], 5)
    assert [it.raw for it in found] == [connected, through]


# What could not be restored


def test_a_host_would_lose_the_groups_of_multicast_addresses() -> None:
    own = {OWN, b"", ip_address("224.5.5.5").packed, ip_address("ff05::77").packed, ip_address("fd00::1").packed}
    assert unreturnable(5, own, ()) == (
        "has the multicast address 224.5.5.5, whose group the kernel would not join again",
        "has the multicast address ff05::77, whose group the kernel would not join again",
    )


def test_a_host_would_lose_multipath_routes_next_hop_objects_and_others_sources() -> None:
    to = attribute(DST, NET)
    found = unreturnable(
        5,
        {OWN},
        [
            parsed(route(V4, 16, to, paths(5, 7))),
            parsed(route(V4, 17, to, u32(OIF, 5), u32(NH_ID, 3))),
            parsed(route(V4, 18, to, u32(OIF, 6), attribute(PREFSRC, OWN))),
            parsed(route(V4, 19, to, u32(OIF, 5), attribute(PREFSRC, OWN))),
            parsed(route(V4, 20, to, paths(6, 7))),
            parsed(route(V4, 21, to, u32(OIF, 6), u32(NH_ID, 3))),
            parsed(route(V4, 22, to, u32(OIF, 6), attribute(PREFSRC, HOP))),
            parsed(route(V4, 32, to, u32(OIF, 1), attribute(PREFSRC, OWN), table=LOCAL_TABLE)),
        ],
    )
    assert found == (
        "has the source address for the route 10.5.0.0/18 through another link",
        "is used by the multipath route 10.5.0.0/16",
        "is used by the route 10.5.0.0/17 through a next hop object",
    )


# Reading


class Kernel:
    """The other ends of the sockets that are asked, one per request; has the answers of one dump after the other."""

    def __init__(self, dumps: list[list[bytes]], *, news_at: int = -1) -> None:
        self._dumps, self._news_at = dumps, news_at
        self.asked = 0
        self._ends: list[socket.socket] = []

    def open(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ends.append(theirs)
        if len(self._ends) % 2:  # the first of two is asked, the second hears the news
            for datagram in self._dumps[self.asked]:
                theirs.send(datagram)
            self.asked += 1
        elif self.asked - 1 == self._news_at:
            theirs.send(b"news")
        return _Unbound(ours)

    def close(self) -> None:
        for end in self._ends:
            end.close()


class _Unbound(socket.socket):
    """A socket that has no netlink groups, and none of netlink's options."""

    def __init__(self, other: socket.socket) -> None:
        super().__init__(fileno=other.detach())

    def bind(self, _address: object) -> None:
        """It hears what its other end sends."""

    def setsockopt(self, *_option: object) -> None:
        """What is asked for strictly is answered by the test."""


Answering = Callable[..., Kernel]
DEFAULT = route(V4, 0, u32(OIF, 3))
OURS = route(V4, 16, attribute(DST, NET), u32(OIF, 5))
OTHERS = route(V4, 16, attribute(DST, NET), u32(OIF, 6))
SOURCE = route(V4, 17, attribute(DST, NET), u32(OIF, 6), attribute(PREFSRC, OWN))


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Answering:
    def make(*dumps: list[bytes], news_at: int = -1) -> Kernel:
        kernel = Kernel(list(dumps), news_at=news_at)
        request.addfinalizer(kernel.close)
        monkeypatch.setattr(routes, "_open", kernel.open)
        return kernel

    return make


def test_default_routes_and_those_of_the_links_and_addresses_are_read(answering: Answering) -> None:
    answering([OTHERS + DEFAULT + OURS, SOURCE + OTHERS, DONE])
    assert [it.raw for it in read_routes({5}, {OWN})] == [DEFAULT, OURS, SOURCE]


def test_where_nothing_is_asked_about_default_routes_are_read(answering: Answering) -> None:
    answering([OTHERS + DEFAULT + OURS + DONE])
    assert [it.raw for it in read_routes((), ())] == [DEFAULT]


def test_all_routes_of_a_link_that_the_kernel_lists_are_read(answering: Answering) -> None:
    answering([OURS + SOURCE, DONE])
    assert [it.raw for it in read_routes_of(5)] == [OURS, SOURCE]


def test_an_interrupted_list_is_read_again(answering: Answering) -> None:
    interrupted = message(24, OURS[16:], 2 | 0x10)  # NLM_F_DUMP_INTR
    kernel = answering([interrupted, DONE], [OURS + DONE])
    assert [it.raw for it in read_routes({5}, ())] == [OURS]
    assert kernel.asked == 2


def test_a_long_list_beside_news_of_ipv6_routes_is_read_again(answering: Answering) -> None:
    kernel = answering([OURS, OTHERS, DONE], [OURS, DEFAULT, DONE], news_at=0)
    assert [it.raw for it in read_routes({5}, ())] == [OURS, DEFAULT]
    assert kernel.asked == 2


def test_a_list_in_one_datagram_is_whole_whatever_the_news(answering: Answering) -> None:
    kernel = answering([OURS, DONE], news_at=0)
    assert [it.raw for it in read_routes({5}, ())] == [OURS]
    assert kernel.asked == 1


def test_a_refusal_is_an_error(answering: Answering) -> None:
    answering([error(errno.EINVAL)])
    with pytest.raises(KernelError, match="list routes: EINVAL") as caught:
        read_routes({5}, ())
    assert caught.value.errno == errno.EINVAL


def test_this_kernel_lists_the_routes_of_its_loopback() -> None:
    found = read_routes_of(1)
    loopback = ip_address("127.0.0.0").packed
    assert any(it.get(DST) == loopback and it.prefix == 8 and it.table == LOCAL_TABLE for it in found)
    assert all(it.link == 1 for it in found)
    bodies = {it.raw[16:] for it in read_routes({1}, ())}  # a header also says that a list is filtered
    assert {it.raw[16:] for it in found} <= bodies

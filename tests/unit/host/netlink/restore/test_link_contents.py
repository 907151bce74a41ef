"""Addresses and neighbours as the kernel lays them out: which are captured, and what identifies them."""

import struct
from ipaddress import ip_address, ip_interface

import pytest

from nri_rdma.attach.ops import AddAddress
from nri_rdma.host.netlink.restore.link_contents import (
    NTF_PROXY,
    AddressMessage,
    add_address_request,
    captured_addresses,
    read_addresses,
    read_neighbours,
)
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.model.link import Captured
from tests.unit.host.netlink.made_messages import Scripted, address, attribute, neighbour, u32

V4, V6 = 2, 10  # AF_INET, AF_INET6
ADDRESS, LOCAL, LABEL, BROADCAST, CACHEINFO, FLAGS, PRIORITY, PROTO = 1, 2, 3, 4, 6, 8, 9, 11  # IFA_*, if_addr.h
OWN, PEER = ip_address("10.0.0.1").packed, ip_address("10.0.0.2").packed
OWN6 = ip_address("fd00::1").packed


def captured(raw: bytes) -> Captured | None:
    found = captured_addresses([AddressMessage(5, b"", raw)])
    return found[0] if found else None


def text(raw: bytes) -> str:
    found = captured(raw)
    assert found is not None
    assert found.raw == raw
    return found.text


def test_an_address_is_told_with_all_that_identifies_it() -> None:
    raw = address(
        V4,
        24,
        5,
        attribute(ADDRESS, PEER),
        attribute(LOCAL, OWN),
        attribute(BROADCAST, bytes((10, 0, 0, 255))),
        attribute(LABEL, b"rail0:1\0"),
        u32(FLAGS, 0x280),
        u32(PRIORITY, 50),
        attribute(CACHEINFO, b"\xff" * 8 + bytes(8)),
        attribute(PROTO, b"\x07"),
        flags=0x80,
        scope=253,
    )
    assert text(raw) == (
        "10.0.0.1/24 peer 10.0.0.2 scope 253 flags 0x280 broadcast 10.0.0.255 label rail0:1 rt_priority 50 proto 7"
    )


def test_an_ipv6_address_stands_in_another_attribute() -> None:
    assert text(address(V6, 64, 5, attribute(ADDRESS, OWN6), flags=0x80)) == (
        "fd00::1/64 peer fd00::1 scope 0 flags 0x80"
    )


@pytest.mark.parametrize("flag", [0x04, 0x08, 0x20, 0x40, 0x800])
def test_flags_that_pass_do_not_make_it_another_address(flag: int) -> None:
    """Optimistic, dadfailed, deprecated, tentative, stable-privacy."""
    settled = address(V6, 64, 5, attribute(ADDRESS, OWN6), u32(FLAGS, 0x80))
    passing = address(V6, 64, 5, attribute(ADDRESS, OWN6), u32(FLAGS, 0x80 | flag))
    assert text(passing) == text(settled)
    assert text(address(V6, 64, 5, attribute(ADDRESS, OWN6), u32(FLAGS, 0x80 | 0x02))) != text(settled)  # nodad


def test_a_temporary_address_is_the_kernels_and_a_secondary_one_is_not() -> None:
    assert captured(address(V6, 64, 5, attribute(ADDRESS, OWN6), u32(FLAGS, 0x01))) is None
    assert captured(address(V6, 64, 5, attribute(ADDRESS, OWN6), flags=0x01)) is None
    assert text(address(V4, 24, 5, attribute(LOCAL, OWN), attribute(ADDRESS, OWN), flags=0x01)).endswith("flags 0x1")


def test_ipv6_addresses_are_captured_last_one_first_as_the_kernel_puts_a_new_one_before_the_others() -> None:
    ipv4 = [address(V4, 24, 5, attribute(LOCAL, it), attribute(ADDRESS, it)) for it in (OWN, PEER)]
    ipv6 = [address(V6, 64, 5, attribute(ADDRESS, bytes(15) + bytes([number]))) for number in (3, 2, 1)]
    found = captured_addresses(AddressMessage(5, b"", raw) for raw in (*ipv4, *ipv6))
    assert [it.raw for it in found] == [*ipv4, *reversed(ipv6)]


@pytest.mark.parametrize(("proto", "is_kernels"), [(0, False), (1, True), (2, True), (3, True), (4, False)])
def test_the_kernel_says_which_addresses_it_made(proto: int, is_kernels: bool) -> None:
    found = captured(address(V6, 64, 5, attribute(ADDRESS, OWN6), attribute(PROTO, bytes([proto]))))
    assert found is not None
    assert found.kernel_made == is_kernels


def test_a_label_of_any_bytes_is_told() -> None:
    assert text(address(V4, 8, 5, attribute(LOCAL, OWN), attribute(LABEL, b"r\xff\0"))).endswith(r"label r\xff")


def test_addresses_are_listed_with_the_links_own_end() -> None:
    both = address(V4, 32, 5, attribute(ADDRESS, PEER), attribute(LOCAL, OWN))
    one = address(V6, 64, 6, attribute(ADDRESS, OWN6))
    kernel = Scripted({22: [both, one]})
    assert read_addresses(kernel, 5) == (AddressMessage(5, OWN, both), AddressMessage(6, OWN6, one))
    assert kernel.asked == [(22, struct.pack("=BBBBI", 0, 0, 0, 0, 5))]


def test_this_kernel_lists_the_addresses_of_its_loopback() -> None:
    with RouteSocket() as route:
        found = {it.own for it in read_addresses(route, 1)}
        every = {it.own for it in read_addresses(route) if it.ifindex == 1}
    assert bytes((127, 0, 0, 1)) in found
    assert found == every


DST, LLADDR = 1, 2  # NDA_*, include/uapi/linux/neighbour.h
MAC = bytes.fromhex("02110000aa01")
PERMANENT = neighbour(V4, 5, attribute(DST, PEER), attribute(LLADDR, MAC))
LEARNED = neighbour(V4, 5, attribute(DST, OWN), attribute(LLADDR, MAC), state=0x02)  # reachable
OTHERS = neighbour(V4, 6, attribute(DST, PEER), attribute(LLADDR, MAC))
PROXY = neighbour(V6, 5, attribute(DST, OWN6), state=0, flags=NTF_PROXY)


def test_neighbours_that_were_set_are_captured_and_learned_ones_are_not() -> None:
    asked_for_proxies: list[bool] = []

    def answer(_kind: int, body: bytes) -> list[bytes]:
        asked_for_proxies.append(body[10] == 0x08)  # ndm_flags
        return [PROXY] if asked_for_proxies[-1] else [LEARNED, PERMANENT, OTHERS]

    kernel = Scripted(answer)
    assert read_neighbours(kernel, 5) == (
        Captured(text="neighbour 10.0.0.2 lladdr 02:11:00:00:aa:01 flags 0x0 type 1", raw=PERMANENT, kernel_made=False),
        Captured(text="neighbour fd00::1 lladdr None flags 0x8 type 1", raw=PROXY, kernel_made=False),
    )
    assert asked_for_proxies == [False, True]
    of_link = struct.pack("=HHI", 8, 8, 5)  # NDA_IFINDEX
    assert [(kind, body[12:]) for kind, body in kernel.asked] == [(30, of_link)] * 2


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("10.0.0.1/24", b"\x02\x18\0\0\x05\0\0\0\x08\0\x02\0\x0a\0\0\x01\x08\0\x01\0\x0a\0\0\x01"),
        ("fd00::1/64", b"\x0a\x40\x02\0\x05\0\0\0" + b"\x14\0\x02\0" + OWN6 + b"\x14\0\x01\0" + OWN6),
    ],
)
def test_an_address_is_added_by_these_bytes_unless_it_is_there(text: str, body: bytes) -> None:
    request = add_address_request(5, AddAddress(address=ip_interface(text)))
    assert (request.kind, request.flags, request.body) == (20, 0x400 | 0x200, body)  # CREATE, EXCL
    assert request.tolerate == frozenset()
    assert request.operation == f"add address {text} to link 5"

"""What the kernel reported is sent again: the requests compared byte by byte with what they are made of."""

import errno
import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.attach.ops import Remove, Restore, SetSettings
from nri_rdma.host.netlink.restore.replay import (
    detach_xdp_requests,
    link_settings,
    remove_request,
    restore_request,
    settings_request,
)
from nri_rdma.model.link import Captured
from tests.unit.host.netlink.made_messages import address, attribute, neighbour, route, u32

V4, V6 = 2, 10  # AF_INET, AF_INET6
OWN = ip_address("10.0.0.1").packed
MAC = bytes.fromhex("02110000aa01")
CREATE, EXCL, APPEND = 0x400, 0x200, 0x800
FOREVER = 0xFFFFFFFF
UNKNOWN = attribute(77, b"not known to us")


def thing(raw: bytes) -> Captured:
    return Captured(text="it", raw=raw, kernel_made=False)


def restored(raw: bytes, ifindex: int = 9) -> bytes:
    return restore_request(ifindex, Restore(thing=thing(raw))).body


@pytest.mark.parametrize(
    ("raw", "kind", "flags", "absent"),
    [
        (address(V4, 24, 5), 20, CREATE | EXCL, errno.EADDRNOTAVAIL),
        (route(V4, 16), 24, CREATE | APPEND, errno.ESRCH),
        (neighbour(V4, 5), 28, CREATE | EXCL, errno.ENOENT),
    ],
    ids=["address", "route", "neighbour"],
)
def test_it_is_added_unless_it_is_there_and_removed_unless_it_is_not(
    raw: bytes, kind: int, flags: int, absent: int
) -> None:
    added, removed = restore_request(9, Restore(thing=thing(raw))), remove_request(9, Remove(thing=thing(raw)))
    assert (added.kind, added.flags, added.tolerate) == (kind, flags, frozenset({errno.EEXIST}))
    assert (removed.kind, removed.flags, removed.tolerate) == (kind + 1, 0, frozenset({absent}))
    assert (added.operation, removed.operation) == ("restore it", "remove it")
    assert added.body == removed.body


def test_an_address_has_the_present_number_and_all_attributes() -> None:
    attributes = (attribute(1, OWN), attribute(2, OWN), attribute(3, b"rail0:1\0"), UNKNOWN)
    raw = address(V4, 24, 5, *attributes, flags=0x80, scope=253)
    assert restored(raw) == address(V4, 24, 9, *attributes, flags=0x80, scope=253)[16:]


@pytest.mark.parametrize(
    ("preferred", "valid", "sent"),
    [
        (FOREVER, FOREVER, (FOREVER, FOREVER)),
        (300, 600, (300, 600)),
        (0, 600, (0, 600)),
        (0, 0, (0, 1)),
        (5, 0, (1, 1)),
    ],
)
def test_the_lifetime_of_an_address_is_kept_and_an_expired_one_is_a_second(
    preferred: int, valid: int, sent: tuple[int, int]
) -> None:
    """struct ifa_cacheinfo: preferred, valid, created and updated. The kernel refuses a valid lifetime of 0."""
    made = [attribute(6, struct.pack("=IIII", *pair, 11, 12)) for pair in ((preferred, valid), sent)]
    assert restored(address(V6, 64, 5, made[0])) == address(V6, 64, 9, made[1])[16:]


def test_a_route_has_the_present_number_and_all_attributes() -> None:
    def made(ifindex: int, flags: int) -> bytes:
        attributes = (attribute(1, OWN), u32(4, ifindex), attribute(5, OWN), u32(6, 50), UNKNOWN)
        return route(V4, 16, *attributes, table=100, proto=4, scope=253, kind=1, flags=flags)

    assert restored(made(5, 0x04)) == made(9, 0x04)[16:]  # RTNH_F_ONLINK
    assert restored(made(5, 0x01 | 0x10 | 0x04)) == made(9, 0x04)[16:]  # RTNH_F_DEAD and LINKDOWN are the kernel's


@pytest.mark.parametrize(
    ("expires", "sent"), [(0, b""), (-5, b""), (60_000, u32(23, 600)), (150, u32(23, 1)), (20, u32(23, 1))]
)
def test_a_route_gets_the_rest_of_its_lifetime_in_place_of_its_age(expires: int, sent: bytes) -> None:
    """struct rta_cacheinfo: clntref, lastuse, expires (in hundredths of a second), error, id, ts, tsage."""
    age = attribute(12, struct.pack("=IIiIIII", 1, 2, expires, 0, 0, 0, 0))
    assert restored(route(V6, 64, u32(4, 5), age)) == route(V6, 64, u32(4, 9), sent)[16:]


def test_the_kernels_own_lifetime_attribute_is_not_sent_beside_ours() -> None:
    assert restored(route(V6, 64, u32(23, 77))) == route(V6, 64)[16:]


def test_a_neighbour_has_the_present_number_and_no_statistics() -> None:
    kept = (attribute(1, OWN), attribute(2, MAC), UNKNOWN)
    raw = neighbour(V4, 5, kept[0], attribute(3, bytes(16)), kept[1], u32(4, 3), kept[2], state=0x80, flags=0x10)
    assert restored(raw) == neighbour(V4, 9, *kept, state=0x80, flags=0x10)[16:]


@given(st.lists(st.tuples(st.integers(24, 0x3FFF), st.binary(max_size=30))), st.integers(1, 1 << 30))
def test_attributes_that_nobody_knows_survive_whole_and_in_order(
    unknown: list[tuple[int, bytes]], ifindex: int
) -> None:
    attributes = [attribute(*it) for it in unknown]
    assert restored(route(V6, 64, *attributes), ifindex) == route(V6, 64, *attributes)[16:]
    assert restored(address(V6, 64, 5, *attributes), ifindex) == address(V6, 64, ifindex, *attributes)[16:]
    assert restored(neighbour(V6, 5, *attributes), ifindex) == neighbour(V6, ifindex, *attributes)[16:]


# Settings of a link. IFLA_*: broadcast 2, linkmode 17, af_spec 26, group 27, gso_max_segs 40, gso_max_size 41,
# gro_max_size 58, gso_ipv4_max_size 63, gro_ipv4_max_size 64; IFLA_INET6_ADDR_GEN_MODE 8

ALL = {
    "flags": 0x1000,
    "linkmode": 1,
    "broadcast": 0xFFFFFFFF0102,
    "group": 7,
    "gso_max_segs": 100,
    "gso_max_size": 60_000,
    "gro_max_size": 50_000,
    "gso_ipv4_max_size": 40_000,
    "gro_ipv4_max_size": 30_000,
    "addr_gen_mode": 1,
}


def test_settings_are_read_from_a_links_attributes() -> None:
    numbers = {27: 7, 40: 100, 41: 60_000, 58: 50_000, 63: 40_000, 64: 30_000}
    told = {number: struct.pack("=I", value) for number, value in numbers.items()} | {
        2: bytes.fromhex("0201ffffffff"),
        17: b"\x01",
        26: attribute(2, b"of IPv4.") + attribute(10, u32(1, 0) + attribute(8, b"\x01")),
    }
    up_and_running = 0x1 | 0x40 | 0x10000
    assert dict(link_settings(0x1000 | up_and_running, told)) == ALL


def test_settings_that_this_kernel_does_not_have_are_absent() -> None:
    assert link_settings(0, {}) == (("flags", 0),)
    assert link_settings(0x100, {27: bytes(4)}) == (("flags", 0x100), ("group", 0))


HEADER = struct.pack("=BxHiII", 0, 0, 5, 0, 0)


def body_of(**settings: int) -> bytes:
    request = settings_request(5, SetSettings(settings=tuple(settings.items())))
    assert request.kind == 19  # RTM_SETLINK
    return request.body


def test_flags_change_only_where_they_are_named() -> None:
    settable = 0x4 | 0x20 | 0x80 | 0x100 | 0x200 | 0x1000 | 0x2000 | 0x4000 | 0x8000
    assert body_of(flags=0x1000) == struct.pack("=BxHiII", 0, 0, 5, 0x1000, settable)
    assert body_of(flags=0) == struct.pack("=BxHiII", 0, 0, 5, 0, settable)
    assert body_of() == HEADER


def test_each_setting_is_an_attribute_in_the_order_that_the_kernel_needs() -> None:
    """IFLA_GSO_MAX_SIZE sets the size of IPv4, too, when it is small: so it comes first."""
    body = body_of(gro_ipv4_max_size=3, gso_ipv4_max_size=2, gso_max_size=1, group=0)
    assert body == HEADER + u32(27, 0) + u32(41, 1) + u32(63, 2) + u32(64, 3)


def test_settings_that_are_no_numbers_of_four_bytes() -> None:
    assert body_of(linkmode=1) == HEADER + attribute(17, b"\x01")
    longest = bytes.fromhex("0201ffffffff") + bytes(26)  # MAX_ADDR_LEN
    assert body_of(broadcast=ALL["broadcast"]) == HEADER + attribute(2, longest)
    assert body_of(addr_gen_mode=1) == HEADER + attribute(26, attribute(10, attribute(8, b"\x01")))


def test_an_xdp_program_is_detached_in_every_mode() -> None:
    requests = detach_xdp_requests(5)
    for request, mode in zip(requests, (0x2, 0x4, 0x8), strict=True):  # XDP_FLAGS_SKB_MODE, DRV_MODE, HW_MODE
        nothing = attribute(1, b"\xff\xff\xff\xff") + u32(3, mode)
        assert (request.kind, request.body) == (19, HEADER + attribute(43 | 0x8000, nothing))
        assert request.tolerate == {errno.EOPNOTSUPP}

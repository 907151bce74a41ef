"""A link's settings: from messages made by hand and a tree like /proc/sys/net, and back into both."""

import errno
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from nri_rdma.attach.ops import SetSysctl
from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links import sysctls
from nri_rdma.host.netlink.links.sysctls import (
    costs_of_return,
    forwarding_of,
    read_neighbour_tables,
    read_sysctls,
    write_sysctl,
)
from nri_rdma.host.netlink.routes.routes import Route, parse_route
from nri_rdma.host.netlink.sockets.route_socket import Request
from nri_rdma.model.link import sysctls_of
from tests.unit.host.netlink.made_messages import Scripted, attribute, link, message, route, u32

V4, V6 = 2, 10  # AF_INET, AF_INET6
LO = 1
AF_SPEC, CONF4, CONF6 = 26, 1, 2  # IFLA_AF_SPEC, IFLA_INET_CONF, IFLA_INET6_CONF
ANNOUNCED = 9  # RTPROT_RA


class Kernel(Scripted):
    """Notes which changes it is asked for."""

    def __init__(self, answers: dict[int, list[bytes]] | None = None) -> None:
        super().__init__(answers or {})
        self.changes: list[Request] = []

    def try_all(self, requests: Sequence[Request]) -> dict[int, KernelError]:
        self.changes += requests
        return {}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stands for /proc/sys/net, with the link lo."""
    for family in ("ipv4", "ipv6"):
        for name in ("default", "lo"):
            (tmp_path / family / "conf" / name).mkdir(parents=True)
    monkeypatch.setattr(sysctls, "_ROOT", tmp_path)
    monkeypatch.setattr(sysctls, "writable_net", lambda: tmp_path)
    sysctls._untold.cache_clear()
    yield tmp_path
    sysctls._untold.cache_clear()


def put(root: Path, path: str, value: str) -> None:
    (root / path).write_text(f"{value}\n")


def link_of(*, v4: Sequence[int] | None = None, v6: Sequence[int] | None = None) -> bytes:
    """A link's message with arrays of numbers by the kernel's IPV4_DEVCONF_* and DEVCONF_*."""
    of4 = b"" if v4 is None else attribute(V4, attribute(CONF4, struct.pack(f"={len(v4)}i", *v4)))
    of6 = b"" if v6 is None else attribute(V6, u32(1, 0) + attribute(CONF6, struct.pack(f"={len(v6)}i", *v6)))
    return link(LO, attribute(AF_SPEC, of4 + of6))


def test_numbers_of_the_message_have_the_names_of_the_files(root: Path) -> None:
    told = sysctls_of(read_sysctls(link_of(v4=range(100, 133), v6=range(1000, 1060)), "lo", ""))
    assert len(told) == 33 - 1 + 60 - 3  # without mc_forwarding of both, addr_gen_mode and stable_secret
    # include/uapi/linux/ip.h counts from 1, ipv6.h from 0
    assert (told["ipv4/conf/forwarding"], told["ipv4/conf/rp_filter"]) == ("100", "107")
    assert (told["ipv4/conf/arp_ignore"], told["ipv4/conf/arp_evict_nocarrier"]) == ("118", "132")
    assert (told["ipv6/conf/forwarding"], told["ipv6/conf/accept_ra"]) == ("1000", "1003")
    assert (told["ipv6/conf/disable_ipv6"], told["ipv6/conf/accept_ra_min_lft"]) == ("1026", "1058")


def test_what_netlink_has_in_milliseconds_is_told_in_seconds_as_the_file_has_it(root: Path) -> None:
    numbers = [0] * 60
    numbers[8] = 4000  # DEVCONF_RTR_SOLICIT_INTERVAL
    numbers[52] = -1  # DEVCONF_RA_DEFRTR_METRIC
    numbers[1] = -1  # DEVCONF_HOPLIMIT
    told = sysctls_of(read_sysctls(link_of(v6=numbers), "lo", ""))
    assert told["ipv6/conf/router_solicitation_interval"] == "4"
    assert told["ipv6/conf/ra_defrtr_metric"] == "4294967295"
    assert told["ipv6/conf/hop_limit"] == "-1"


def test_an_older_kernel_tells_fewer_and_a_family_that_a_link_has_not_is_absent(root: Path) -> None:
    assert read_sysctls(link_of(v4=[1]), "lo", "") == "ipv4/conf/forwarding 1"
    assert read_sysctls(link_of(v6=[0, 64]), "lo", "") == "ipv6/conf/forwarding 0\nipv6/conf/hop_limit 64"
    assert read_sysctls(link(LO), "lo", "") == ""


def test_files_that_netlink_does_not_tell_of_are_read(root: Path) -> None:
    for name in ("default", "lo"):
        put(root, f"ipv4/conf/{name}/rp_filter", "2")
        put(root, f"ipv4/conf/{name}/brand_new", "7")
    put(root, "ipv6/conf/default/stable_secret", "of the default")
    put(root, "ipv4/conf/default/not_of_lo", "1")
    told = read_sysctls(link_of(v4=[1], v6=[0]), "lo", "ipv4/neigh/locktime_ms 1000")
    assert told.splitlines() == [
        "ipv4/conf/forwarding 1",
        "ipv4/conf/brand_new 7",
        "ipv6/conf/forwarding 0",
        "ipv4/neigh/locktime_ms 1000",
    ]
    put(root, "ipv6/conf/lo/stable_secret", "::1")
    assert "ipv6/conf/stable_secret ::1" in read_sysctls(link_of(v6=[0]), "lo", "").splitlines()


def test_a_file_that_cannot_be_read_is_an_error(root: Path) -> None:
    put(root, "ipv4/conf/default/brand_new", "7")
    (root / "ipv4/conf/lo/brand_new").mkdir()
    with pytest.raises(KernelError) as caught:
        read_sysctls(link_of(v4=[1]), "lo", "")
    assert caught.value.errno == errno.EISDIR


# Neighbour tables: struct ndtmsg, NDTA_PARMS 6; in it NDTPA_IFINDEX 1, BASE_REACHABLE_TIME 4, UCAST_PROBES 10


def table(family: int, ifindex: int, *parameters: bytes) -> bytes:
    body = struct.pack("=Bxxx", family) + attribute(6, u32(1, ifindex) + b"".join(parameters))
    return message(64, body)  # RTM_NEWNEIGHTBL


def test_settings_of_neighbour_tables_are_told_by_link() -> None:
    reachable = attribute(4, struct.pack("=Q", 30_000))
    kernel = Kernel(
        {
            66: [
                table(V4, 5, reachable, u32(10, 3), u32(2, 99)),  # NDTPA_REFCNT, which cannot be set
                table(V6, 5, u32(10, 4)),
                table(V4, 6, u32(10, 5)),
                table(V4, 7, u32(10, 6), attribute(77, u32(1, 5))),  # another link, with the bytes of link 5
                table(12, 5, u32(10, 7)),
            ]
        }
    )
    assert read_neighbour_tables(kernel, {5, 6, 8}) == {
        5: "ipv4/neigh/base_reachable_time_ms 30000\nipv4/neigh/ucast_solicit 3\nipv6/neigh/ucast_solicit 4",
        6: "ipv4/neigh/ucast_solicit 5",
        8: "",
    }


@pytest.mark.parametrize(
    ("key", "family", "name", "parameter"),
    [
        ("ipv4/neigh/base_reachable_time_ms", V4, b"arp_cache\0", attribute(4, struct.pack("=Q", 12))),
        ("ipv6/neigh/ucast_solicit", V6, b"ndisc_cache\0", u32(10, 12)),
    ],
)
def test_a_neighbour_tables_setting_is_set_by_netlink(key: str, family: int, name: bytes, parameter: bytes) -> None:
    kernel = Kernel()
    write_sysctl(kernel, 5, SetSysctl(key=key, value="12"))
    (request,) = kernel.changes
    wanted = attribute(1, name) + attribute(6 | 0x8000, u32(1, 5) + parameter)
    assert (request.kind, request.body) == (67, struct.pack("=Bxxx", family) + wanted)


# Writing


def test_a_setting_is_written_to_the_file_of_the_links_present_name(root: Path) -> None:
    put(root, "ipv4/conf/lo/rp_filter", "0")
    kernel = Kernel()
    write_sysctl(kernel, LO, SetSysctl(key="ipv4/conf/rp_filter", value="2"))
    assert (root / "ipv4/conf/lo/rp_filter").read_text() == "2"
    assert kernel.changes == []


def test_no_link_and_no_file_are_errors_that_do_not_tell_the_value(root: Path) -> None:
    (root / "ipv6/conf/lo/stable_secret").mkdir()
    for ifindex, code in ((0x7FFFFFF0, errno.ENODEV), (LO, errno.EISDIR)):
        with pytest.raises(KernelError) as caught:
            write_sysctl(Kernel(), ifindex, SetSysctl(key="ipv6/conf/stable_secret", value="fe80::5ec1"))
        assert caught.value.errno == code
        assert "5ec1" not in str(caught.value)


# IPv6 forwarding and the default routes that routers announced

OVER_LO = parse_route(route(V6, 0, u32(4, LO), proto=ANNOUNCED))
SET_BY_HAND = parse_route(route(V6, 0, u32(4, LO), proto=4))


@pytest.mark.parametrize(
    ("default", "accept_ra", "value", "is_refused"),
    [
        (OVER_LO, "1", "1", True),
        (OVER_LO, "2", "1", False),
        (OVER_LO, "1", "0", False),
        (SET_BY_HAND, "1", "1", False),
    ],
    ids=["it would end", "accept_ra 2", "no forwarding", "set by hand"],
)
def test_forwarding_is_not_set_where_that_ends_a_default_route(
    root: Path, monkeypatch: pytest.MonkeyPatch, default: Route, accept_ra: str, value: str, is_refused: bool
) -> None:
    monkeypatch.setattr(sysctls, "read_routes", lambda *_: (default,))
    put(root, "ipv6/conf/lo/accept_ra", accept_ra)
    put(root, "ipv6/conf/lo/forwarding", "as it was")
    change = SetSysctl(key="ipv6/conf/forwarding", value=value)
    if is_refused:
        with pytest.raises(KernelError, match="that would end the default route over lo") as caught:
            write_sysctl(Kernel(), LO, change)
        assert caught.value.errno == errno.EBUSY
        assert (root / "ipv6/conf/lo/forwarding").read_text() == "as it was\n"
    else:
        write_sysctl(Kernel(), LO, change)
        assert (root / "ipv6/conf/lo/forwarding").read_text() == value


@pytest.mark.parametrize(
    ("forwards", "default", "accept_ra", "routes", "costs"),
    [
        (True, "0", "1", [OVER_LO], True),
        (False, "0", "1", [OVER_LO], False),
        (True, "1", "1", [OVER_LO], False),
        (True, "0", "2", [OVER_LO], False),
        (True, "0", "1", [SET_BY_HAND], False),
        (True, "0", "1", [], False),
    ],
    ids=["costs", "does not forward", "forwards by default", "accept_ra 2", "set by hand", "no route"],
)
def test_the_return_of_a_link_that_forwards_may_cost_a_default_route(
    root: Path, *, forwards: bool, default: str, accept_ra: str, routes: list[Route], costs: bool
) -> None:
    put(root, "ipv6/conf/default/forwarding", default)
    put(root, "ipv6/conf/lo/accept_ra", accept_ra)
    found = costs_of_return(forwards, routes)
    assert bool(found) == costs
    assert all("over lo" in reason for reason in found)


def test_whether_a_link_forwards_is_the_first_number_of_ipv6() -> None:
    assert forwarding_of(link_of(v4=[0], v6=[1, 0]))
    assert not forwarding_of(link_of(v4=[1], v6=[0, 64]))
    assert not forwarding_of(link_of(v4=[1]))
    assert not forwarding_of(link(LO))

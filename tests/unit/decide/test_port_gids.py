from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import pytest

from nri_rdma.decide.port_gids import NO_GIDS, Gids, gid_words, joined, moved_words, port_gid, with_problem
from nri_rdma.model.gid import Gid, GidType, PortGid

V1, V2, IB = GidType.ROCE_V1, GidType.ROCE_V2, GidType.IB
LINK_LOCAL = "fe80::1"


def gid(index: int, address: str, kind: GidType = V2, netdev: str = "rdma0") -> Gid:
    value = ip_address(address)
    mapped = IPv6Address(f"::ffff:{value}") if isinstance(value, IPv4Address) else value
    return Gid(index=index, value=mapped, type=kind, netdev=netdev)


def found(device: str, *table: Gid, own: tuple[str, ...] = (), version: int = 2) -> PortGid:
    return port_gid(device, 1, table, frozenset(map(ip_address, own)), version)


def told(*ports: PortGid, computing: tuple[str, ...] = ("a", "b")) -> dict[str, str]:
    return dict(Gids.of(ports, computing).variables)


USUAL = (gid(0, LINK_LOCAL, V1), gid(1, LINK_LOCAL), gid(2, "10.1.0.2", V1), gid(3, "10.1.0.2"))


def test_one_index_that_is_right_for_all_devices_is_told_to_nccl_and_ucx() -> None:
    assert told(found("a", *USUAL)) == {"NCCL_IB_GID_INDEX": "3", "UCX_IB_GID_INDEX": "3"}
    other = (gid(0, LINK_LOCAL), gid(3, "10.1.1.2"))
    assert told(found("a", *USUAL), found("b", *other)) == {"NCCL_IB_GID_INDEX": "3", "UCX_IB_GID_INDEX": "3"}


def test_indices_that_differ_are_not_told() -> None:
    assert told(found("a", *USUAL), found("b", gid(0, LINK_LOCAL), gid(1, "10.1.1.2"))) == {}


def test_a_device_for_storage_does_not_count() -> None:
    ports = found("a", *USUAL), found("b", gid(1, "10.1.1.2"))
    assert told(*ports, computing=("a",)) == {"NCCL_IB_GID_INDEX": "3", "UCX_IB_GID_INDEX": "3"}


def test_a_container_with_some_of_the_devices_is_told_of_these() -> None:
    gids = Gids.of((found("a", *USUAL), found("b", gid(1, "10.1.1.2"))), ("a", "b"))
    assert dict(gids.variables_of({"b"})) == {"NCCL_IB_GID_INDEX": "1", "UCX_IB_GID_INDEX": "1"}


@pytest.mark.parametrize(
    ("chosen", "others", "network"),
    [
        ("10.1.0.2", ["10.2.0.2"], "10.0.0.0/15"),
        ("10.1.0.2", ["192.168.1.2"], "0.0.0.0/1"),
        ("10.1.0.2", ["fd00::2"], ""),
        ("10.1.0.2", [], ""),
        ("10.1.0.2", ["10.1.0.3"], "10.1.0.2/32"),
        ("fd00::2", ["fd01::2"], "fd00::/16"),
    ],
)
def test_the_range_is_the_widest_network_without_other_addresses(chosen: str, others: list[str], network: str) -> None:
    table = [gid(number, address) for number, address in enumerate((*others, chosen))]
    assert told(found("a", *table, own=(chosen,))).get("NCCL_IB_ADDR_RANGE", "") == network


def test_where_no_network_has_all_and_none_of_the_others_there_is_no_range() -> None:
    one = found("a", gid(0, "10.1.0.1"), gid(1, "10.1.0.3"), own=("10.1.0.1",))
    other = found("b", gid(0, "10.1.0.2"), gid(1, "10.1.0.0"), own=("10.1.0.2",))
    assert "NCCL_IB_ADDR_RANGE" not in told(one, other)


def test_the_family_is_told_where_all_are_ipv6() -> None:
    assert told(found("a", gid(0, "fd00::2")))["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"
    both = told(found("a", gid(0, "fd00::2")), found("b", gid(0, "10.1.0.2")))
    assert both.keys() == {"NCCL_IB_GID_INDEX", "UCX_IB_GID_INDEX"}


def test_the_version_is_told_where_it_is_not_nccls_own() -> None:
    assert told(found("a", *USUAL, version=1)) == {
        "NCCL_IB_ROCE_VERSION_NUM": "1",
        "NCCL_IB_GID_INDEX": "2",
        "UCX_IB_GID_INDEX": "2",
    }


def test_of_infiniband_nothing_is_told() -> None:
    assert told(found("a", gid(0, LINK_LOCAL, IB))) == {}


def test_ucx_is_told_no_index_that_a_port_of_infiniband_does_not_have_too() -> None:
    assert told(found("a", *USUAL), found("b", gid(0, LINK_LOCAL, IB))) == {"NCCL_IB_GID_INDEX": "3"}


@pytest.mark.parametrize("table", [[], [gid(3, "10.1.1.2", V1)]], ids=["empty", "of the other version"])
def test_no_index_is_told_where_a_port_has_no_usable_gid(table: list[Gid]) -> None:
    """An index would have it send by an entry that nobody chose."""
    ipv6 = gid(3, "fd00::2")
    assert told(found("a", ipv6), found("b", *table)) == {"NCCL_IB_ADDR_FAMILY": "AF_INET6"}
    assert told(found("a", *USUAL), found("b", *table), computing=("a",))["NCCL_IB_GID_INDEX"] == "3"
    assert told(found("b", *table)) == {}


def test_nothing_is_told_while_a_port_sends_by_a_link_local_gid() -> None:
    """An address may come later, by an init container or DHCP: the libraries find its GID if nothing is pinned."""
    only = found("b", gid(0, LINK_LOCAL, V1), gid(1, LINK_LOCAL))
    assert told(only) == {}
    assert told(found("a", *USUAL), only) == {}


@pytest.mark.parametrize(
    ("port", "words"),
    [
        (found("a", *USUAL, own=("10.1.0.2",)), "a:1: GID 3, 10.1.0.2 (RoCE v2)"),
        (found("a", gid(0, LINK_LOCAL, IB)), "a:1: GID 0, fe80::1 (IB)"),
        (
            found("a", *USUAL),
            "a:1: GID 3, 10.1.0.2 (RoCE v2): no address of the pod has a GID on this device, so that it sends with"
            " an address of the host",
        ),
        (
            found("a", gid(0, LINK_LOCAL)),
            "a:1: GID 0, fe80::1 (RoCE v2): no address of the pod has a GID on this device, and packets with"
            " a link-local GID are not routed",
        ),
        (found("a"), "a:1: no GID that it could send by, so that its traffic goes nowhere"),
    ],
    ids=["own", "infiniband", "the host's", "link-local", "none"],
)
def test_what_people_are_told_of_a_port(port: PortGid, words: str) -> None:
    assert gid_words(port) == words


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([gid(3, "10.1.0.2")], ""),
        ([gid(5, "10.1.0.2")], "a:1: the GID is 5, 10.1.0.2 now, and was 3, 10.1.0.2 when the pod started"),
        ([gid(3, "10.1.0.9")], "a:1: the GID is 3, 10.1.0.9 now, and was 3, 10.1.0.2 when the pod started"),
        ([], "a:1: the GID is none now, and was 3, 10.1.0.2 when the pod started"),
    ],
    ids=["as before", "another entry", "another address at the entry", "none any more"],
)
def test_a_gid_that_is_another_now_is_told(table: list[Gid], words: str) -> None:
    first, now = (
        Gids.of([found("a", *it), found("b", gid(0, "10.1.1.2"))], ()) for it in ([gid(3, "10.1.0.2")], table)
    )
    for later in (now.since(first), now.since(first.since(first)), now.since(now.since(first))):
        assert [it.partition(": a program")[0] for it in moved_words(later)] == ([words] if words else [])
    assert moved_words(now.since(NO_GIDS)) == ()


def test_gids_of_two_attaches_are_known_together() -> None:
    one, other = Gids.of([found("a", *USUAL)], ["a"]), Gids.of([found("b", gid(1, "10.1.1.2"))], ["b"])
    assert joined((one,)) is one
    assert joined((one, other)).variables == ()
    assert [it.place for it in joined((one, other)).ports] == ["a:1", "b:1"]
    assert joined(()) == NO_GIDS


def test_what_cannot_be_read_is_told_and_has_no_variables() -> None:
    unknown: Any = with_problem("GIDs not read: EPERM")
    assert (unknown.ports, unknown.variables, unknown.problem) == ((), (), "GIDs not read: EPERM")

"""The GID by which a pod sends, as NCCL from 2.21 on chooses it with our variables."""

from ipaddress import IPv6Address, ip_address

from nri_rdma.decide.gids import choose
from nri_rdma.model.gid import Gid, GidType


def table(*rows: tuple[str, GidType]) -> list[Gid]:
    return [Gid(index=number, value=IPv6Address(text), type=kind) for number, (text, kind) in enumerate(rows)]


LINK_LOCAL, HOST, POD, GLOBAL = "fe80::1", "::ffff:192.0.2.1", "::ffff:10.0.0.2", "2001:db8::2"
ROCE = table(
    (LINK_LOCAL, GidType.ROCE_V1),
    (LINK_LOCAL, GidType.ROCE_V2),
    (GLOBAL, GidType.ROCE_V2),
    (HOST, GidType.ROCE_V1),
    (HOST, GidType.ROCE_V2),
    (POD, GidType.ROCE_V2),
)


def index(gid: Gid | None) -> int | None:
    return None if gid is None else gid.index


def test_the_pods_own_address_comes_first() -> None:
    assert index(choose(ROCE, {ip_address("10.0.0.2")})) == 5
    assert index(choose(ROCE, {ip_address("2001:db8::2")})) == 2


def test_without_an_address_of_the_pod_it_is_ipv4_of_roce_v2() -> None:
    assert index(choose(ROCE)) == 4


def test_ipv6_counts_where_there_is_no_ipv4_and_link_local_last() -> None:
    assert index(choose(ROCE[:4])) == 2
    assert index(choose(ROCE[:2])) == 1


def test_roce_v1_is_for_those_who_ask() -> None:
    assert index(choose(ROCE, roce_version=1)) == 3
    assert choose(ROCE[:1]) is None


def test_an_empty_entry_is_no_gid() -> None:
    assert choose(table(("::", GidType.ROCE_V2))) is None


def test_infiniband_has_its_first_entry() -> None:
    assert index(choose(table(("fe80::2:c903", GidType.IB), ("fe80::2:c904", GidType.IB)))) == 0

"""Queueing disciplines by messages laid out by hand, as include/uapi/linux/pkt_sched.h says."""

import struct

import pytest

from nri_rdma.host.netlink.qos.disciplines import Queues, payload_of, read_queues
from tests.unit.host.netlink.made_messages import Scripted, attribute, message

GETQDISC, GETTCLASS, GETTFILTER = 38, 42, 46
KIND, OPTIONS, STATS, XSTATS, STATS2, STAB, OFFLOAD, INGRESS_BLOCK = 1, 2, 3, 4, 7, 8, 12, 13
ROOT, INGRESS = 0xFFFFFFFF, 0xFFFFFFF1
FILTER = message(44, struct.pack("=BxxxiIII", 0, 5, 0, 0xFFFFFFF2, 0) + attribute(KIND, b"bpf\0"))


def queue(kind: bytes, handle: int, parent: int = ROOT, *more: bytes, ifindex: int = 5, number: int = 36) -> bytes:
    """RTM_NEWQDISC or RTM_NEWTCLASS: struct tcmsg (family, ifindex, handle, parent, info), then attributes."""
    header = struct.pack("=BxxxiIII", 0, ifindex, handle, parent, 2)
    return message(number, header + attribute(KIND, kind + b"\0") + b"".join(more))


def htb_options(version: int, packets: int, default: int = 0x10) -> bytes:
    """TCA_HTB_INIT: struct tc_htb_glob (version, rate2quantum, defcls, debug, direct_pkts)."""
    return attribute(OPTIONS, attribute(2, struct.pack("=IIIII", version, 10, default, 0, packets)))


def read(*qdiscs: bytes, classes: tuple[bytes, ...] = (), filters: tuple[bytes, ...] = ()) -> Queues:
    return read_queues(Scripted({GETQDISC: [*qdiscs], GETTCLASS: [*classes], GETTFILTER: [*filters]}), (5,))[5]


def test_the_kernels_own_and_those_of_other_links_are_left_out_and_cost_one_list() -> None:
    kernel = Scripted({GETQDISC: [queue(b"mq", 0), queue(b"fq_codel", 0, 1), queue(b"htb", 0x10000, ifindex=6)]})
    assert read_queues(kernel, (5, 7)) == {5: Queues(), 7: Queues()}
    assert [kind for kind, _ in kernel.asked] == [GETQDISC]
    assert read_queues(kernel, ()) == {}


def test_parents_come_before_what_stands_in_them() -> None:
    found = read(
        queue(b"tbf", 0x100000, 0x10010),
        queue(b"clsact", 0xFFFF0000, INGRESS),
        queue(b"htb", 0x10000),
        classes=(
            queue(b"htb", 0x10010, 0x10001, number=40),
            queue(b"htb", 0x10001, number=40),
            queue(b"tbf", 0x100001, 0x100000, number=40),
        ),
    )
    assert [" ".join(it.text.split()[:5]) for it in found.captured] == [
        "qdisc clsact ffff: parent ingress",
        "qdisc htb 1: parent root",
        "class htb 1:1 parent root",
        "class htb 1:10 parent 1:1",
        "qdisc tbf 10: parent 1:10",
    ]
    assert found.unreturnable == ()


def test_handles_that_lead_in_a_circle_end() -> None:
    found = read(queue(b"htb", 0x10000, 0x20001), queue(b"htb", 0x20000, 0x10001))
    assert len(found.captured) == 2


def test_counters_are_no_difference() -> None:
    (one,) = read(queue(b"htb", 0x10000, ROOT, htb_options(0x30011, 7), attribute(STATS2, b"1234"))).captured
    (two,) = read(queue(b"htb", 0x10000, ROOT, htb_options(0x30011, 9), attribute(STATS, b"9"))).captured
    (other,) = read(queue(b"htb", 0x10000, ROOT, htb_options(0x30011, 7, default=5))).captured
    assert one.text == two.text != other.text
    assert one.raw != two.raw


def test_what_is_sent_again_has_no_counters_and_the_version_that_htb_takes() -> None:
    raw = queue(b"htb", 0x10000, ROOT, htb_options(0x30011, 7), attribute(STATS2, b"1234"), attribute(OFFLOAD, b"\0"))
    (thing,) = read(raw).captured
    sent = payload_of(thing, 77)
    header = struct.pack("=BxxxiIII", 0, 77, 0x10000, ROOT, 0)
    assert sent == header + attribute(KIND, b"htb\0") + htb_options(3, 7)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (queue(b"netem", 0x10000), "has the qdisc netem 1:, which could not be restored"),
        (
            queue(b"mq", 0x10000, ROOT, attribute(OFFLOAD, b"\1")),
            "has the qdisc mq 1: in hardware, which could not be restored",
        ),
        (
            queue(b"tbf", 0x10000, ROOT, attribute(STAB, b"")),
            "has the qdisc tbf 1: with a table of sizes, which could not be restored",
        ),
        (
            queue(b"clsact", 0xFFFF0000, INGRESS, attribute(INGRESS_BLOCK, bytes(4))),
            "has the qdisc clsact ffff: with a shared block of filters, which could not be restored",
        ),
    ],
)
def test_what_could_not_be_restored_is_named(raw: bytes, reason: str) -> None:
    assert read(raw).unreturnable == (reason,)


def test_filters_are_named_by_where_they_stand() -> None:
    assert read(queue(b"clsact", 0xFFFF0000, INGRESS), filters=(FILTER,)).unreturnable == (
        "has tc filters (ingress), which its move would remove for good",
        "has tc filters (egress), which its move would remove for good",
    )
    assert read(queue(b"htb", 0x10000), filters=(FILTER,)).unreturnable == (
        "has tc filters (at 1:), which its move would remove for good",
    )
    assert read(filters=(FILTER,)).unreturnable == ()


def test_filters_that_are_programs_have_names_each_once() -> None:
    """As `tc filter add ... bpf object-file` names them; TCA_BPF_NAME is 7."""

    def named(name: bytes, kind: bytes = b"bpf") -> bytes:
        header = struct.pack("=BxxxiIII", 0, 5, 0, 0xFFFFFFF2, 0)
        return message(44, header + attribute(KIND, kind + b"\0") + attribute(OPTIONS, attribute(7, name + b"\0")))

    filters = (named(b"prog.o:[classifier]"), named(b"count"), named(b"x", b"flower"), FILTER)
    assert read(queue(b"clsact", 0xFFFF0000, INGRESS), filters=filters).programs == ("prog.o:[classifier]", "count")
    assert read(queue(b"htb", 0x10000)).programs == ()

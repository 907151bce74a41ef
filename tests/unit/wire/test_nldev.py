"""nldev: what is asked as bytes, what the kernel answered as values, and that nothing else comes out."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.device import CharKind, RdmaNetns
from nri_rdma.model.nldev import CharNumber, ObjectKind, RdmaObject
from nri_rdma.wire import WireError, nldev
from nri_rdma.wire.nldev import Attribute, NldevCommand, NldevRequest, Replies

SEQUENCE = 7
HEADER = Path("/usr/include/rdma/rdma_netlink.h")
QUESTIONS: list[NldevRequest[Any]] = [
    nldev.get_devices(),
    nldev.get_ports(3),
    nldev.get_char_device(CharKind.UMAD, 3, 1),
    nldev.get_netns_mode(),
    nldev.set_namespace(3, 5),
    *(nldev.get_objects(kind, 3) for kind in ObjectKind),
    *(nldev.get_kernel_objects(kind, 3) for kind in ObjectKind),
]


def attribute(number: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), number) + value + b"\0" * (-len(value) % 4)


def u32(number: int, value: int) -> bytes:
    return attribute(number, struct.pack("=I", value))


def u64(number: int, value: int) -> bytes:
    return attribute(number, struct.pack("=Q", value))


def message(kind: int, payload: bytes, *, sequence: int = SEQUENCE, flags: int = 0) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0) + payload


def answer(command: NldevCommand, *attributes: bytes) -> bytes:
    return message(5 << 10 | command, b"".join(attributes))


def ack(error: int = 0) -> bytes:
    return message(2, struct.pack("=i", -error) + bytes(16))


DONE = message(3, bytes(4))
DEVICE = (u32(1, 3), attribute(2, b"mlx5_3\0"), u32(3, 2), u64(6, 0x506B4B0300A1B2C3), attribute(14, b"\x01"))


def read(request: NldevRequest[Any], *datagrams: bytes) -> Replies[Any]:
    replies = Replies(request, SEQUENCE)
    for datagram in datagrams:
        replies.receive_data(datagram)
    return replies


def only(request: NldevRequest[Any], reply: bytes) -> Any:
    (result,) = read(request, reply, ack()).results
    return result


def test_a_dump_asks_for_all() -> None:
    assert nldev.get_devices().encode(9) == struct.pack("=IHHII", 16, 5 << 10 | 1, 0x301, 9, 0)


def test_a_move_names_device_and_descriptor() -> None:
    expected = struct.pack("=IHHII", 32, 5 << 10 | 2, 0x5, 9, 0) + u32(1, 3) + u32(68, 5)
    assert nldev.set_namespace(3, 5).encode(9) == expected


@pytest.mark.parametrize(("mode", "number"), [(RdmaNetns.SHARED, 1), (RdmaNetns.EXCLUSIVE, 0)])
def test_the_kernels_netns_mode_is_one_when_shared(mode: RdmaNetns, number: int) -> None:
    assert only(nldev.get_netns_mode(), answer(NldevCommand.SYS_GET, attribute(66, bytes([number])))) is mode


def test_rdma_cm_belongs_to_no_device() -> None:
    assert nldev.get_char_device(CharKind.RDMA_CM, None, None).attributes == attribute(69, b"rdma_cm\0")


@pytest.mark.parametrize("index", [-1, 1 << 32])
def test_an_index_that_is_none_is_not_sent(index: int) -> None:
    with pytest.raises(WireError):
        nldev.get_ports(index)


def test_a_devices_guid_is_written_as_in_sysfs() -> None:
    device = only(nldev.get_devices(), answer(NldevCommand.GET, *DEVICE))
    assert (device.index, device.name, device.node_guid) == (3, "mlx5_3", "506b:4b03:00a1:b2c3")


def test_a_port_is_read_although_the_kernel_calls_its_answer_a_device() -> None:
    fields = (
        u32(1, 3),
        u32(3, 1),
        attribute(12, b"\x04"),
        attribute(13, b"\x05"),
        u32(50, 9),
        attribute(51, b"rail0\0"),
    )
    port = only(nldev.get_ports(3), answer(NldevCommand.GET, *fields))
    assert (port.netdev_index, port.netdev_name) == (9, "rail0")


@pytest.mark.parametrize(("major", "minor"), [(231, 192), (231, 256), (4095, 1048575), (10, 0), (511, 0x12345)])
def test_a_device_number_is_decoded_as_the_kernel_encodes_it(major: int, minor: int) -> None:
    encoded = minor & 0xFF | major << 8 | (minor & ~0xFF) << 12
    reply = answer(NldevCommand.GET_CHARDEV, u64(72, encoded), u64(71, 1), attribute(70, b"uverbs0\0"))
    found = only(nldev.get_char_device(CharKind.UVERBS, 3, None), reply)
    assert found == CharNumber(name="uverbs0", major=major, minor=minor)


def test_objects_tell_who_made_them() -> None:
    kernels, users = attribute(29, b"nvme_rdma\0") + attribute(26, b"\x02"), u32(28, 4711) + attribute(26, b"\x02")
    table = attribute(19 | 0x8000, attribute(20 | 0x8000, kernels) + attribute(20 | 0x8000, users))
    replies = read(nldev.get_objects(ObjectKind.QP, 3), answer(NldevCommand.RES_QP_GET, *DEVICE[:2], table), DONE)
    assert replies.results == [
        (
            RdmaObject(kind=ObjectKind.QP, kernel_user="nvme_rdma", pid=None),
            RdmaObject(kind=ObjectKind.QP, kernel_user="", pid=4711),
        )
    ]


def test_of_many_objects_those_of_the_kernel_are_read() -> None:
    kernels = attribute(29, b"nvme_rdma\0") + attribute(26, b"\x02")
    decoy = u32(28, 4711) + u32(39, 0x1D001D)  # a number that looks like the kernel's attribute
    entries = [attribute(20 | 0x8000, item) for item in (u32(28, 4711), kernels, decoy, attribute(29, b"\0"))]
    request = nldev.get_kernel_objects(ObjectKind.QP, 3)
    replies = read(
        request, answer(NldevCommand.RES_QP_GET, *DEVICE[:2], attribute(19 | 0x8000, b"".join(entries * 100))), DONE
    )
    assert replies.results == [(RdmaObject(kind=ObjectKind.QP, kernel_user="nvme_rdma", pid=None),) * 100]


def test_attributes_that_are_not_known_are_skipped_at_every_level() -> None:
    new = attribute(0x3FFF, b"new")
    entry = attribute(20, new + attribute(29, b"ib_core\0") + new)
    reply = answer(NldevCommand.RES_QP_GET, new, attribute(19, new + entry), new)
    assert only(nldev.get_objects(ObjectKind.QP, 3), reply) == (
        RdmaObject(kind=ObjectKind.QP, kernel_user="ib_core", pid=None),
    )


def test_messages_of_other_questions_are_skipped() -> None:
    stale = message(5 << 10 | NldevCommand.GET, b"", sequence=SEQUENCE - 1) + message(
        3, bytes(4), sequence=SEQUENCE - 1
    )
    replies = read(nldev.get_devices(), stale + answer(NldevCommand.GET, *DEVICE) + DONE)
    assert (len(replies.results), replies.done, replies.errno) == (1, True, 0)


def test_what_follows_the_end_is_not_read() -> None:
    assert read(nldev.get_devices(), DONE + answer(NldevCommand.GET)).results == []


@pytest.mark.parametrize("end", [ack(95), message(3, struct.pack("=i", -95))], ids=["error", "end of a dump"])
def test_the_kernels_refusal_is_an_errno(end: bytes) -> None:
    replies = read(nldev.get_devices(), end)
    assert (replies.done, replies.errno) == (True, 95)


@pytest.mark.parametrize(
    "broken",
    [
        b"\0" * 15,
        struct.pack("=IHHII", 15, 5 << 10, 0, SEQUENCE, 0),
        struct.pack("=IHHII", 17, 5 << 10, 0, SEQUENCE, 0),
        answer(NldevCommand.GET, b"\3\0\1\0"),
        answer(NldevCommand.GET, b"\x09\0\1\0\0\0\0\0"),
        answer(NldevCommand.GET, b"\4\0"),
        answer(NldevCommand.GET, u64(1, 3), *DEVICE[1:]),
        answer(NldevCommand.GET, *DEVICE[1:]),
        message(2, b"\0\0\0"),
        message(4, b""),
    ],
    ids=[
        "less than a header",
        "a length below the header",
        "a length beyond the datagram",
        "an attribute shorter than its header",
        "an attribute beyond the message",
        "half an attribute",
        "a number of the wrong size",
        "no index",
        "an error without a number",
        "lost messages",
    ],
)
def test_what_breaks_the_protocol_is_a_wire_error(broken: bytes) -> None:
    with pytest.raises(WireError):
        read(nldev.get_devices(), broken)


def test_answers_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nldev, "RESULTS_MAX", 2)
    with pytest.raises(WireError, match="more than 2"):
        read(nldev.get_devices(), answer(NldevCommand.GET, *DEVICE) * 3)


@pytest.mark.skipif(not HEADER.exists(), reason=f"no {HEADER} here (package linux-libc-dev)")
def test_numbers_are_those_of_this_machines_kernel_header() -> None:
    commands, attributes = (_enum(HEADER.read_text(), name) for name in ("rdma_nldev_command", "rdma_nldev_attr"))
    for command in NldevCommand:
        assert commands.get(f"RDMA_NLDEV_CMD_{command.name}", command) == command
    for item in Attribute:
        names = (f"RDMA_NLDEV_ATTR_{item.name}", f"RDMA_NLDEV_SYS_ATTR_{item.name}", f"RDMA_NLDEV_{item.name}")
        assert {attributes[name] for name in names if name in attributes} <= {item}
    assert len(attributes) > 90  # the enum was found


def _enum(header: str, name: str) -> dict[str, int]:
    """Names and numbers of an enum that gives some of its members a number."""
    body = re.search(rf"enum {name} {{(.*?)}}", re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL), re.DOTALL)
    assert body is not None
    found: dict[str, int] = {}
    for member in filter(None, (text.strip() for text in body.group(1).split(","))):
        own, _, value = (word.strip() for word in member.partition("="))
        found[own] = found.get(value, int(value) if value.isdigit() else len(found) and max(found.values()) + 1)
    return found


GOOD = answer(NldevCommand.GET, *DEVICE)


@given(st.lists(st.one_of(st.binary(max_size=200), st.just(GOOD), st.just(DONE), st.just(ack(22))), max_size=5))
def test_garbage_gives_results_or_a_wire_error(datagrams: list[bytes]) -> None:
    for request in QUESTIONS:
        try:
            read(request, *datagrams)
        except WireError:
            continue


@given(st.sampled_from(QUESTIONS), st.lists(st.tuples(st.integers(0, 120), st.binary(max_size=12)), max_size=12))
def test_garbage_inside_attributes_gives_results_or_a_wire_error(
    request: NldevRequest[Any], fields: list[tuple[int, bytes]]
) -> None:
    payload = b"".join(attribute(number, value) for number, value in fields)
    nested = b"".join(attribute(number, payload) for number in (19, 30, 40, 86))
    for body in (payload, nested, attribute(19, attribute(20, payload))):
        try:
            read(request, message(5 << 10 | request.command, body))
        except WireError:
            continue

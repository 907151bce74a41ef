"""nldev on what a real kernel answered (data/README.md), however its messages are spread over datagrams."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.model.device import CharKind, RdmaNetns
from nri_rdma.model.nldev import (
    CharNumber,
    ObjectKind,
    RdmaDeviceState,
    RdmaObject,
    RdmaPortState,
)
from nri_rdma.wire import WireError, nldev
from nri_rdma.wire.nldev import NldevRequest, Replies

DATA = Path(__file__).parent / "data"
EOPNOTSUPP = 95

DEVICE = RdmaDeviceState(
    index=1,
    name="lab_rxe",
    node_guid="b002:85ff:fe86:9e47",
)
PORT = RdmaPortState(
    netdev_index=4,
    netdev_name="nldev0",
)
RECORDED: dict[str, tuple[NldevRequest[Any], list[Any]]] = {
    "ports": (nldev.get_ports(1), [PORT]),
    "uverbs": (
        nldev.get_char_device(CharKind.UVERBS, 1, None),
        [CharNumber(name="uverbs1", major=231, minor=193)],
    ),
    "umad": (nldev.get_char_device(CharKind.UMAD, 1, 1), [CharNumber(name="umad1", major=231, minor=1)]),
    "rdma_cm": (
        nldev.get_char_device(CharKind.RDMA_CM, None, None),
        [CharNumber(name="rdma_cm", major=10, minor=260)],
    ),
    "system": (nldev.get_netns_mode(), [RdmaNetns.SHARED]),
    "qp": (
        nldev.get_objects(ObjectKind.QP, 1),
        [(RdmaObject(kind=ObjectKind.QP, kernel_user="ib_core", pid=None),)],
    ),
    "mr": (nldev.get_objects(ObjectKind.MR, 1), []),
}
OF_THE_KERNEL: dict[str, tuple[NldevRequest[Any], list[Any]]] = {
    "qp": (nldev.get_kernel_objects(ObjectKind.QP, 1), RECORDED["qp"][1]),
    "mr": (nldev.get_kernel_objects(ObjectKind.MR, 1), []),
}


def datagrams(name: str) -> Iterator[bytes]:
    data, position = (DATA / f"nldev-{name}.bin").read_bytes(), 0
    while position < len(data):
        (length,) = struct.unpack_from("<I", data, position)
        yield data[position + 4 : position + 4 + length]
        position += 4 + length


def messages(name: str) -> list[bytes]:
    """Each message with its padding, cut out independently of the codec."""
    found = []
    for datagram in datagrams(name):
        position = 0
        while position < len(datagram):
            (length,) = struct.unpack_from("=I", datagram, position)
            found.append(datagram[position : position + (length + 3 & ~3)])
            position += length + 3 & ~3
    return found


def read(request: NldevRequest[Any], received: Iterator[bytes] | list[bytes]) -> Replies[Any]:
    replies = Replies(request, 1)
    for datagram in received:
        assert not replies.done
        replies.receive_data(datagram)
    assert replies.done
    return replies


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_answer_is_read(name: str) -> None:
    request, expected = RECORDED[name]
    replies = read(request, datagrams(name))
    assert (replies.results, replies.errno) == (expected, 0)


@pytest.mark.parametrize("name", OF_THE_KERNEL)
def test_a_recorded_answer_has_the_kernels_own(name: str) -> None:
    request, expected = OF_THE_KERNEL[name]
    assert read(request, datagrams(name)).results == expected


def test_all_devices_are_read() -> None:
    first, second = read(nldev.get_devices(), datagrams("devices")).results
    assert (first.index, first.name) == (0, "rxe0")
    assert second == DEVICE


def test_a_kind_of_character_device_that_there_is_not_is_an_errno() -> None:
    replies = read(nldev.get_char_device(CharKind.ISSM, 1, 1), datagrams("issm"))
    assert (replies.results, replies.errno) == ([], EOPNOTSUPP)


@given(st.sampled_from(sorted(RECORDED)), st.data())
def test_how_messages_are_spread_over_datagrams_changes_nothing(name: str, data: st.DataObject) -> None:
    request, expected = RECORDED[name]
    parts = [b""]
    for message in messages(name):
        if data.draw(st.booleans()):
            parts.append(b"")
        parts[-1] += message
    assert read(request, [part for part in parts if part]).results == expected


@given(st.sampled_from(sorted(RECORDED)), st.data())
def test_a_changed_or_cut_answer_gives_results_or_a_wire_error(name: str, data: st.DataObject) -> None:
    whole = b"".join(datagrams(name))
    changed = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for position in data.draw(st.lists(st.integers(0, max(len(changed) - 1, 0)), max_size=4)):
        if changed:
            changed[position] = data.draw(st.integers(0, 255))
    try:
        Replies(RECORDED[name][0], 1).receive_data(bytes(changed))
    except WireError:
        return

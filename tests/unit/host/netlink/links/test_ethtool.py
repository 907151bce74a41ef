"""What ethtool tells of drivers that few machines have, by messages laid out by hand as
include/uapi/linux/ethtool_netlink.h says; drivers that are there answer in tests/contract and tests/lab."""

import errno
import socket
import struct
from collections.abc import Iterator

import pytest

from nri_rdma.attach.ops import SetPrivateFlags, SetTuning
from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links.ethtool import EthtoolSocket
from nri_rdma.host.netlink.sockets.spare_sockets import SpareSockets, using
from tests.unit.host.netlink.made_messages import attribute, u32

FEATURES_GET, PRIVFLAGS_GET, PRIVFLAGS_SET, RINGS_GET, RINGS_SET, CHANNELS_GET, CHANNELS_SET = (
    11,
    13,
    14,
    15,
    16,
    17,
    18,
)
COALESCE_GET, COALESCE_SET = 19, 20
NESTED = 0x8000
FLAGS, BITS, BIT, INDEX, NAME, VALUE = 2, 3, 1, 1, 2, 3
RX, TX, COMBINED, RX_USECS, ADAPTIVE_RX = 6, 9, 9, 2, 11


class Driver(socket.socket):
    """The kernel's end: answers to commands, and what was asked."""

    def __init__(self, answers: dict[int, bytes | int]) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._answers = answers
        self.asked: list[tuple[int, bytes]] = []
        self._pending: list[bytes] = []

    def send(self, data: bytes, flags: int = 0, /) -> int:  # type: ignore[override]  # bytes is all that is sent
        for kind, asks_ack, sequence, command, body in _requests(data):
            self.asked.append((command, body))
            answer = self._answers.get(command, errno.EOPNOTSUPP)
            if isinstance(answer, bytes):
                self._pending.append(_message(kind, sequence, struct.pack("=BBxx", command, 1) + answer))
                answer = 0
            if answer or asks_ack:
                self._pending.append(_message(2, sequence, struct.pack("=i", -answer) + bytes(16)))
        return len(data)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        return self._pending.pop(0)


def _message(kind: int, sequence: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 0, sequence, 0) + body


def _requests(data: bytes) -> Iterator[tuple[int, bool, int, int, bytes]]:
    """Yield kind, whether a confirmation is asked for (NLM_F_ACK), sequence, command and attributes behind that of the
    link."""
    while data:
        length, kind, flags, sequence, _ = struct.unpack_from("=IHHII", data)
        header = struct.unpack_from("=H", data, 20)[0]
        yield kind, bool(flags & 4), sequence, data[16], data[20 + header : length]
        data = data[(length + 3) & ~3 :]


def asking(answers: dict[int, bytes | int]) -> tuple[EthtoolSocket, Driver]:
    with EthtoolSocket() as probe:
        if probe.family() is None:
            pytest.skip("this kernel has no ethtool over netlink (CONFIG_ETHTOOL_NETLINK)")
    ethtool, driver = EthtoolSocket(), Driver(answers)
    ethtool.close()
    ethtool._socket = driver  # the end of the wire
    return ethtool, driver


def bit(name: bytes, on: bool, index: int = 0) -> bytes:
    value = attribute(VALUE, b"") if on else b""
    return attribute(BIT | NESTED, u32(INDEX, index) + attribute(NAME, name + b"\0") + value)


def test_private_flags_and_sizes_are_told() -> None:
    flags = bit(b"legacy-rx", True) + bit(b"rx cqe moderation", False, 1)
    ethtool, _ = asking(
        {
            PRIVFLAGS_GET: attribute(FLAGS | NESTED, attribute(BITS | NESTED, flags)),
            RINGS_GET: u32(RX, 512) + u32(TX, 256),
            COALESCE_GET: u32(RX_USECS, 8) + attribute(ADAPTIVE_RX, b"\1"),
        }
    )
    with ethtool:
        shown = ethtool.show(5)
    assert shown.private_flags == "legacy-rx on\nrx cqe moderation off"
    assert shown.tuning == "ring rx 512\nring tx 256\ncoalesce adaptive-rx 1"
    assert shown.features == ""


def test_a_driver_that_answers_nothing_has_nothing() -> None:
    ethtool, _ = asking({})
    with ethtool:
        shown = ethtool.show(5)
    assert (shown.features, shown.tuning, shown.private_flags) == ("", "", "")


def test_sizes_are_set_with_one_request_for_each_kind() -> None:
    ethtool, driver = asking({RINGS_SET: 0, CHANNELS_SET: 0, COALESCE_SET: 0})
    sizes = (("coalesce rx-usecs", 3), ("ring tx", 64), ("coalesce adaptive-rx", 1), ("channels combined", 4))
    with ethtool:
        ethtool.set_tuning(5, SetTuning(sizes=sizes))
    assert driver.asked == [
        (RINGS_SET, u32(TX, 64)),
        (CHANNELS_SET, u32(COMBINED, 4)),
        (COALESCE_SET, u32(RX_USECS, 3) + attribute(ADAPTIVE_RX, b"\1")),
    ]


def test_the_requests_after_a_refused_one_are_made_and_the_first_refusal_is_raised() -> None:
    ethtool, driver = asking({RINGS_SET: errno.EINVAL, CHANNELS_SET: errno.EBUSY, COALESCE_SET: 0})
    sizes = (("ring tx", 64), ("channels combined", 4), ("coalesce rx-usecs", 3))
    with ethtool, pytest.raises(KernelError) as caught:
        ethtool.set_tuning(5, SetTuning(sizes=sizes))
    assert caught.value.errno == errno.EINVAL
    assert [command for command, _ in driver.asked] == [RINGS_SET, CHANNELS_SET, COALESCE_SET]


def test_private_flags_are_set_by_name() -> None:
    ethtool, driver = asking({PRIVFLAGS_SET: 0})
    with ethtool:
        ethtool.set_private_flags(5, SetPrivateFlags(flags=(("legacy-rx", True), ("rx cqe moderation", False))))
    on = attribute(BIT | NESTED, attribute(NAME, b"legacy-rx\0") + attribute(VALUE, b""))
    off = attribute(BIT | NESTED, attribute(NAME, b"rx cqe moderation\0"))
    assert driver.asked == [(PRIVFLAGS_SET, attribute(FLAGS | NESTED, attribute(BITS | NESTED, on + off)))]


def test_closing_twice_gives_a_socket_back_once() -> None:
    spare = SpareSockets(are_kept=True)
    with using(spare):
        ethtool = EthtoolSocket()
        ethtool.close()
        ethtool.close()
        assert spare.count == 1
    spare.close()


def test_after_an_error_a_socket_is_not_given_back() -> None:
    spare = SpareSockets(are_kept=True)
    with using(spare):
        ethtool = EthtoolSocket()
        if ethtool.family() is None:
            pytest.skip("this kernel has no ethtool over netlink (CONFIG_ETHTOOL_NETLINK)")
        kernels, ethtool._socket = ethtool._socket, Driver({})  # has no answer ready for who does not ask
        ethtool._socket.send = lambda *_: 0  # type: ignore[method-assign]
        with pytest.raises(IndexError):
            ethtool.show(1)
        ethtool.close()
        assert spare.count == 0
        kernels.close()
    spare.close()

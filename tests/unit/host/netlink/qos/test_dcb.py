"""Data center bridging by answers laid out by hand, as include/uapi/linux/dcbnl.h says."""

import errno
import struct

import pytest

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.qos.dcb import dcb_text, read_dcb
from tests.unit.host.netlink.made_messages import Scripted, attribute, message

GETDCB, IEEE_GET, IFNAME, IEEE, ETS, PFC, APP_TABLE, APP = 78, 21, 1, 13, 1, 2, 3, 4
EIGHT = bytes(range(8))


def answer(*ieee: bytes) -> bytes:
    """RTM_GETDCB: struct dcbmsg (family, cmd, pad), then attributes."""
    return message(
        GETDCB, struct.pack("=BBH", 0, IEEE_GET, 0) + attribute(IFNAME, b"rail0\0") + attribute(IEEE, b"".join(ieee))
    )


def pfc(enabled: int, counted: int) -> bytes:
    """struct ieee_pfc: cap, enabled, bypass, delay, then 16 counters."""
    return attribute(PFC, struct.pack("=BBBxHxx", 8, enabled, 0, 5) + struct.pack("=16Q", *[counted] * 16))


def apps(*entries: tuple[int, int, int]) -> bytes:
    """struct dcb_app (selector, priority, protocol) each."""
    return attribute(APP_TABLE, b"".join(attribute(APP, struct.pack("=BBH", *entry)) for entry in entries))


def test_flow_control_bandwidths_and_applications_are_told() -> None:
    ets = attribute(ETS, bytes([1, 8, 0]) + b"".join([EIGHT, bytes(8), EIGHT, EIGHT, bytes(24)]))
    assert dcb_text(answer(ets, pfc(0x08, 1), apps((1, 3, 0x8915), (5, 4, 26)))).splitlines() == [
        "ets willing 1",
        "ets tx-bandwidth 0,1,2,3,4,5,6,7",
        "ets algorithm 0,1,2,3,4,5,6,7",
        "ets class-of-priority 0,1,2,3,4,5,6,7",
        "pfc enabled 0x08",
        "pfc macsec-bypass 0",
        "pfc delay 5",
        "app table 1:35093=3,5:26=4",
    ]


def test_counters_and_the_order_of_a_table_are_no_difference() -> None:
    one = dcb_text(answer(pfc(0x08, 1), apps((1, 3, 0x8915), (5, 4, 26))))
    assert one == dcb_text(answer(pfc(0x08, 2), apps((5, 4, 26), (1, 3, 0x8915))))
    assert one != dcb_text(answer(pfc(0x00, 1), apps((1, 3, 0x8915), (5, 4, 26))))


def test_what_a_driver_leaves_out_is_left_out() -> None:
    assert dcb_text(answer()) == ""
    assert dcb_text(answer(attribute(ETS, b"\1"), attribute(PFC, b""), apps())) == ""


def test_a_link_is_asked_for_by_its_name() -> None:
    kernel = Scripted({GETDCB: [answer(pfc(0x10, 0))]})
    assert read_dcb(kernel, "rail0").startswith("pfc enabled 0x10")
    assert kernel.asked == [(GETDCB, struct.pack("=BBH", 0, IEEE_GET, 0) + attribute(IFNAME, b"rail0\0"))]


@pytest.mark.parametrize(("code", "is_refused"), [(errno.EOPNOTSUPP, False), (errno.ENODEV, False), (errno.EIO, True)])
def test_where_nobody_answers_there_is_none(code: int, is_refused: bool) -> None:
    class Refusing(Scripted):
        def ask(self, kind: int, body: bytes, operation: str) -> bytes:
            raise KernelError(operation, code)

    if is_refused:
        with pytest.raises(KernelError):
            read_dcb(Refusing({}), "rail0")
    else:
        assert read_dcb(Refusing({}), "rail0") == ""

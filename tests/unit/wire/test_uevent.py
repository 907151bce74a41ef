"""Uevents of the kernel, as Linux 7.2 sends them when an RDMA device comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.wire import WireError
from nri_rdma.wire.uevent import Uevent, read_uevent

VERBS = (
    b"remove@/devices/virtual/infiniband_verbs/uverbs1\0ACTION=remove\0"
    b"DEVPATH=/devices/virtual/infiniband_verbs/uverbs1\0SUBSYSTEM=infiniband_verbs\0"
    b"MAJOR=231\0MINOR=193\0DEVNAME=infiniband/uverbs1\0SEQNUM=1804\0"
)
DEVICE = (
    b"add@/devices/virtual/infiniband/rxe0\0ACTION=add\0DEVPATH=/devices/virtual/infiniband/rxe0\0"
    b"SUBSYSTEM=infiniband\0NAME=rxe0\0SEQNUM=1802\0"
)


def test_a_character_device_is_told_with_its_number() -> None:
    assert read_uevent(VERBS) == Uevent(
        action="remove", subsystem="infiniband_verbs", name="uverbs1", sequence=1804, number=(231, 193)
    )


def test_what_has_no_node_has_no_number() -> None:
    assert read_uevent(DEVICE) == Uevent(action="add", subsystem="infiniband", name="rxe0", sequence=1802, number=None)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"libudev\0\xfe\xed\xca\xfe",
        b"add\0SEQNUM=1\0",
        b"add@devices\0SEQNUM=1\0",
        b"add@/x\0",
        b"add@/x\0SEQNUM=-1\0",
        VERBS.replace(b"MINOR=193\0", b""),
        VERBS.replace(b"MAJOR=231", b"MAJOR=\xd9\xa3"),
    ],
)
def test_what_is_no_uevent_is_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        read_uevent(data)


@given(st.binary(max_size=200) | st.builds(lambda cut, data: VERBS[:cut] + data, st.integers(0, 200), st.binary()))
def test_whatever_comes_is_an_event_or_a_wire_error(data: bytes) -> None:
    try:
        read_uevent(data)
    except WireError:
        return

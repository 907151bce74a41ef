"""When a node that changes in bursts is read."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.host.netlink.pace import INTERVAL_S, LATEST_S, QUIET_S, Pace


def readings(changes: list[float], until: float) -> list[float]:
    """When is read, if somebody looks every millisecond."""
    pace, found, left = Pace(), [], sorted(changes)
    for tick in range(round(until * 1000) + 1):
        now = 10 + tick / 1000
        while left and 10 + left[0] <= now:
            pace.note(10 + left.pop(0))
        if pace.take(now):
            found.append(round(now - 10, 3))
    return found


def test_nothing_is_read_without_a_change() -> None:
    assert (readings([], 5), Pace().due_at) == ([], None)


def test_a_burst_is_one_reading_after_its_end() -> None:
    assert readings([0.0, 0.02, 0.04], 5) == [pytest.approx(0.04 + QUIET_S, abs=0.002)]


def test_a_burst_that_does_not_end_is_read_all_the_same_and_then_twice_a_second() -> None:
    found = readings([number / 1000 for number in range(3000)], 3)
    assert found[0] == pytest.approx(LATEST_S, abs=0.002)
    assert [round(later - earlier, 2) for earlier, later in pairwise(found)] == [INTERVAL_S for _ in found[1:]]


@given(st.lists(st.floats(0, 3), max_size=60))
def test_every_change_is_followed_by_a_reading_soon_and_readings_are_apart(changes: list[float]) -> None:
    found = readings(changes, 5)
    for change in changes:
        assert any(0 <= reading - change <= QUIET_S + INTERVAL_S + 0.01 for reading in found), (change, found)
    for earlier, later in pairwise(found):
        assert later - earlier >= INTERVAL_S - 0.002

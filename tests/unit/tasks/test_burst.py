"""When something that changes in bursts is looked at: each change soon, and not too often."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_rdma.host.netlink.events.linkevents import INTERVAL_S, LATEST_S, QUIET_S
from nri_rdma.tasks.burst import Burst


class Clock:
    """A clock that is set by hand."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


def node_burst(clock: Clock) -> Burst:
    """As a node's links are followed."""
    return Burst(quiet_s=QUIET_S, longest_s=LATEST_S, interval_s=INTERVAL_S, clock=clock)


def readings(changes: list[float], until: float) -> list[float]:
    """When is read, if somebody looks every millisecond."""
    clock, found, left = Clock(), [], sorted(changes)
    burst = node_burst(clock)
    for tick in range(round(until * 1000) + 1):
        now = 10 + tick / 1000
        while left and 10 + left[0] <= now:
            clock.now = 10 + left.pop(0)
            burst.note()
        clock.now = now
        if burst.take():
            found.append(round(now - 10, 3))
    return found


def test_nothing_is_read_without_a_change() -> None:
    assert (readings([], 5), node_burst(Clock()).due_at) == ([], None)


def test_a_burst_is_one_reading_after_its_end() -> None:
    assert readings([0.0, 0.02, 0.04], 5) == [pytest.approx(0.04 + QUIET_S, abs=0.002)]


def test_a_burst_that_does_not_end_is_read_all_the_same_and_then_twice_a_second() -> None:
    found = readings([number / 1000 for number in range(3000)], 3)
    assert found[0] == pytest.approx(LATEST_S, abs=0.002)
    assert [round(later - earlier, 2) for earlier, later in pairwise(found)] == [INTERVAL_S for _ in found[1:]]


@settings(deadline=None)  # its time is not that of the clock on the wall
@given(st.lists(st.floats(0, 3), max_size=60))
def test_every_change_is_followed_by_a_reading_soon_and_readings_are_apart(changes: list[float]) -> None:
    found = readings(changes, 5)
    for change in changes:
        assert any(0 <= reading - change <= QUIET_S + INTERVAL_S + 0.01 for reading in found), (change, found)
    for earlier, later in pairwise(found):
        assert later - earlier >= INTERVAL_S - 0.002


def test_what_is_forgotten_is_not_due_and_the_next_change_is() -> None:
    clock = Clock()
    burst = Burst(quiet_s=1, clock=clock)
    burst.note()
    burst.forget()
    assert (burst.due_at, burst.take()) == (None, False)
    clock.now += 5
    burst.note()
    assert burst.due_at == clock.now + 1


def test_without_a_longest_time_only_quiet_ends_a_burst_and_the_next_one_is_due_at_once_after_its_own() -> None:
    clock = Clock()
    burst = Burst(quiet_s=1, clock=clock)
    for _ in range(1000):
        burst.note()
        clock.now += 0.9
        assert not burst.take()
    clock.now += 0.1
    assert burst.take()
    burst.note()
    assert burst.due_at == clock.now + 1


def test_a_change_that_another_thread_forgets_while_its_time_is_asked_for_is_no_error() -> None:
    """The listening thread asks, and a thread that reads the node forgets."""

    class Forgetful(Burst):
        """Forgets after each look at whether there was a change."""

        _asked: float | None = None

        @property
        def _first(self) -> float | None:
            asked, self._asked = self._asked, None
            return asked

        @_first.setter
        def _first(self, first: float | None) -> None:
            self._asked = first

    burst = Forgetful(quiet_s=1, longest_s=2, clock=Clock())
    burst._first = 10.0
    assert burst.due_at is not None
    assert burst.due_at is None

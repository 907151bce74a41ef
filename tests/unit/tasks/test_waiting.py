"""Waits for tasks end with the task or with the time, whichever is first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.tasks.waiting import all_settled, settled, wait

SOON = 20.0
SHORT = 0.02


def done() -> Future[None]:
    made: Future[None] = Future()
    made.set_result(None)
    return made


def failed() -> Future[None]:
    made: Future[None] = Future()
    made.set_exception(ValueError("no"))
    return made


def cancelled() -> Future[None]:
    made: Future[None] = Future()
    made.cancel()
    return made


@pytest.fixture
def later() -> Iterator[Callable[[Future[None]], Future[None]]]:
    """Ends a task from another thread after a short time."""
    timers: list[threading.Timer] = []

    def end(future: Future[None]) -> Future[None]:
        timers.append(threading.Timer(SHORT, future.set_result, (None,)))
        timers[-1].start()
        return future

    yield end
    for timer in timers:
        timer.join()


Wait = Callable[[Future[None], float], bool]


@pytest.mark.parametrize("waits", [wait, settled])
@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, SOON])
def test_a_task_that_has_ended_is_not_waited_for(waits: Wait, timeout_s: float) -> None:
    begun = time.monotonic()
    assert waits(done(), timeout_s) is True
    assert time.monotonic() - begun < SOON / 2


@pytest.mark.parametrize("waits", [wait, settled])
@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, SHORT])
def test_a_task_that_has_not_ended_in_time_is_false(waits: Wait, timeout_s: float) -> None:
    begun = time.monotonic()
    assert waits(Future(), timeout_s) is False
    assert time.monotonic() - begun >= timeout_s


@pytest.mark.parametrize("waits", [wait, settled])
def test_a_task_is_waited_for_until_it_ends(waits: Wait, later: Callable[[Future[None]], Future[None]]) -> None:
    assert waits(later(Future()), SOON) is True


def test_what_a_task_raised_is_raised_to_who_waits_for_it() -> None:
    with pytest.raises(ValueError, match="no"):
        wait(failed(), SOON)


def test_a_cancelled_task_is_raised_to_who_waits_for_it() -> None:
    with pytest.raises(CancelledError):
        wait(cancelled(), SOON)


@pytest.mark.parametrize("end", [done, failed, cancelled])
def test_a_task_has_settled_however_it_ended(end: Callable[[], Future[None]]) -> None:
    assert settled(end(), 0.0) is True


def test_a_task_that_ran_out_of_time_itself_has_settled() -> None:
    future: Future[None] = Future()
    future.set_exception(TimeoutError("the kubelet"))
    assert settled(future, 0.0) is True


# Several


@given(st.lists(st.sampled_from([done, failed, cancelled, Future])))
def test_all_have_settled_when_each_has(ends: list[Callable[[], Future[None]]]) -> None:
    assert all_settled([end() for end in ends], time.monotonic()) is (Future not in ends)


def test_several_are_waited_for_until_the_last_ends(later: Callable[[Future[None]], Future[None]]) -> None:
    assert all_settled([later(Future()), done(), later(Future())], time.monotonic() + SOON) is True


def test_tasks_that_do_not_end_are_waited_for_until_that_time() -> None:
    by = time.monotonic() + SHORT
    assert all_settled([Future() for _ in range(50)], by) is False
    assert time.monotonic() >= by


class _Slow(Future[None]):
    """A task that ends after a while, and notes how long each wait for it may take."""

    def __init__(self, takes_s: float) -> None:
        super().__init__()
        self.takes_s = takes_s
        self.may_wait_s: list[float | None] = []

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.may_wait_s.append(timeout)
        time.sleep(self.takes_s)
        return None


def test_the_time_that_one_took_is_gone_for_the_next() -> None:
    tasks = [_Slow(SHORT), _Slow(SHORT), _Slow(0.0)]
    assert all_settled(tasks, time.monotonic() + SOON) is True
    ((first,), (second,), (third,)) = (task.may_wait_s for task in tasks)
    assert first is not None
    assert second is not None
    assert third is not None
    assert SOON >= first >= second + SHORT >= third + 2 * SHORT

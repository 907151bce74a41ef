"""One thread calls what is due, whatever became of the calls before."""

from __future__ import annotations

import threading

import pytest

from nri_rdma.attach.timers import start_timer
from nri_rdma.tasks.clock import Clock

SOON = 20.0


def test_calls_come_in_the_order_of_their_times_and_not_before() -> None:
    clock, called, is_over = Clock(), list[str](), threading.Event()
    clock.schedule(0.3, is_over.set)
    clock.schedule(0.2, lambda: called.append("late"))
    clock.schedule(0.05, lambda: called.append("early"))
    assert called == []
    assert is_over.wait(SOON)
    assert called == ["early", "late"]


def test_what_is_cancelled_is_not_called() -> None:
    clock, called, is_over = Clock(), list[str](), threading.Event()
    cancel = clock.schedule(0.05, lambda: called.append("cancelled"))
    clock.schedule(0.1, is_over.set)
    cancel()
    cancel()
    assert is_over.wait(SOON)
    assert called == []


def test_an_error_is_logged_and_the_next_call_comes(caplog: pytest.LogCaptureFixture) -> None:
    clock, is_over = Clock(), threading.Event()
    clock.schedule(0.0, [].pop)
    clock.schedule(0.01, is_over.set)
    assert is_over.wait(SOON)
    assert "a scheduled call failed" in caplog.text


def test_a_pause_needs_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may have as many as it is allowed."""
    start_timer(0.0, lambda: None)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    is_due = threading.Event()
    start_timer(0.01, is_due.set)
    assert is_due.wait(SOON)


def test_a_pause_does_not_keep_the_process_from_ending() -> None:
    """Python waits at its end for threads that are no daemons."""
    before = set(threading.enumerate())
    Clock()
    (clock,) = set(threading.enumerate()) - before
    assert clock.daemon

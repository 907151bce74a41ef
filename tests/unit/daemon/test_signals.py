"""A signal is answered while the main thread is blocked, and whichever thread the kernel gives it to."""

from __future__ import annotations

import fcntl
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from nri_rdma.daemon.signals import Signals
from tests.rig.descriptors import open_descriptors

SOON = 20.0
PIPE_BYTES = 4096
"""The smallest pipe: a page."""


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def answered(send: Callable[[], None]) -> str:
    """What the answer to a signal says to the main thread, which waits in a system call."""
    ours, theirs = socket.socketpair()
    ours.settimeout(SOON)
    answers = {number: lambda number=number: theirs.sendall(number.name.encode()) for number in (HUP, USR1)}
    signals = Signals(answers)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        return ours.recv(64).decode()
    finally:
        sender.join()
        signals.close()
        ours.close()
        theirs.close()


HUP, USR1 = signal.SIGHUP, signal.SIGUSR1


@pytest.mark.parametrize("number", [HUP, USR1])
def test_a_signal_to_the_process_is_answered(number: signal.Signals) -> None:
    assert answered(lambda: signal.raise_signal(number)) == number.name


@pytest.mark.parametrize("number", [HUP, USR1])
def test_a_signal_that_another_thread_takes_is_answered(number: signal.Signals) -> None:
    assert answered(lambda: signal.pthread_kill(threading.get_ident(), number)) == number.name


def test_a_signal_that_somebody_else_answers_is_passed_over() -> None:
    theirs, ours = threading.Event(), threading.Event()
    signal.signal(USR1, lambda _number, _frame: theirs.set())
    signals = Signals({HUP: ours.set})
    try:
        signal.raise_signal(USR1)
        signal.raise_signal(HUP)
        assert (theirs.is_set(), ours.wait(SOON)) == (True, True)
    finally:
        signals.close()


def test_afterwards_no_thread_and_no_descriptor_are_left() -> None:
    threads, descriptors = set(threading.enumerate()), open_descriptors()
    Signals({HUP: lambda: None}).close()
    assert set(threading.enumerate()) <= threads
    assert open_descriptors() <= descriptors
    assert signal.set_wakeup_fd(-1) == -1


def test_the_end_waits_for_an_answer_that_is_being_given_and_the_end_of_the_process_does_not() -> None:
    given, release, ended = threading.Event(), threading.Event(), list[bool]()

    def answer() -> None:
        given.set()
        ended.append(release.wait(SOON))

    before = {*threading.enumerate()}
    signals = Signals({HUP: answer})
    (thread,) = {*threading.enumerate()} - before
    assert thread.daemon
    signal.raise_signal(HUP)
    assert given.wait(SOON)
    late = threading.Timer(0.05, release.set)
    late.start()
    signals.close()
    assert (ended, thread.is_alive()) == ([True], False)
    late.join()


def test_more_signals_than_anybody_can_answer_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter would write one for each to our stderr, past our log."""
    given, release, told = threading.Event(), threading.Event(), list[object]()

    def answer() -> None:
        given.set()
        assert release.wait(SOON)

    monkeypatch.setattr(sys, "unraisablehook", told.append)
    signals = Signals({HUP: answer})
    late = threading.Timer(0.05, release.set)
    fcntl.fcntl(signals._writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        signal.raise_signal(HUP)
        assert given.wait(SOON)
        for _ in range(PIPE_BYTES + 1):
            signal.raise_signal(HUP)
        late.start()
    finally:
        signals.close()
        release.set()
    late.join()
    assert told == []


def test_an_answer_comes_for_each_of_two_signals() -> None:
    seen: list[str] = []
    both = threading.Event()

    def note(name: str) -> None:
        seen.append(name)
        if len(seen) > 1:
            both.set()

    signals = Signals({HUP: lambda: note("hup"), USR1: lambda: note("usr1")})
    try:
        signal.raise_signal(HUP)
        signal.raise_signal(USR1)
        assert both.wait(SOON)
    finally:
        signals.close()
    assert seen == ["hup", "usr1"]

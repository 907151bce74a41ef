"""One thread listens to several sources: none keeps another waiting, and none ends with another."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeAlias

import pytest

from nri_rdma.tasks import listeners as module
from nri_rdma.tasks.listeners import Listeners, Source
from tests.rig.deadline import wait_until
from tests.rig.descriptors import open_descriptors

SOON = 20.0
Pipe: TypeAlias = Callable[[str], "_Pipe"]


class _Pipe:
    """A source that notes what is written to it. It can be made to raise, and to take its time."""

    def __init__(self, name: str) -> None:
        self.out, self._in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.heard: list[str] = []
        self.threads: set[str] = set()
        self.before: Callable[[], None] = lambda: None
        self.source = Source(name=name, fd=self.out, read=self.read)

    def read(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.before()
        self.heard.append(os.read(self.out, 1).decode())

    def write(self, text: str) -> None:
        os.write(self._in, text.encode())

    def hears(self, *text: str) -> None:
        wait_until(lambda: self.heard == list(text), f"{self.source.name} to hear {text}", seconds=SOON)

    def close(self) -> None:
        for fd in (self.out, self._in):
            os.close(fd)


class _Failures:
    """Notes which source was reported."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.at: list[float] = []

    def __call__(self, name: str) -> None:
        self.names.append(name)
        self.at.append(time.monotonic())


@pytest.fixture
def failures() -> _Failures:
    return _Failures()


@pytest.fixture
def listeners(failures: _Failures) -> Iterator[Listeners]:
    made = Listeners(failures, rest_s=0.05)
    yield made
    made.close()


@pytest.fixture
def pipe(listeners: Listeners) -> Iterator[Pipe]:
    """Makes sources that are listened to."""
    made: list[_Pipe] = []

    def make(name: str) -> _Pipe:
        made.append(_Pipe(name))
        listeners.add(made[-1].source)
        return made[-1]

    yield make
    for it in made:
        listeners.remove(it.source)
        it.close()


def broken() -> None:
    """As a source with a bug."""
    raise RuntimeError("broken")


def test_all_sources_are_read_by_one_thread(pipe: Pipe) -> None:
    sources = [pipe(name) for name in ("a", "b", "c")]
    for source in sources:
        source.write("xy")
    for source in sources:
        source.hears("x", "y")
    assert {name for source in sources for name in source.threads} == {"listeners"}


def test_a_listener_that_dies_is_logged_reported_and_listened_to_again_while_the_others_go_on(
    pipe: Pipe, failures: _Failures, caplog: pytest.LogCaptureFixture
) -> None:
    dying, other = pipe("dying"), pipe("other")
    dying.before = broken
    dying.write("x")
    wait_until(lambda: failures.names[:3] == ["dying"] * 3, "the failure to be reported each time", seconds=SOON)
    other.write("y")
    other.hears("y")
    dying.before = lambda: None
    dying.hears("x")
    assert set(failures.names) == {"dying"}
    (record, *_) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (record.message, record.__dict__["listener"]) == ("a listener failed", "dying")
    assert record.exc_info is not None


def test_a_source_that_never_works_again_rests_longer_each_time_and_costs_no_processor_time(
    pipe: Pipe, failures: _Failures
) -> None:
    dead = pipe("dead")
    dead.before = broken
    dead.write("x")
    before = time.process_time()
    wait_until(lambda: len(failures.at) >= 4, "four failures", seconds=SOON)
    assert time.process_time() - before < 0.2
    rests = [later - earlier for earlier, later in zip(failures.at, failures.at[1:], strict=False)]
    # Half of each: a failure that is noted late makes the rest after it look shorter.
    assert all(rest >= 0.05 * 2**number / 2 for number, rest in enumerate(rests)), rests


def test_a_source_that_worked_again_rests_as_short_as_the_first_time() -> None:
    it = module._Listened(Source(name="a", fd=0, read=lambda: None))
    assert [it.fail(1.0) for _ in range(3)] == [1.0, 2.0, 4.0]
    it.turn(0)  # nothing was there to read, which proves nothing
    assert it.fail(1.0) == 8.0
    it.turn(1)
    assert it.fail(1.0) == 1.0
    assert [it.fail(1.0) for _ in range(40)][-1] == module.LONGEST_REST_S


def test_a_descriptor_that_somebody_else_closed_is_a_failure_and_not_a_silence(
    listeners: Listeners, pipe: Pipe, failures: _Failures
) -> None:
    """Also where its reader takes such an error for lost events, and goes on."""
    other, closed = pipe("other"), _Pipe("closed")
    closed.close()
    turns: list[float] = []
    source = Source(name="closed", fd=closed.out, read=lambda: turns.append(time.monotonic()))
    listeners.add(source)
    wait_until(lambda: "closed" in failures.names, "the failure to be reported", seconds=SOON)
    other.write("y")
    other.hears("y")
    listeners.remove(source)
    assert not turns


@pytest.mark.parametrize("where", ["settle", "due_at"])
def test_a_source_that_fails_at_its_time_is_reported_and_the_others_go_on(
    listeners: Listeners, pipe: Pipe, failures: _Failures, where: str
) -> None:
    other, failing = pipe("other"), _Pipe("failing")

    def due_at() -> float | None:
        if where == "due_at":
            broken()
        return 0.0

    source = Source(name="failing", fd=failing.out, read=failing.read, due_at=due_at, settle=broken)
    listeners.add(source)
    other.write("x")
    wait_until(lambda: "failing" in failures.names, "the failure to be reported", seconds=SOON)
    other.write("y")
    other.hears("x", "y")
    listeners.remove(source)
    failing.close()


def test_an_owner_that_cannot_hear_of_a_failure_does_not_end_the_others(caplog: pytest.LogCaptureFixture) -> None:
    def deaf(_name: str) -> None:
        raise ValueError("deaf")

    listeners, failing, other = Listeners(deaf, rest_s=0.01), _Pipe("failing"), _Pipe("other")
    failing.before = broken
    try:
        for it in (failing, other):
            listeners.add(it.source)
            it.write("x")
        other.hears("x")
        wait_until(lambda: "was not handled" in caplog.text, "the log line", seconds=SOON)
        other.write("y")
        other.hears("x", "y")
    finally:
        listeners.close()
        failing.close()
        other.close()


def test_a_source_is_settled_at_its_time_although_there_is_nothing_to_read(listeners: Listeners) -> None:
    due: list[float] = [time.monotonic() + 0.05]
    settled: list[float] = []
    quiet = _Pipe("quiet")

    def settle() -> None:
        settled.append(time.monotonic() - due.pop())

    source = Source(name="quiet", fd=quiet.out, read=quiet.read, due_at=lambda: due[0] if due else None, settle=settle)
    listeners.add(source)
    wait_until(lambda: bool(settled), "the time", seconds=SOON)
    assert settled[0] >= 0
    listeners.remove(source)
    quiet.close()
    assert len(settled) == 1


PAUSE_S = 0.3


class _Pausing(_Pipe):
    """A source with a pause that reads all there is, and is settled so long after a reading as a test says."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.read_at: list[float] = []
        self.settles_after_s: float | None = None
        self.due: float | None = None
        self.settled: list[tuple[str, ...]] = []
        self.source = Source(
            name=name, fd=self.out, read=self.read, due_at=lambda: self.due, settle=self.settle, pause_s=PAUSE_S
        )

    def read(self) -> None:
        self.read_at.append(time.monotonic())
        self.heard.append(os.read(self.out, 100).decode())
        if self.settles_after_s is not None:
            self.due = time.monotonic() + self.settles_after_s

    def settle(self) -> None:
        self.settled.append(tuple(self.heard))
        self.due = None


@pytest.fixture
def pausing(listeners: Listeners) -> Iterator[_Pausing]:
    made = _Pausing("pausing")
    listeners.add(made.source)
    yield made
    listeners.remove(made.source)
    made.close()


def test_what_comes_in_a_pause_is_read_at_its_end_and_wakes_nobody_before(pausing: _Pausing) -> None:
    pausing.write("first")
    pausing.hears("first")
    for text in ("b", "c", "d"):
        pausing.write(text)
        time.sleep(0.02)
    wait_until(lambda: "".join(pausing.heard) == "firstbcd", "the rest", seconds=SOON)
    # More than one reading if this thread did not run for a pause, but never one in a pause.
    assert min(later - earlier for earlier, later in pairwise(pausing.read_at)) > PAUSE_S - 0.01


def test_what_comes_after_a_pause_is_read_at_once(pausing: _Pausing) -> None:
    """In one of three tries: who waits for another pause does it each time, and a busy machine does not."""
    waits: list[float] = []
    for text in "abc":
        begin = time.monotonic()
        pausing.write(text)
        wait_until(lambda text=text: pausing.heard[-1:] == [text], "it", seconds=SOON)  # type: ignore[misc] # a loop's value
        waits.append(time.monotonic() - begin)
        time.sleep(PAUSE_S)
    assert min(waits[1:]) < PAUSE_S / 2


def test_a_source_is_settled_at_its_time_in_a_pause_too(pausing: _Pausing) -> None:
    pausing.settles_after_s = PAUSE_S / 3
    pausing.write("x")
    pausing.hears("x")
    pausing.write("y")
    pausing.hears("x", "y")
    assert pausing.settled[0] == ("x",)


def test_a_flood_keeps_no_other_source_waiting(pipe: Pipe, listeners: Listeners) -> None:
    """A source that always has more to read, and takes its whole turn each time. Its turns are the clock here."""
    flood, other = _Pipe("flood"), pipe("other")
    turns, written, heard = [0], list[int](), list[int]()

    def read() -> None:
        turns[0] += 1
        if len(written) == len(heard) < 3:
            written.append(turns[0])
            other.write("x")
        time.sleep(module.TURN_S)

    other.before = lambda: heard.append(turns[0])
    source = Source(name="flood", fd=flood.out, read=read)
    flood.write("x")
    listeners.add(source)
    try:
        wait_until(lambda: len(heard) == 3, "the other source", seconds=SOON)
    finally:
        listeners.remove(source)
        flood.close()
    assert all(later - earlier <= 1 for earlier, later in zip(written, heard, strict=True)), (written, heard)


def test_a_source_that_is_removed_is_not_in_a_turn_and_gets_no_other(listeners: Listeners) -> None:
    it, running, go = _Pipe("removed"), threading.Event(), threading.Event()

    def hold() -> None:
        running.set()
        assert go.wait(SOON)

    it.before = hold
    listeners.add(it.source)
    it.write("xy")
    assert running.wait(SOON)
    remover = threading.Thread(target=listeners.remove, args=(it.source,))
    remover.start()
    remover.join(0.05)
    assert remover.is_alive(), "it was removed in the middle of its turn"
    go.set()
    remover.join(SOON)
    assert not remover.is_alive()
    assert it.heard == ["x"]
    listeners.remove(it.source)
    it.close()


def test_a_source_may_remove_itself_in_its_turn(listeners: Listeners) -> None:
    it = _Pipe("itself")
    it.before = lambda: listeners.remove(it.source)
    listeners.add(it.source)
    it.write("xy")
    it.hears("x")
    listeners.close()
    assert it.heard == ["x"]
    it.close()


def test_a_source_that_another_removes_in_the_same_round_gets_no_turn(listeners: Listeners) -> None:
    """Whoever removes it may close its descriptor at once."""
    first, gate, removed, last = _Pipe("first"), threading.Event(), _Pipe("removed"), _Pipe("last")

    def until_all_are_ready() -> None:
        gate.wait(SOON)

    first.before = until_all_are_ready
    for it in (first, removed, last):
        listeners.add(it.source)
    first.write("x")
    wait_until(lambda: bool(first.threads), "the first one's turn", seconds=SOON)
    first.before = lambda: listeners.remove(removed.source)
    for it in (first, removed, last):
        it.write("y")
    gate.set()
    last.hears("y")
    first.hears("x", "y")
    assert removed.heard == []
    listeners.remove(first.source)
    listeners.remove(last.source)
    for it in (first, removed, last):
        it.close()


def test_closing_ends_the_thread_and_what_is_added_then_is_not_listened_to() -> None:
    listeners, it = Listeners(), _Pipe("late")
    thread = listeners._thread
    assert thread.daemon  # an end of the process without this one does not wait for it
    listeners.close()
    listeners.close()
    assert not thread.is_alive()
    listeners.add(it.source)
    it.write("x")
    listeners.remove(it.source)
    assert it.heard == []
    it.close()


def test_a_source_that_is_closed_after_it_was_removed_is_closed_at_once(listeners: Listeners) -> None:
    """A descriptor that is waited for keeps what it stands for open: the thread has to be woken."""
    ours, theirs = socket.socketpair()
    source = Source(name="ours", fd=ours.fileno(), read=broken)
    listeners.add(source)
    time.sleep(0.02)  # it waits by now; sooner, and this shows less
    theirs.settimeout(SOON)
    listeners.remove(source)
    ours.close()
    assert theirs.recv(1) == b""
    theirs.close()


def test_what_is_to_be_read_before_its_time_settles_nothing(listeners: Listeners) -> None:
    ours, theirs = socket.socketpair()
    settled: list[bool] = []
    read = threading.Event()

    def hear() -> None:
        ours.recv(1)
        read.set()

    never = time.monotonic() + 3600
    source = Source(name="ours", fd=ours.fileno(), read=hear, due_at=lambda: never, settle=lambda: settled.append(True))
    listeners.add(source)
    theirs.send(b"x")
    assert read.wait(SOON)
    listeners.remove(source)  # after its turn
    assert settled == []
    ours.close()
    theirs.close()


def test_closing_leaves_no_descriptor_open() -> None:
    before = open_descriptors()
    Listeners().close()
    assert open_descriptors() <= before


def test_an_idle_thread_waits_for_ever() -> None:
    it = module._Listened(Source(name="idle", fd=0, read=lambda: None))
    assert it.wakes_at(time.monotonic()) == math.inf


def test_a_source_rests_until_its_time_and_is_heard_then() -> None:
    it = module._Listened(Source(name="a", fd=0, read=lambda: None))
    it.fail(1.0)
    assert it.wakes_at(it.rests_until - 0.5) == it.rests_until
    assert [it.is_resting(it.rests_until + seconds) for seconds in (-0.5, 0.0, 0.5)] == [True, False, False]

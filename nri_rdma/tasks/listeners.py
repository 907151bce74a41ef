"""One thread that listens to several file descriptors, and calls the reader of each one.

A source is a file descriptor with its reader. A turn is one call of that reader. Turns are short, so that no source
keeps the others waiting. If a reader raises, the error is logged, and the source pauses while the others go on.
Meanwhile its events stay in the kernel's buffer; the source handles an overflow of that buffer itself.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger(__name__)

TURN_S = 0.05
"""The longest time that one call of a source's reader may take, in seconds. The remaining events of the source wait
until the readers of the other sources were called."""
REST_S = 1.0
"""The pause of a source after its reader raised, in seconds; doubled after each further failure in a row."""
LONGEST_REST_S = 10.0
"""The longest pause of a source after failures, in seconds. A source that keeps failing is tried again, and reported
again, after each such pause. It is short, because containers of podman and Docker do not start while the source of
their hooks pauses."""


def _never() -> float | None:
    return None


def _nothing() -> None:
    pass


def _nobody(_name: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source:
    """A file descriptor and its reader. The listening thread makes all calls, one at a time; they must not block."""

    name: str
    """The name of the source in log lines."""
    fd: int
    read: Callable[[], None]
    """Called when the descriptor is readable. Must read the events that are there, for at most TURN_S."""
    due_at: Callable[[], float | None] = _never
    """Returns when `settle` must be called next, in seconds of `time.monotonic`; None if no call is due."""
    settle: Callable[[], None] = _nothing
    """Called at the time that `due_at` returns, even if the descriptor is not readable."""
    pause_s: float = 0.0
    """After a call of `read`, the time in seconds for which the descriptor is not listened to. Events that come
    meanwhile are read afterwards in one go. Without the pause the thread would wake for each event, and slow down the
    thread that causes the events."""


class _Listened:
    """A source (a file descriptor and its reader), with the times until which it is not listened to: after a reading,
    and after a failure."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.rests_until = -math.inf
        self._pauses_until = -math.inf
        self._failures = 0

    def is_resting(self, now: float) -> bool:
        return now < self.rests_until

    def wakes_at(self, now: float) -> float:
        """Return when the thread must next wake for this source if no event comes: for its `settle`, or at the end of a
        pause. Times are in seconds of `time.monotonic`."""
        if self.is_resting(now):
            return self.rests_until
        due_at = self.source.due_at()
        hears_at = self._pauses_until if now < self._pauses_until else math.inf
        return hears_at if due_at is None else min(due_at, hears_at)

    def hears(self, now: float) -> bool:
        """Return whether the source's descriptor is listened to now. It is not while the source pauses after a reading
        or a failure."""
        return not self.is_resting(now) and now >= self._pauses_until

    def turn(self, events: int) -> None:
        """Call the source's `read` if its descriptor has `events`, and its `settle` if that is due. Their exceptions
        reach the caller."""
        if events & select.POLLNVAL:
            raise OSError(errno.EBADF, f"the descriptor of {self.source.name} was closed by somebody else")
        if events:
            self._pauses_until = time.monotonic() + self.source.pause_s
            self.source.read()
        due_at = self.source.due_at()
        is_due = due_at is not None and time.monotonic() >= due_at
        if is_due:
            self.source.settle()
        if events or is_due:
            self._failures = 0

    def fail(self, rest_s: float) -> float:
        """Begin the source's pause after a failure, and return the length of the pause in seconds."""
        rest: float = min(rest_s * 2**self._failures, LONGEST_REST_S)
        self._failures = min(self._failures + 1, 16)  # 2**16 s is far beyond the longest rest
        self.rests_until = time.monotonic() + rest
        return rest


class Listeners:
    """The thread that listens to sources; `close` ends and joins it.

    `on_failure` is called in that thread with the name of a source whose reader raised. Events that the reader had
    already taken may be lost, so `on_failure` must cause a rescan. After a pause the source is listened to again.
    """

    def __init__(self, on_failure: Callable[[str], None] = _nobody, *, rest_s: float = REST_S) -> None:
        self._on_failure, self._rest_s = on_failure, rest_s
        self._listened: list[_Listened] = []
        self._in_turn: Source | None = None
        self._changed = threading.Condition()
        self._closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._serve, name="listeners", daemon=True)
        self._thread.start()

    def add(self, source: Source) -> None:
        """Listen to a source from now on. The caller must remove the source before it closes the descriptor. After
        `close` this does nothing."""
        with self._changed:
            if not self._closed:
                self._listened.append(_Listened(source))
                os.eventfd_write(self._wake, 1)

    def remove(self, source: Source) -> None:
        """Stop listening to a source; if it was removed before, do nothing. Waits until a running call of the source's
        reader has returned, unless the reader itself is the caller."""
        with self._changed:
            self._listened = [it for it in self._listened if it.source is not source]
            if not self._closed:
                os.eventfd_write(self._wake, 1)
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(lambda: self._in_turn is not source)

    def close(self) -> None:
        """End and join the thread. A second call does nothing."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)

    def _serve(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                listened = list(self._listened)
            ready = self._wait(listened)
            for it in listened:
                self._give_turn(it, ready.get(it.source.fd, 0))

    def _wait(self, listened: list[_Listened]) -> dict[int, int]:
        """Wait until a descriptor is readable, a source's `settle` is due, or a source's pause ends. Return the poll
        events by descriptor."""
        now, poll = time.monotonic(), select.poll()
        poll.register(self._wake, select.POLLIN)
        wakes_at = min((self._wakes_at(it, now) for it in listened), default=math.inf)
        for it in listened:
            if it.hears(now):
                poll.register(it.source.fd, select.POLLIN)
        patience_ms = None if wakes_at == math.inf else max(0, math.ceil((wakes_at - now) * 1000))
        ready = dict(poll.poll(patience_ms))
        if ready.pop(self._wake, 0):
            os.eventfd_read(self._wake)
        return ready

    def _wakes_at(self, it: _Listened, now: float) -> float:
        try:
            return it.wakes_at(now)
        except Exception as error:  # noqa: BLE001 - as in _give_turn, an error must not end the thread
            self._fail(it, error)
            return it.rests_until

    def _give_turn(self, it: _Listened, events: int) -> None:
        with self._changed:
            if it not in self._listened or it.is_resting(time.monotonic()):
                return
            self._in_turn = it.source
        try:
            it.turn(events)
        except Exception as error:  # noqa: BLE001 - an error of one source must not end the thread for the others
            self._fail(it, error)
        finally:
            with self._changed:
                self._in_turn = None
                self._changed.notify_all()

    def _fail(self, it: _Listened, error: Exception) -> None:
        """Log the error of a source, begin the source's pause, and call `on_failure`."""
        name, rest_s = it.source.name, it.fail(self._rest_s)
        log.error("a listener failed", extra={"listener": name, "rest_s": rest_s}, exc_info=error)
        try:
            self._on_failure(name)
        except Exception:  # an error of the owner must not end the thread, either
            log.exception("the failure of a listener was not handled", extra={"listener": name})

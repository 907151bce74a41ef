"""Signals answered at once, whatever the main thread does.

Python runs a handler in the main thread, between two of its instructions. A signal that comes just before that thread
blocks in a system call, or that the kernel gives to another thread, waits for the call's end: the next event of the
runtime, perhaps hours away. What the interpreter does at once is write the signal's number to a descriptor; a thread of
ours waits for that.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType

_PIPE_BYTES = 64


class Signals:
    """Calls these functions from a thread of its own until closed. To be made and closed by the main thread."""

    def __init__(self, answers: Mapping[signal.Signals, Callable[[], None]]) -> None:
        self._answers = answers
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._writing, False)  # the interpreter demands it
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in answers:
            signal.signal(number, _written)
        self._thread = threading.Thread(target=self._serve, name="signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End and join the thread. From now on these signals do nothing: the process is about to end."""
        signal.set_wakeup_fd(-1)
        os.close(self._writing)  # after the numbers in the pipe the thread reads its end
        self._thread.join()
        os.close(self._reading)

    def _serve(self) -> None:
        while numbers := os.read(self._reading, _PIPE_BYTES):
            for number in numbers:
                answer = self._answers.get(signal.Signals(number))
                if answer is not None:
                    answer()


def _written(_number: int, _frame: FrameType | None) -> None:
    """Do nothing: without a handler the interpreter would not write the number."""

"""Handles signals at once, even while the main thread is blocked.

Python runs signal handlers in the main thread, between two instructions. If the main thread blocks in a system call, a
handler may wait for the end of the call: until the runtime's next event, perhaps for hours. But the interpreter writes
the signal's number to a file descriptor at once. A thread of this module reads that descriptor and calls the handler.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType

_PIPE_BYTES = 64


class Signals:
    """Calls a function for each signal, in a thread of its own, until it is closed. Only the main thread may create and
    close the object."""

    def __init__(self, answers: Mapping[signal.Signals, Callable[[], None]]) -> None:
        self._answers = answers
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._writing, False)  # set_wakeup_fd requires it
        signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        for number in answers:
            signal.signal(number, _written)
        self._thread = threading.Thread(target=self._serve, name="signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. From now on the signals have no effect, because the process is about to end."""
        signal.set_wakeup_fd(-1)
        os.close(self._writing)  # the thread ends after the remaining numbers
        self._thread.join()
        os.close(self._reading)

    def _serve(self) -> None:
        while numbers := os.read(self._reading, _PIPE_BYTES):
            for number in numbers:
                answer = self._answers.get(signal.Signals(number))
                if answer is not None:
                    answer()


def _written(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. The signal needs a handler, because only then Python writes its number to the pipe that the thread of
    Signals reads."""

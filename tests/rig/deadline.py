"""The one way the rig waits: look again until something is so, or say what it waited for."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_POLL_SECONDS = 0.01
_PATIENCE = float(os.environ.get("RIG_PATIENCE", "1"))
"""How many times longer `wait_until` waits than it is told. The lab sets 3, because its machines are emulated."""


class DeadlineError(AssertionError):
    """What did not happen, and after how many seconds we stopped looking."""


def wait_until(look: Callable[[], T | None], what: str | Callable[[], str], seconds: float = 30.0) -> T:
    """The first true answer of look(): no empty list, no 0. Raises DeadlineError when there is none in time.

    The last look begins after that time, however long this process was kept from running. `what` was waited for; a
    function says what there was at the end."""
    seconds *= _PATIENCE
    end = time.monotonic() + seconds
    while True:
        is_last = time.monotonic() > end
        answer = look()
        if answer:
            return answer
        if is_last:
            raise DeadlineError(f"{what if isinstance(what, str) else what()}: not after {seconds:g} s")
        time.sleep(_POLL_SECONDS)

"""Progress lines, so that a person sees what the lab does and what it costs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """One line of progress, at once."""
    print(f"lab: {text}", flush=True)


@contextmanager
def timed(text: str) -> Iterator[None]:
    """Announces a step and, when it succeeded, says how long it took."""
    say(f"{text} ...")
    started = time.monotonic()
    yield
    say(f"{text}: {time.monotonic() - started:.1f} s")

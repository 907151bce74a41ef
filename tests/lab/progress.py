"""Progress lines, so that a person sees what the lab does and what it costs."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """One line of progress, at once."""
    print(f"lab: {text}", flush=True)


@contextmanager
def timed(text: str, into: dict[str, float] | None = None) -> Iterator[None]:
    """Announces a step and, when it succeeded, says how long it took (and notes it in `into`)."""
    say(f"{text} ...")
    started = time.monotonic()
    yield
    seconds = round(time.monotonic() - started, 1)
    if into is not None:
        into[text] = seconds
    say(f"{text}: {seconds:.1f} s")

"""The steps of a self-check of an RDMA device: the time that each step takes, and the step that failed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from nri_rdma.host.verbs import library

STEPS = ("pyverbs", "open", "port", "gid", "register", "qp", "connect", "transfer")
MOST_CHARACTERS = 2000
"""The longest error text of a step. It is limited because a GID table may have hundreds of entries to tell, and a peer
refuses a longer text."""


class StepError(Exception):
    """The error for a step that failed, with the library's error text and, if known, the kernel's error number."""

    def __init__(self, step: str, text: str, errno: int | None = None) -> None:
        text = text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."
        super().__init__(text)
        self.problem = {"step": step, "errno": errno, "text": text}


class Steps:
    """The duration of each step that has run, in milliseconds, by the step's name."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure how long a block runs, and record it under `name`. The durations of several blocks with one name are
        added."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.ms[name] = round(self.ms.get(name, 0) + 1000 * (time.monotonic() - started), 3)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Run a block as the step `name`: measure its time, and turn any exception into a StepError of this step."""
        with self.timed(name), failing(name):
            yield


@contextmanager
def failing(step: str) -> Iterator[None]:
    """Turn any exception in the block into a StepError of this step."""
    try:
        yield
    except StepError:
        raise
    except Exception as error:
        raise StepError(step, library.words(error), library.errno_of(error)) from error

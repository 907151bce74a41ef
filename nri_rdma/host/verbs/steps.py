"""The steps of a self-check: how long each takes, and the one that failed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from nri_rdma.host.verbs import library

STEPS = ("pyverbs", "open", "port", "gid", "register", "qp", "connect", "transfer")


class StepError(Exception):
    """A step failed, with the kernel's error number where there is one, and in the library's words."""

    def __init__(self, step: str, text: str, errno: int | None = None) -> None:
        super().__init__(text)
        self.problem = {"step": step, "errno": errno, "text": text}


class Steps:
    """The times of steps in milliseconds, as far as they were made."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time what is done in it; a step in two parts has the time of both."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.ms[name] = round(self.ms.get(name, 0) + 1000 * (time.monotonic() - started), 3)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Do a step, and time it; whatever the library raises in it is a StepError."""
        with self.timed(name), failing(name):
            yield


@contextmanager
def failing(step: str) -> Iterator[None]:
    """Turn whatever the library raises into a StepError of this step."""
    try:
        yield
    except StepError:
        raise
    except Exception as error:
        raise StepError(step, library.words(error), library.errno_of(error)) from error

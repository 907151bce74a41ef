"""Waits for workers' tasks, never longer than the runtime waits for us."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError


def wait(future: Future[None], timeout_s: float) -> bool:
    """Wait for the end of a worker's task and raise what it raised; False on time-out: the caller goes on, since the
    barrier holds its containers."""
    if timeout_s <= 0 and not future.done():
        return False
    try:
        future.result(max(0.0, timeout_s))
    except FutureTimeoutError:
        return False
    return True


def settled(future: Future[None], timeout_s: float) -> bool:
    """Wait for the end of a worker's task, good or bad; False on time-out."""
    try:
        future.exception(max(0.0, timeout_s))
    except FutureTimeoutError:
        return False
    except CancelledError:
        return True
    return True


def all_settled(futures: Collection[Future[None]], by: float) -> bool:
    """Wait until all tasks have ended; False when they have not by `by`, in seconds of `time.monotonic`."""
    return all(settled(future, by - time.monotonic()) for future in futures)

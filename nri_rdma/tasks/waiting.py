"""Waits for tasks of worker threads, with a time limit, because the runtime disconnects a plugin that answers too
late."""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError


def wait(future: Future[None], timeout_s: float) -> bool:
    """Wait for a task and raise its error, if any. Return False if the task does not end within `timeout_s` seconds.
    The caller may then go on, because the pod's containers wait for the task again before they start."""
    if timeout_s <= 0 and not future.done():
        return False
    try:
        future.result(max(0.0, timeout_s))
    except FutureTimeoutError:
        return False
    return True


def settled(future: Future[None], timeout_s: float) -> bool:
    """Wait until a task has ended, with or without an error. Return False if it does not end within `timeout_s`
    seconds."""
    try:
        future.exception(max(0.0, timeout_s))
    except FutureTimeoutError:
        return False
    except CancelledError:
        return True
    return True


def has_failed(future: Future[None]) -> bool:
    """Return whether a task has ended with an error. False while it runs, and if it was cancelled."""
    return future.done() and not future.cancelled() and future.exception() is not None


def all_settled(futures: Collection[Future[None]], by: float) -> bool:
    """Wait until all tasks have ended. Return False if some task runs longer than `by`, a time in seconds of
    `time.monotonic`."""
    return all(settled(future, by - time.monotonic()) for future in futures)

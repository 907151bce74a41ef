"""How late another thread of this process is, while something else goes on."""

import threading
import time
from collections.abc import Callable

TRIES = 3
"""Who is kept waiting by what goes on is kept waiting each time; who is kept waiting by a busy machine is not."""


def lateness(work: Callable[[], object], enough_s: float) -> float:
    """Return by how many seconds a thread that wants to run every few milliseconds was late, at worst, during `work`:
    the first figure below `enough_s`, or the best of three."""
    best = _lateness(work)
    for _ in range(TRIES - 1):
        if best < enough_s:
            break
        best = min(best, _lateness(work))
    return best


def _lateness(work: Callable[[], object]) -> float:
    worst, done = [0.0], threading.Event()

    def tick() -> None:
        before = time.perf_counter()
        while not done.wait(0.002):
            now = time.perf_counter()
            worst[0], before = max(worst[0], now - before), now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return worst[0]

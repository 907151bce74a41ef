"""An event loop in a thread of its own. It runs calls that may take long, and that their callers may abandon."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class LoopThread:
    """Runs coroutines for other threads, in a thread of its own. The thread starts with the first coroutine. The
    creator of the object closes it."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def run(self, work: Coroutine[Any, Any, _T], within_s: float) -> _T:
        """Run the coroutine in the loop's thread and return its result, or raise its error. Raises TimeoutError after
        `within_s` seconds, and cancels the coroutine. Blocks; must not be called in the loop's thread."""
        if self._thread.ident is None:
            self._thread.start()
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result(within_s)
        finally:
            done.cancel()

    def close(self, within_s: float) -> None:
        """Cancel all coroutines and end the thread. A second call does nothing. After `within_s` seconds a coroutine
        that has not ended is left running until the process ends."""
        if self._loop.is_closed():
            return
        if self._thread.ident is not None:
            asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).add_done_callback(
                lambda _: self._loop.call_soon_threadsafe(self._loop.stop)
            )
            self._thread.join(within_s)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

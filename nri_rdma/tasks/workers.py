"""A few worker threads that take tasks by key.

Tasks of one key (a sandbox) run one after the other in the order given; tasks of different keys run side by side, at
most as many as there are threads, urgent ones (undo) before others (attach).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

Beside: TypeAlias = Callable[[str, Callable[[], None]], Future[None]]
"""Begins work of that key beside the caller; the future carries its result or its exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    work: Callable[[], None]
    urgent: bool
    done: Future[None]

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - the future carries it to who asked
            self.done.set_exception(error)
        else:
            self.done.set_result(None)


def at_once(_key: str, work: Callable[[], None]) -> Future[None]:
    """Do the work in the caller's thread: for who has no workers to do it beside the caller."""
    task = _Task(work=work, urgent=False, done=Future())
    task.run()
    return task.done


class Workers:
    """Worker threads of one owner: `close` ends and joins them."""

    def __init__(self, count: int = 4, name: str = "worker") -> None:
        self._queues: dict[str, deque[_Task]] = {}
        self._running: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, key: str, work: Callable[[], None], *, urgent: bool = False) -> Future[None]:
        """Queue `work`; the future carries its result or its exception."""
        task = _Task(work=work, urgent=urgent, done=Future())
        with self._changed:
            if self._closed:
                task.done.cancel()
            else:
                self._queues.setdefault(key, deque()).append(task)
                self._changed.notify()
        return task.done

    def close(self, within_s: float | None = None) -> tuple[str, ...]:
        """Cancel queued tasks, let running ones end, join the threads; repeating it is no error.

        Waits at most `within_s` seconds and returns the keys of tasks that still run: their threads die with the
        process.
        """
        with self._changed:
            self._closed = True
            dropped = [task for queue in self._queues.values() for task in queue]
            self._queues.clear()
            self._changed.notify_all()
        for task in dropped:
            task.done.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not self._running, within_s)
            running = tuple(sorted(self._running))
        if not running:
            for thread in self._threads:
                thread.join()
        return running

    def _serve(self) -> None:
        while True:
            with self._changed:
                key = self._next_key()
                while key is None and not self._closed:
                    self._changed.wait()
                    key = self._next_key()
                if key is None:
                    return
                task = self._queues[key].popleft()
                self._running.add(key)
            try:
                task.run()
            finally:
                del task  # what it worked on is not kept until the next one comes
                with self._changed:
                    self._running.discard(key)
                    self._pass_on(key)

    def _pass_on(self, key: str) -> None:
        """Release the key's next task. The caller holds the lock. No thread is woken for it: this one takes a task
        next, and each task that it could take instead has woken one when it was submitted. The caller that waits for
        this task needs the interpreter."""
        if self._closed:
            self._changed.notify_all()  # who closes
        elif not self._queues[key]:
            del self._queues[key]

    def _next_key(self) -> str | None:
        """Return the key to serve next: one with urgent work anywhere in its queue comes first, else the oldest."""
        ready = [key for key, queue in self._queues.items() if queue and key not in self._running]
        urgent = (key for key in ready if any(task.urgent for task in self._queues[key]))
        return next(urgent, ready[0] if ready else None)

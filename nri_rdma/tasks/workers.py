"""Worker threads that take tasks by key.

Tasks with the same key (a sandbox id, for example) run one after the other, in the order of submission. Tasks with
different keys run in parallel, as many as there are threads. Keys with an urgent task (an undo) come before others
(attaches).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    work: Callable[[], None]
    urgent: bool
    done: Future[None]

    def run(self) -> None:
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - the future carries it to the caller of `submit`
            self.done.set_exception(error)
        else:
            self.done.set_result(None)


class Workers:
    """A pool of worker threads with one owner: `close` ends and joins them."""

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
        """Queue the task; the future carries its result or its exception. After `close` the future is cancelled."""
        task = _Task(work=work, urgent=urgent, done=Future())
        with self._changed:
            if self._closed:
                task.done.cancel()
            else:
                self._queues.setdefault(key, deque()).append(task)
                self._changed.notify()
        return task.done

    def close(self, within_s: float | None = None) -> tuple[str, ...]:
        """Cancel queued tasks, let running ones finish, and join the threads. A second call is harmless.

        Waits at most `within_s` seconds (None: without limit). Return the keys of tasks that still run; their threads
        end with the process.
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
                del task  # so that its objects are freed before the next task comes
                with self._changed:
                    self._running.discard(key)
                    self._pass_on(key)

    def _pass_on(self, key: str) -> None:
        """Make the key's next task available, after a task has ended; the caller holds the lock. It wakes no thread:
        the calling thread takes the next task itself, and a woken thread would only delay whoever waits for the ended
        task."""
        if self._closed:
            self._changed.notify_all()  # wakes `close`
        elif not self._queues[key]:
            del self._queues[key]

    def _next_key(self) -> str | None:
        """Return the key whose task comes next: a key with an urgent task, otherwise the oldest key. None if no key is
        ready."""
        ready = [key for key, queue in self._queues.items() if queue and key not in self._running]
        urgent = (key for key in ready if any(task.urgent for task in self._queues[key]))
        return next(urgent, ready[0] if ready else None)

"""The CDI devices of a node, in memory and up to date.

DRA drivers write a spec for each claim moments before its container is created, so that the directories are watched
with inotify. A burst of changes is one reading, which parses only files whose bytes have changed. A directory that does
not exist is looked for in the nearest one that does.

Not noticed: a mount over a directory, a symbolic link on the way to it that changes, a directory further up that is
renamed. `refresh` finds what these brought.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from nri_rdma.cdi.reading import Inspected, inspect
from nri_rdma.cdi.registry import Registry, resolve
from nri_rdma.host.cdi.folder import scan
from nri_rdma.host.watch import inotify

log = logging.getLogger(__name__)

QUIET_S = 0.02
"""A burst is over when so much time passes without another change."""
LONGEST_S = 0.2
"""A burst that does not end is read so often."""

_SELF = inotify.DELETE_SELF | inotify.MOVE_SELF
_CONTENT = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO
_MASK = inotify.ONLYDIR | _SELF | _CONTENT | inotify.CLOSE_WRITE | inotify.ATTRIB
_ENDED = _SELF | inotify.UNMOUNT | inotify.IGNORED
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_ATTEMPTS = 8
"""To catch up with directories that come and go while their watches are set; their events follow."""


class CdiRegistry:
    """The devices of some directories, which rise in priority. Safe for use by several threads.

    The first reading is done by who makes it, later ones in a thread of its own, which `close` joins. `on_change` is
    called after each of these, and of `refresh`, in the thread that read; what it raises is logged. Raises OSError when
    the node has no inotify instances left.
    """

    def __init__(
        self,
        directories: Iterable[Path],
        on_change: Callable[[Registry], None] | None = None,
    ) -> None:
        self._directories = tuple(directory.absolute() for directory in directories)
        self._on_change = on_change
        self._lock = threading.Lock()  # over watches and readings: a later reading is never replaced by an earlier
        self._parsed = _Parsed()
        self._inotify = inotify.Inotify()
        self._watches: dict[int, _Watched] = {}
        self._closed = False
        self._read = (Registry(devices={}), 0)
        self.unwatched: tuple[Path, ...] = ()
        """Directories whose changes are not noticed, because the kernel refuses to watch them."""
        self._look()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="cdi-watcher", daemon=True)
        self._thread.start()

    @property
    def current(self) -> Registry:
        """The devices as last read. Each reading makes a new one."""
        return self._read[0]

    @property
    def sequence(self) -> int:
        """The number of readings so far."""
        return self._read[1]

    def refresh(self) -> Registry:
        """Read now. Blocks: for a worker."""
        return self._look_and_tell()

    def close(self) -> None:
        """End and join the thread; again is no error. What was read stays."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        os.write(self._wake_write, b"x")
        self._thread.join()
        with self._lock:  # a refresh may be under way
            self._inotify.close()
            for fd in (self._wake_read, self._wake_write):
                os.close(fd)

    # Reading

    def _look_and_tell(self) -> Registry:
        registry = self._look()
        if self._on_change is not None:
            try:
                self._on_change(registry)
            except Exception:  # the next change must not be lost to what this one's listener did
                log.exception("CDI registry")
        return registry

    def _look(self) -> Registry:
        """Watch what there is now, then read: what changes in between is read again."""
        with self._lock:
            if not self._closed:
                self._watch()
            found = scan(self._directories, self._parsed.inspect)
            self._parsed.forget_others()
            registry = resolve(found.specs, found.problems)
            self._read = (registry, self._read[1] + 1)
        log.debug("CDI specs were read", extra={"devices": len(registry.devices), "problems": len(registry.problems)})
        return registry

    # Watching

    def _watch(self) -> None:
        """Have a watch on each directory, or on the nearest one above it for its name."""
        watches: dict[int, _Watched] = {}
        unwatched = []
        for directory in self._directories:
            try:
                watch, name = self._nearest(directory)
            except OSError as error:
                unwatched.append(directory)
                if directory not in self.unwatched:
                    extra = {"directory": str(directory), "error": error.strerror}
                    log.warning("changes of CDI specs will not be noticed", extra=extra)
            else:
                watches.setdefault(watch, _Watched()).add(name)
        for watch in self._watches.keys() - watches.keys():
            self._inotify.remove(watch)
        self._watches, self.unwatched = watches, tuple(unwatched)

    def _nearest(self, directory: Path) -> tuple[int, str]:
        """A watch on the directory and "", or on one above it and the name to wait for there. Raises OSError."""
        for attempt in range(_ATTEMPTS):
            watch, missing = self._first_watchable(directory)
            if missing is None or not missing.is_dir() or attempt == _ATTEMPTS - 1:
                break
        return watch, "" if missing is None else missing.name

    def _first_watchable(self, directory: Path) -> tuple[int, Path | None]:
        missing = None
        for path in (directory, *directory.parents):
            try:
                return self._inotify.add(str(path), _MASK), missing
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise
                missing = path
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._inotify, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        burst = _Burst()
        while True:
            ready = poll.poll(burst.patience_ms(time.monotonic()))
            if any(fd == self._wake_read for fd, _ in ready):
                return
            if self._has_news():
                burst.goes_on(time.monotonic())
            if burst.is_over(time.monotonic()):
                burst = _Burst()
                try:
                    self._look_and_tell()
                except Exception:  # the thread must not end with what one reading met
                    log.exception("CDI registry")

    def _has_news(self) -> bool:
        """Take the events there are; whether any of them is about CDI specs."""
        with self._lock:
            news = [self._is_news(event) for event in self._inotify.read()]
        return any(news)

    def _is_news(self, event: inotify.FolderEvent) -> bool:
        if event.mask & inotify.Q_OVERFLOW:
            return True
        watched = self._watches.get(event.watch)
        return watched is not None and (bool(event.mask & _ENDED) or watched.awaits(event.name))


class _Watched:
    """What is waited for in a watched directory: names of missing ones, or everything."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, name: str) -> None:
        """Wait for the name too; "" is every name."""
        self._names.add(name)

    def awaits(self, name: str) -> bool:
        return "" in self._names or name in self._names


class _Burst:
    """Changes that follow each other closely; times are those of the monotonic clock."""

    def __init__(self) -> None:
        self._first = math.inf
        self._last = math.inf

    def goes_on(self, now: float) -> None:
        """There was a change."""
        self._first, self._last = min(self._first, now), now

    def is_over(self, now: float) -> bool:
        """Whether it is time to read."""
        return now >= self._end

    def patience_ms(self, now: float) -> int | None:
        """Until then; None without a change."""
        return None if self._end == math.inf else max(0, math.ceil((self._end - now) * 1000))

    @property
    def _end(self) -> float:
        return min(self._last + QUIET_S, self._first + LONGEST_S)


class _Parsed:
    """What files were when they were last read, by their bytes."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, Inspected]] = {}
        self._asked: set[str] = set()

    def inspect(self, data: bytes, file: str) -> Inspected:
        """As nri_rdma.cdi.reading.inspect, which is asked only when the bytes of the file are others."""
        digest = hashlib.blake2b(data, digest_size=16).digest()
        self._asked.add(file)
        known = self._known.get(file)
        if known is None or known[0] != digest:
            known = self._known[file] = (digest, inspect(data, file))
        return known[1]

    def forget_others(self) -> None:
        """Keep what was asked for since the last time."""
        self._known = {file: known for file, known in self._known.items() if file in self._asked}
        self._asked = set()

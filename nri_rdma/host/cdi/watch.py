"""Keeps the CDI devices of a node in memory and up to date.

DRA drivers write a spec for each claim moments before its container is created, so the directories are watched with
inotify. A burst of changes causes one reading by a worker, which opens only changed files. For a directory that does
not exist, the nearest existing parent is watched.

Some changes are not noticed until `refresh` is called: a mount over a directory, a changed symbolic link on its path,
and a renamed directory further up.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from nri_rdma.cdi.registry import Registry, resolve
from nri_rdma.host.cdi.folder import scan_by
from nri_rdma.host.cdi.known_files import KnownFiles
from nri_rdma.host.watch import inotify
from nri_rdma.tasks.burst import Burst
from nri_rdma.tasks.listeners import Listeners, Source

log = logging.getLogger(__name__)

QUIET_S = 0.02
"""Seconds without a change after which a burst of changes is over."""
LONGEST_S = 0.2
"""The longest time in seconds that a burst of changes may delay a reading. A burst that never ends causes a reading
this often."""

_SELF = inotify.DELETE_SELF | inotify.MOVE_SELF
_CONTENT = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO
_MASK = inotify.ONLYDIR | _SELF | _CONTENT | inotify.CLOSE_WRITE | inotify.ATTRIB
_ENDED = _SELF | inotify.UNMOUNT | inotify.IGNORED
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_ATTEMPTS = 8
"""Attempts to watch a directory whose parents appear and disappear meanwhile. After the last attempt, an inotify event
of the watched parent causes a new one."""


class CdiRegistry:
    """The CDI devices in some directories, kept up to date. A later directory has priority over an earlier one. Safe
    for use by several threads.

    The constructor does the first reading, and raises OSError if no inotify instance or descriptor is left. After a
    change, the listening thread calls `read_later`, which has a worker call `refresh`. `refresh` then calls
    `on_change`, whose exceptions are logged.
    """

    def __init__(
        self,
        directories: Iterable[Path],
        on_change: Callable[[Registry], None] | None = None,
        *,
        listeners: Listeners,
        read_later: Callable[[], object],
    ) -> None:
        self._directories = tuple(directory.absolute() for directory in directories)
        self._on_change = on_change
        self._read_later = read_later
        self._lock = threading.Lock()  # guards watches and readings: no reading replaces a later one
        self._known = KnownFiles()
        self._inotify = inotify.Inotify()
        self._watches: dict[int, _Watched] = {}
        self._closed = False
        self._read = (Registry(devices={}), 0)
        self.unwatched: tuple[Path, ...] = ()
        """Directories whose changes are not noticed, because the kernel refused to watch them."""
        try:
            self._look()
        except OSError:
            self._inotify.close()
            raise
        self._burst = Burst(quiet_s=QUIET_S, longest_s=LONGEST_S)
        self._listeners = listeners
        self._source = Source(
            name="CDI specs",
            fd=self._inotify.fileno(),
            read=self._take,
            due_at=lambda: self._burst.due_at,
            settle=self._settle,
        )
        listeners.add(self._source)

    @property
    def current(self) -> Registry:
        """The CDI devices of the newest reading. The returned object never changes."""
        return self._read[0]

    @property
    def sequence(self) -> int:
        """The number of readings so far, by which callers notice a new one."""
        return self._read[1]

    def refresh(self) -> Registry:
        """Read the directories now and return the CDI devices. Blocks: call it from a worker. Raises OSError if the
        process has no file descriptor or memory left; then the devices of the reading before stay."""
        registry = self._look()
        if self._on_change is not None:
            try:
                self._on_change(registry)
            except Exception:  # the reading counts all the same; the next change is reported again
                log.exception("a change of CDI specs was not handled")
        return registry

    def close(self) -> None:
        """Stop watching. Closing twice does nothing. The devices read so far stay available."""
        self._listeners.remove(self._source)
        with self._lock:  # a refresh may be under way
            if not self._closed:
                self._closed = True
                self._inotify.close()

    # Reading

    def _look(self) -> Registry:
        """Watch the directories that exist now, read them, and return their devices. Watching comes first, so that a
        change in between causes another reading."""
        with self._lock:
            if not self._closed:
                self._watch()
            found = scan_by(self._directories, self._known.read)
            self._known.forget_others()
            registry = resolve(found.specs, found.problems)
            self._read = (registry, self._read[1] + 1)
        log.debug("CDI specs were read", extra={"devices": len(registry.devices), "problems": len(registry.problems)})
        return registry

    # Watching

    def _watch(self) -> None:
        """Watch each directory. If a directory is missing, watch its nearest existing parent, and wait for the missing
        name."""
        watches: dict[int, _Watched] = {}
        unwatched = []
        for directory in self._directories:
            try:
                watch, name = self._nearest(directory)
            except OSError as error:
                unwatched.append(directory)
                if directory not in self.unwatched:
                    extra = {"directory": str(directory), "error": error.strerror}
                    log.warning("changes of CDI specs in a directory will not be noticed", extra=extra)
            else:
                watches.setdefault(watch, _Watched()).add(name)
        others = self._watches.keys() - watches.keys()
        # Set before watches are removed, so that the end of a removed watch does not count as a change.
        self._watches, self.unwatched = watches, tuple(unwatched)
        for watch in others:
            self._inotify.remove(watch)

    def _nearest(self, directory: Path) -> tuple[int, str]:
        """Watch the directory, or its nearest existing parent if it is missing. Return the watch number, and the
        missing name to wait for in the parent; "" if the directory exists. Raises OSError if the kernel refuses the
        watch."""
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

    # Listening does not take the lock, because a reading holds it while it parses. A watch that is not
    # yet in `_watches` was set by a reading under way, which will see the change that the event reports.

    def _take(self) -> None:
        """Read the pending inotify events. If one of them concerns CDI specs, arrange that the specs are read again."""
        news = [self._is_news(event) for event in self._inotify.read()]
        if any(news):
            self._burst.note()

    def _settle(self) -> None:
        if self._burst.take():
            self._read_later()

    def _is_news(self, event: inotify.FolderEvent) -> bool:
        if event.mask & inotify.Q_OVERFLOW:
            return True
        watched = self._watches.get(event.watch)
        return watched is not None and (bool(event.mask & _ENDED) or watched.awaits(event.name))


class _Watched:
    """The reason why a directory is watched: either its entries are CDI specs, or one of its entries is missing and
    awaited."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, name: str) -> None:
        """Also wait for an entry with this name; "" stands for every name."""
        self._names.add(name)

    def awaits(self, name: str) -> bool:
        return "" in self._names or name in self._names

"""Faults that happen at the boundaries of steps, planted from outside of the process that they happen in.

They are kept in a folder. Its file `faults` holds one a line, and may be written anew at any time; `places` gets a line
for every boundary that was passed: the process id and the place.

    [TIMES*]PLACE=ACTION

PLACE is how the boundary's name begins, for instance `after move-netdev mlx5_1`; TIMES is how often it happens, 1 by
default, `always` for ever. What happens is taken off the list before: a process that is started after a `kill` is not
killed there again. ACTION is one of

    error           an error that is no kernel's
    error:EBUSY     the error that a step makes of this answer of the kernel
    delay:MS        that many milliseconds pass
    kill            the process ends with SIGKILL
    pause           it waits until there is a file `go`; the file `paused` says where
"""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from tests.rig.deadline import wait_until

ALWAYS = -1
_POLL_S = 0.005
_PAUSE_ENDS_S = 60.0
"""A test that died must not leave a process that waits for ever."""

Fail = Callable[[str, str, int | None], Exception]
"""The error to raise, of a text, a place and the kernel's number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What happens at a place, and how often; ALWAYS is for ever."""

    place: str
    action: str
    times: int = 1

    @classmethod
    def parse(cls, line: str) -> Self:
        """A line of the file `faults`."""
        left, _, action = line.rpartition("=")
        times, star, place = left.partition("*")
        if not star:
            return cls(place=left, action=action)
        return cls(place=place, action=action, times=ALWAYS if times == "always" else int(times))

    def __str__(self) -> str:
        return f"{'always' if self.times == ALWAYS else self.times}*{self.place}={self.action}"


class Planted:
    """The boundary of the process in which the faults happen."""

    def __init__(self, folder: Path, fail: Fail) -> None:
        self._folder = folder
        self._fail = fail
        self._lock = threading.Lock()
        self._places = os.open(folder / "places", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __call__(self, place: str) -> None:
        # One write each, before anything happens: whoever reads it after a kill knows how far it came.
        os.write(self._places, f"{os.getpid()} {place}\n".encode())
        fault = self._taken(place)
        if fault is not None:
            self._happen(fault.action, place)

    def _taken(self, place: str) -> Fault | None:
        with self._lock:
            faults = _read(self._folder)
            found = next((it for it in faults if it.times and place.startswith(it.place)), None)
            if found is not None and found.times != ALWAYS:
                left = [replace(it, times=it.times - 1) if it is found else it for it in faults]
                _write(self._folder, tuple(it for it in left if it.times))
            return found

    def _happen(self, action: str, place: str) -> None:
        kind, _, detail = action.partition(":")
        match kind:
            case "error":
                text = f"a planted fault: {detail}" if detail else "a planted fault"
                raise self._fail(text, place, getattr(errno, detail) if detail else None)
            case "delay":
                time.sleep(int(detail) / 1000)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "pause":
                self._pause(place)
            case _:
                raise ValueError(f"{action!r} is no action")

    def _pause(self, place: str) -> None:
        _replace(self._folder / "paused", place)
        end = time.monotonic() + _PAUSE_ENDS_S
        while not (self._folder / "go").exists() and time.monotonic() < end:
            time.sleep(_POLL_S)


class Faults:
    """The folder, as the test has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def plant(self, *lines: str) -> None:
        """These faults, and no others."""
        for name in ("paused", "go"):
            (self.folder / name).unlink(missing_ok=True)
        _write(self.folder, tuple(Fault.parse(line) for line in lines))

    def pending(self) -> tuple[str, ...]:
        """The faults that did not happen yet, or not often enough."""
        return tuple(str(fault) for fault in _read(self.folder))

    def wait_paused(self, seconds: float = 15.0) -> str:
        """Waits until the process does, and says where."""
        file = self.folder / "paused"
        return wait_until(lambda: file.read_text() if file.exists() else None, f"a pause at {self.pending()}", seconds)

    def go(self) -> None:
        """Ends the pause."""
        (self.folder / "go").touch()

    def places(self, pid: int) -> tuple[str, ...]:
        """The boundaries that a process has passed, in order."""
        file = self.folder / "places"
        lines = file.read_text().splitlines() if file.exists() else []
        return tuple(line.partition(" ")[2] for line in lines if line.startswith(f"{pid} "))


def _read(folder: Path) -> tuple[Fault, ...]:
    file = folder / "faults"
    return tuple(Fault.parse(line) for line in file.read_text().splitlines()) if file.exists() else ()


def _write(folder: Path, faults: tuple[Fault, ...]) -> None:
    _replace(folder / "faults", "".join(f"{fault}\n" for fault in faults))


def _replace(file: Path, text: str) -> None:
    beside = file.with_name(f"{file.name}.new")
    beside.write_text(text)
    beside.rename(file)

"""A server that a test starts, with a log that goes to a file and can be asked for a line."""

import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

_TAIL_LINES = 8


class ServerEndedError(AssertionError):
    """The server is gone; the message holds its last words."""


class Server:
    """Runs between __enter__ and __exit__; ends with SIGTERM, after 15 s with SIGKILL."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._lines: list[str] = []

    def __enter__(self) -> Self:
        pipe, merged = subprocess.PIPE, subprocess.STDOUT
        self._process = subprocess.Popen(self._command, stdout=pipe, stderr=merged, text=True)
        assert self._process.stdout is not None  # asked for above
        self._reader = threading.Thread(target=self._copy, args=(self._process.stdout,), name=self._log.stem)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=15)

    def kill_and_start(self) -> None:
        """SIGKILL, and another one with the same command. The reader of the old one ends with the last process that has
        its pipe."""
        self._process.kill()
        self._process.wait()
        self.__enter__()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_logged(self, pattern: str) -> bool:
        """Whether a line of the log so far holds the pattern; ServerEndedError when the server is gone."""
        self.check_runs()
        return any(re.search(pattern, line) for line in self._lines)

    def check_runs(self) -> None:
        """ServerEndedError when the server is gone."""
        code = self._process.poll()
        if code is not None:
            self._reader.join(timeout=15)
            words = "\n".join(self._lines[-_TAIL_LINES:])
            raise ServerEndedError(f"{self._log.stem} ended with {code}; its last words:\n{words}")

    def _copy(self, output: IO[str]) -> None:
        with self._log.open("a") as log:
            for line in output:
                log.write(line)
                log.flush()
                self._lines.append(line.rstrip("\n"))

"""A server that a test starts: its log goes to a file, and a test can wait for a line of it."""

import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self


class Server:
    """Runs between __enter__ and __exit__; ends with SIGTERM, after 15 s with SIGKILL."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._log = log
        self._environment = environment
        self._lines: list[str] = []
        self._ended = False
        self._news = threading.Condition()

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, env=self._environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
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

    def wait_for_line(self, pattern: str, seconds: float) -> str:
        """The first line, old or new, in which the pattern is found; fails with the log's end when there is none."""
        end = time.monotonic() + seconds
        seen = 0
        with self._news:
            while True:
                for line in self._lines[seen:]:
                    if re.search(pattern, line):
                        return line
                seen = len(self._lines)
                left = end - time.monotonic()
                if self._ended or left <= 0:
                    why = "it ended" if self._ended else f"not after {seconds:g} s"
                    raise AssertionError(f"{self._command[0]}: no line with {pattern!r}, {why}:\n{self._tail()}")
                self._news.wait(left)

    def _copy(self, output: IO[str]) -> None:
        with self._log.open("a") as log:
            for line in output:
                log.write(line)
                log.flush()
                with self._news:
                    self._lines.append(line.rstrip("\n"))
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _tail(self) -> str:
        return "\n".join(self._lines[-20:])

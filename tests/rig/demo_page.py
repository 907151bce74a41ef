"""The page that the demo writes: 80 columns for a person, and a count of what was checked.

Colour only where a terminal shows it and NO_COLOR is not set; the words alone say everything.
"""

import os
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

WIDTH = 80
OK, FAILED = "ok", "FAILED"
_INDENT = "  "
# Label, what should be, what is; with the indent, the gaps and FAILED that is 79.
_COLUMNS = (20, 24, 24)
_QUOTED_LINES = 8
_BOLD, _DIM, _GREEN, _RED = "1", "2", "32", "1;31"


class Page:
    """Writes to `out` as things happen; `passed` and `failed` count the checks."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._colour = out.isatty() and not os.environ.get("NO_COLOR")
        self._started = time.monotonic()
        self.passed = 0
        self.failed = 0

    @property
    def seconds(self) -> float:
        """How long the page has been open."""
        return time.monotonic() - self._started

    def heading(self, text: str) -> None:
        """A new part of the story."""
        self._line()
        self._line(self._painted(text, _BOLD))

    def text(self, text: str) -> None:
        """A paragraph."""
        for line in textwrap.wrap(" ".join(text.split()), WIDTH - 4):
            self._line(_INDENT + line)

    def block(self, text: str) -> None:
        """Lines as they are: what a person would write."""
        for line in text.rstrip("\n").splitlines():
            self._line(f"{_INDENT * 3}{line}")

    def command(self, command: str, output: str) -> None:
        """A command and what it printed."""
        self._line(_INDENT + self._painted(f"$ {command}", _BOLD))
        self._line(output.rstrip("\n"))

    def quote(self, text: str) -> None:
        """Words of somebody else; of many lines the first and the last ones."""
        lines = text.strip().splitlines()
        if len(lines) > _QUOTED_LINES:
            lines = [lines[0], "...", *lines[2 - _QUOTED_LINES :]]
        for raw in lines:
            for line in textwrap.wrap(raw, WIDTH - 8, break_on_hyphens=False):
                self._line(f"{_INDENT * 2}| {line}")

    @contextmanager
    def progress(self, what: str) -> Iterator[None]:
        """Says what is being done, and at its end how long it took."""
        started = time.monotonic()
        self._write(f"{_INDENT}{what} ".ljust(WIDTH - 16, ".") + " ")
        try:
            yield
        except BaseException:
            self._line(self._painted("not done", _RED))
            raise
        self._line(f"{time.monotonic() - started:4.1f} s")

    def table(self, title: str, expected: str = "should be", seen: str = "is") -> None:
        """The head of a table of checks."""
        self._line()
        self._line(self._painted(_cells(title, expected, seen).rstrip(), _DIM))

    def check(self, label: str, expected: str, seen: str, *, passed: bool | None = None) -> None:
        """One row of a table, and one check: without `passed`, that both texts are equal."""
        passed = expected == seen if passed is None else passed
        if passed:
            self.passed += 1
        else:
            self.failed += 1
        verdict = self._painted(OK, _GREEN) if passed else self._painted(FAILED, _RED)
        columns = [_wrapped(text, width) for text, width in zip((label, expected, seen), _COLUMNS, strict=True)]
        for number in range(max(map(len, columns))):
            cells = _cells(*(column[number] if number < len(column) else "" for column in columns))
            self._line(f"{cells} {verdict}" if number == 0 else cells.rstrip())

    def broken(self, text: str) -> None:
        """A check that could not even be made, with the reason."""
        self.failed += 1
        self._line(f"{_INDENT}{self._painted(FAILED, _RED)}")
        self.quote(text)

    def summary(self, logs: str) -> None:
        """The last line: what was checked, and where to look when that was not enough."""
        every = self.passed + self.failed
        self._line()
        if self.failed:
            verdict = self._painted(FAILED, _RED)
            self._line(f"demo: {self.failed} of {every} checks {verdict} after {self.seconds:.1f} s; logs: {logs}")
        else:
            verdict = self._painted("passed", _GREEN)
            self._line(f"demo: all {every} checks {verdict} in {self.seconds:.1f} s")

    def _painted(self, text: str, colour: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour else text

    def _line(self, text: str = "") -> None:
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def _wrapped(text: str, width: int) -> Sequence[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _cells(*texts: str) -> str:
    return _INDENT + " ".join(text.ljust(width) for text, width in zip(texts, _COLUMNS, strict=True))

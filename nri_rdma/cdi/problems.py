"""The problems of a file, collected, so that its author sees all of them at once."""

from __future__ import annotations

import re

from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.text.refusals import quoted
from nri_rdma.text.yaml import Path

MAX_PROBLEMS = 100
"""Most problems that are kept of one file; further ones are only counted, so that a file of another program cannot fill
our memory."""


class Problems:
    """The problems of one file, in the order in which they were met."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: list[CdiError] = []
        self._omitted = 0

    def __len__(self) -> int:
        return len(self._found) + self._omitted

    @property
    def all(self) -> tuple[CdiError, ...]:
        """All problems, by line; the last one says how many are left out."""
        found = tuple(sorted(self._found, key=lambda error: error.line))
        if not self._omitted:
            return found
        what = f"there are {self._omitted} more problems"
        return (*found, self.error(ErrorCode.CDI_SIZE, what, hint="mend those above first"))

    def add(self, error: CdiError) -> None:
        """Add a problem."""
        if len(self._found) < MAX_PROBLEMS:
            self._found.append(error)
        else:
            self._omitted += 1

    def error(self, code: ErrorCode, what: str, *, hint: str, line: int = 0, path: Path = ()) -> CdiError:
        """Return a problem of this file, to be raised or added."""
        return CdiError(code, what, file=self._file, hint=hint, line=line, path=path_text(path))


def path_text(path: Path) -> str:
    """Return the path as it is written: ``devices[2].containerEdits``; a key that is no plain word stands in
    brackets."""
    return "".join(map(_step_text, path)).removeprefix(".")


def _step_text(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _WORD.fullmatch(step) else f"[{quoted(step)}]"


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")

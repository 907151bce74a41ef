"""What is wrong in a file, with its place there."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.text.placed_yaml import Place
from nri_rdma.text.yaml import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, or with `is_warning` probably not meant so. `line` and `column` count from 1; 0 where
    there is none, or none is known. `path` is the key as a person would write it."""

    file: str
    line: int
    column: int
    path: str
    code: ErrorCode
    what: str
    hint: str
    is_warning: bool = False

    @classmethod
    def of(cls, error: NriRdmaError, file: str, place: Place, path: str) -> Problem:
        """An error, told of a place of a file."""
        return cls(
            file=file,
            line=place.line,
            column=place.column,
            path=path,
            code=error.code,
            what=error.what,
            hint=error.hint,
        )

    @property
    def where(self) -> str:
        """The place, as editors and compilers write it, and the key."""
        numbers = "".join(f":{number}" for number in (self.line, self.column) if number)
        return f"{self.file}{numbers}{f' {self.path}' if self.path else ''}"

    def __str__(self) -> str:
        if self.is_warning:
            return f"warning: {self.what}, {self.where}. Next: {self.hint}."
        return str(NriRdmaError(self.code, self.what, where=self.where, hint=self.hint))


NOWHERE = Place(0, 0)


def steps_of(where: str) -> Path:
    """The keys and numbers of a place as errors write it (``[0].match.pci``); of known words only."""
    return tuple(int(number) if number else word for number, word in _STEP.findall(where))


_STEP = re.compile(r"\[([0-9]+)\]|\.?([^.\[\]]+)")

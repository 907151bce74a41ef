"""A problem of a file, with its place in the file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.text.nodes import Path
from nri_rdma.text.placed_yaml import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error in a file or, with `is_warning`, a setting that is valid but probably a mistake. `line` and `column`
    count from 1; 0 means that they are not known. `path` is the key as people write it."""

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
        """Return a Problem with the texts of the error, at this place of the file. `path` is the key as people write
        it."""
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
        """The place in the form that compilers and editors use, such as FILE:LINE:COLUMN, followed by the key."""
        numbers = "".join(f":{number}" for number in (self.line, self.column) if number)
        return f"{self.file}{numbers}{f' {self.path}' if self.path else ''}"

    def __str__(self) -> str:
        if self.is_warning:
            return f"warning: {self.what}, {self.where}. Next: {self.hint}."
        return str(NriRdmaError(self.code, self.what, where=self.where, hint=self.hint))


NOWHERE = Place(0, 0)


def steps_of(where: str) -> Path:
    """Return the keys and indexes of a path in the form that errors have (``[0].match.pci``). A key must not contain a
    dot or a bracket."""
    return tuple(int(number) if number else word for number, word in _STEP.findall(where))


_STEP = re.compile(r"\[([0-9]+)\]|\.?([^.\[\]]+)")

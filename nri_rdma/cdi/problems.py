"""The problems of a CDI spec, collected so that the spec's author sees all of them at once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.text.nodes import Path
from nri_rdma.text.refusals import Errors, quoted

MAX_PROBLEMS = 100
"""Most problems that are kept of one file. Further ones are only counted, so that another program's file cannot fill
nri-rdma's memory."""
OF_SPECS = {ErrorCode.ANNOTATION_VALUE: ErrorCode.CDI_VALUE}
"""By the error code of an unreadable value in an annotation: the code for such a value in a CDI spec."""


def problems_of(errors: Errors, file: str, codes: Mapping[ErrorCode, ErrorCode]) -> tuple[CdiError, ...]:
    """Return the errors in a file as CdiErrors, sorted by line. `codes` has error codes and the codes that replace
    them. If some errors were only counted, the last CdiError says how many."""
    found = [
        CdiError(
            codes.get(it.code, it.code),
            it.what,
            file=file,
            hint=it.hint,
            line=it.line,
            path=f"{it.where}{step_text(it.key) if it.key else ''}".removeprefix("."),
        )
        for it in errors.kept
    ]
    found.sort(key=lambda error: error.line)
    if errors.omitted:
        what = f"there are {errors.omitted} more problems"
        found.append(CdiError(ErrorCode.CDI_SIZE, what, file=file, hint="mend those above first"))
    return tuple(found)


def path_text(path: Path) -> str:
    """Return the path of keys and indexes to a value as a text: ``devices[2].containerEdits``. A key that is not a
    plain word is in brackets."""
    return "".join(map(step_text, path)).removeprefix(".")


def step_text(step: str | int) -> str:
    """Return one step of a path (a key or an index) as a text that is appended to the steps before it."""
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _WORD.fullmatch(step) else f"[{quoted(step)}]"


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")

"""The problems of a CDI spec, collected, so that its author sees all of them at once."""

from __future__ import annotations

import re
from collections.abc import Mapping

from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.text.nodes import Path
from nri_rdma.text.refusals import Errors, quoted

MAX_PROBLEMS = 100
"""Most problems that are kept of one file; further ones are only counted, so that a file of another program cannot fill
our memory."""
OF_SPECS = {ErrorCode.ANNOTATION_VALUE: ErrorCode.CDI_VALUE}
"""The codes of values that cannot be read, in a CDI spec."""


def problems_of(errors: Errors, file: str, codes: Mapping[ErrorCode, ErrorCode]) -> tuple[CdiError, ...]:
    """Return the errors in a file, by line, with the codes that stand for theirs; the last one says how many are left
    out."""
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
    """Return the path as it is written: ``devices[2].containerEdits``; a key that is no plain word stands in
    brackets."""
    return "".join(map(step_text, path)).removeprefix(".")


def step_text(step: str | int) -> str:
    """Return one step of a path as it is written behind the others."""
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if _WORD.fullmatch(step) else f"[{quoted(step)}]"


_WORD = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")

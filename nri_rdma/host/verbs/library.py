"""pyverbs, imported late: of the distribution's Python, which may not have it, or have one of another libibverbs."""

from __future__ import annotations

import importlib
from typing import Any  # Any: pyverbs has no types


def part(name: str) -> Any:
    """Return the module of pyverbs of that name. Raises whatever the library does: ImportError, SystemError."""
    return importlib.import_module(f"pyverbs.{name}")


def errno_of(error: BaseException) -> int | None:
    """Return the error number that the kernel gave, None where it gave none."""
    number = getattr(error, "error_code", None) or getattr(error, "errno", None)  # pyverbs's name; that of OSError
    return abs(number) if isinstance(number, int) and number != -1 else None


def words(error: BaseException) -> str:
    """Return what an error says, as one line."""
    return " ".join(str(error).split()) or type(error).__name__

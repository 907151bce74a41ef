"""Imports pyverbs when it is first needed: the distribution's Python may lack pyverbs, or have one that was built for
another libibverbs."""

from __future__ import annotations

import importlib
from typing import Any  # Any: pyverbs has no types


def part(name: str) -> Any:
    """Return a module of pyverbs; `name` is the name after "pyverbs.". Raises any error of its import, such as
    ImportError or SystemError."""
    return importlib.import_module(f"pyverbs.{name}")


def errno_of(error: BaseException) -> int | None:
    """Return the kernel's error number that an exception carries; None if it carries none."""
    number = getattr(error, "error_code", None) or getattr(error, "errno", None)  # of pyverbs, of OSError
    return abs(number) if isinstance(number, int) and number != -1 else None


def words(error: BaseException) -> str:
    """Return the message of an exception as one line."""
    return " ".join(str(error).split()) or type(error).__name__

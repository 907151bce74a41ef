"""The result of one check, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_APPLICABLE = "n/a"
    """There is nothing to check, or this user lacks the permission to check it; the finding's text says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. `found` says what is the case; `fix` is a command or setting that mends it, or "" if
    nothing has to be done."""

    check: str
    result: Result
    found: str
    fix: str = ""


def ok(check: str, found: str) -> Finding:
    """Return a finding that reports no problem."""
    return Finding(check=check, result=Result.OK, found=found)


def warning(check: str, found: str, fix: str) -> Finding:
    """Return a finding about something that works, but has a drawback that an administrator should know."""
    return Finding(check=check, result=Result.WARNING, found=found, fix=fix)


def problem(check: str, found: str, fix: str) -> Finding:
    """Return a finding about something that keeps pods from getting the devices they ask for."""
    return Finding(check=check, result=Result.PROBLEM, found=found, fix=fix)


def not_applicable(check: str, why: str, fix: str = "") -> Finding:
    """Return the finding of a check that was not made; `why` is the reason."""
    return Finding(check=check, result=Result.NOT_APPLICABLE, found=why, fix=fix)

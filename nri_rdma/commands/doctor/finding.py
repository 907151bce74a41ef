"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"
    NOT_APPLICABLE = "n/a"
    """There is nothing to check, or this user may not see it: the finding says which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One answer: what was found, and what to do about it (a command or a setting; "" when nothing has to be done)."""

    check: str
    result: Result
    found: str
    fix: str = ""


def ok(check: str, found: str) -> Finding:
    """Nothing has to be done."""
    return Finding(check=check, result=Result.OK, found=found)


def warning(check: str, found: str, fix: str) -> Finding:
    """Return a finding about what works, and what somebody should know of all the same."""
    return Finding(check=check, result=Result.WARNING, found=found, fix=fix)


def problem(check: str, found: str, fix: str) -> Finding:
    """Pods will not get what they ask for."""
    return Finding(check=check, result=Result.PROBLEM, found=found, fix=fix)


def not_applicable(check: str, why: str, fix: str = "") -> Finding:
    """Return a finding about what was not checked, and why."""
    return Finding(check=check, result=Result.NOT_APPLICABLE, found=why, fix=fix)

"""Collects the problems of a configuration: every wrong setting, and the first problem in each pool, in each rule and
in `adopt`. Loading a configuration, in contrast, stops at the first problem."""

from __future__ import annotations

from itertools import islice

from nri_rdma.config.settings import Document, Reading
from nri_rdma.errors import SettingError

MAX_PROBLEMS = 100
"""The most problems that are reported. For each unknown key the most similar known key is searched, which takes
time."""


def problems_of(document: Document) -> tuple[SettingError, ...]:
    """Return the problems of a configuration, sorted by line; a hundred at most. Of each pool and each rule only the
    first problem is found. Two pools with equal conditions on devices have one problem together."""
    found = islice((it.error for it in Reading({}, {}, document).problems()), MAX_PROBLEMS)
    return tuple(sorted({str(error): error for error in found}.values(), key=lambda error: error.line))

"""Helpers to read objects of the API server key by key. Pure.

The API server guarantees the form of its objects, but something else may answer at its address.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from nri_rdma.errors import ApiServerError
from nri_rdma.text.refusals import quoted


@contextmanager
def reading(what: str, where: str) -> Iterator[None]:
    """Turn the errors of a `with` block into an ApiServerError. The block reads an answer of the API server that should
    be an object of the kind `what`. `where` says in the error what was asked."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ApiServerError(
            f"the API server's answer is no {what}",
            where=where,
            hint="see what answers at the API server's address in the setting kubeconfig; it is tried again",
            detail=f"{type(error).__name__}: {error}"[:300],
        ) from error


def word(value: object, pattern: re.Pattern[str] | None = None) -> str:
    """Return the value if it is a text, and if the pattern (when given) matches it as a whole. Raise ValueError
    otherwise."""
    if not isinstance(value, str) or (pattern is not None and pattern.fullmatch(value) is None):
        raise ValueError(f"{quoted(str(value))} is no such text")
    return value

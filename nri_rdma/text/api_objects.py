"""Objects of the API server, read key by key. Pure.

The API server checks their form; whatever else answers in its place does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from nri_rdma.errors import ApiServerError
from nri_rdma.text.refusals import quoted


@contextmanager
def reading(what: str, where: str) -> Iterator[None]:
    """Make an ApiServerError of what goes wrong while an answer is read that should be such an object."""
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
    """Return a value that is a text, and is all that the pattern matches. Raise ValueError."""
    if not isinstance(value, str) or (pattern is not None and pattern.fullmatch(value) is None):
        raise ValueError(f"{quoted(str(value))} is no such text")
    return value

"""Builds errors about texts of untrusted authors. What an error quotes is short, printable and on one line. Its hint
says what is allowed instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from nri_rdma.errors import ErrorCode, RequestError

MAX_PROBLEMS = 32
"""The most errors of one text that are reported together."""
MAX_QUOTED = 64
"""The most characters that an error quotes from an author's text."""


def refused(where: str, what: str, hint: str, key: str = "") -> RequestError:
    """Return the error for the value at `where`, or for one `key` of the mapping there. `what` says what is wrong, and
    `hint` what to write instead."""
    return RequestError(ErrorCode.ANNOTATION_VALUE, what, where=where, hint=hint, key=key)


def unknown_key(key: str, known: tuple[str, ...], where: str) -> RequestError:
    """Return the error for an unknown key; it names the key that was probably meant, and all known keys."""
    return RequestError(
        ErrorCode.ANNOTATION_UNKNOWN_KEY,
        f"unknown key {quoted(key)}",
        where=where,
        hint=f"{nearest(key, known)}the keys are {listed(known)}",
        key=key,
    )


def each_of(error: RequestError) -> tuple[RequestError, ...]:
    """Return an error, followed by the further errors of its text (`others`), in the order in which they were found."""
    return (error, *error.others)


def refuse_all(errors: Iterable[RequestError]) -> None:
    """Raise the first of these errors, with the following ones as its `others`. Does nothing if there are no errors."""
    Errors(errors).refuse()


class Errors:
    """The errors of one text, in the order in which they were found. Only the first `most` errors are kept; further
    errors are only counted, so that a hostile text cannot fill the memory."""

    def __init__(self, errors: Iterable[RequestError] = (), most: int = MAX_PROBLEMS) -> None:
        self.kept: list[RequestError] = []
        self.omitted = 0
        self._most = most
        for error in errors:
            self.add(error)

    def __len__(self) -> int:
        return len(self.kept) + self.omitted

    def add(self, error: RequestError, line: int = 0) -> None:
        """Add an error, and the errors in its `others`. `line` is the error's line in the text, if the error does not
        have one."""
        error.line = error.line or line
        for one in each_of(error):
            one.others = ()  # all of them are here
            if len(self.kept) < self._most:
                self.kept.append(one)
            else:
                self.omitted += 1
        self.omitted += error.omitted
        error.omitted = 0

    def refuse(self) -> None:
        """Raise the first error, with the next ones as its `others`. Does nothing if there are no errors."""
        if self.kept:
            first, *others = self.kept
            first.others, first.omitted = tuple(others), self.omitted
            raise first


def is_deeper(value: object, most: int) -> bool:
    """Return whether a value from JSON or TOML is nested deeper than `most` levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most < 0 or any(is_deeper(item, most - 1) for item in inner)


def listed(words: Iterable[str]) -> str:
    """Join words with commas."""
    return ", ".join(words)


def quoted(value: str) -> str:
    """Return an author's text in quotes for use in an error: on one line, printable and bounded."""
    return f"'{bounded(value)}'"


def bounded(value: str) -> str:
    """Return an author's text for use in an error, without quotes: on one line, printable and bounded."""
    text = ascii(value[: MAX_QUOTED + 1])[1:-1]
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 3]}..."


def nearest(key: str, known: tuple[str, ...]) -> str:
    """Return the beginning of a hint with the known key that was probably meant; "" if none is similar.

    Keys that differ only in case, ``-`` and ``_`` are similar.
    """
    name = meant(key, known)
    return f"write {name}; " if name else ""


def meant(key: str, known: Iterable[str]) -> str:
    """Return the known key that was probably meant; "" if none is similar."""
    names = {folded(name): name for name in known}
    near = difflib.get_close_matches(folded(key[:64]), names, n=1)
    return names[near[0]] if near else ""


def folded(key: str) -> str:
    """Return a key in a form for comparisons that ignores case, ``-`` and ``_``."""
    return key.replace("-", "").replace("_", "").lower()

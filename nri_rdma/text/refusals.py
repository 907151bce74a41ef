"""Errors about what strangers wrote: bounded, printable, on one line, with what is allowed instead."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from nri_rdma.errors import ErrorCode, RequestError

MAX_PROBLEMS = 32
"""Errors of one text that are reported together."""
MAX_QUOTED = 64
"""Characters of strangers' text in one place of a sentence."""


def refused(where: str, what: str, hint: str, key: str = "") -> RequestError:
    """Make the error for a value, or for one key of it."""
    return RequestError(ErrorCode.ANNOTATION_VALUE, what, where=where, hint=hint, key=key)


def unknown_key(key: str, known: tuple[str, ...], where: str) -> RequestError:
    """Make the error for an unknown key; it names the key that was probably meant, and all known keys."""
    return RequestError(
        ErrorCode.ANNOTATION_UNKNOWN_KEY,
        f"unknown key {quoted(key)}",
        where=where,
        hint=f"{nearest(key, known)}the keys are {listed(known)}",
        key=key,
    )


def each_of(error: RequestError) -> tuple[RequestError, ...]:
    """Return an error and the others of the same text, in the order in which they were found."""
    return (error, *error.others)


def refuse_all(errors: Sequence[RequestError]) -> None:
    """Raise the first of these errors, with the next ones as its others; none is fine."""
    if errors:
        first, *others = errors[:MAX_PROBLEMS]
        for error in others:
            error.others = ()  # they are all here
        first.others = tuple(others)
        raise first


def is_deeper(value: object, most: int) -> bool:
    """Return whether a value of JSON or TOML is nested deeper than so many levels."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most < 0 or any(is_deeper(item, most - 1) for item in inner)


def listed(words: Iterable[str]) -> str:
    """Join words with commas."""
    return ", ".join(words)


def quoted(value: str) -> str:
    """Return a stranger's text in quotes for a sentence of ours: one line, printable, bounded."""
    return f"'{bounded(value)}'"


def bounded(value: str) -> str:
    """Return the same as `quoted` without the quotes."""
    text = ascii(value[: MAX_QUOTED + 1])[1:-1]
    return text if len(text) <= MAX_QUOTED else f"{text[: MAX_QUOTED - 3]}..."


def nearest(key: str, known: tuple[str, ...]) -> str:
    """Return the beginning of a hint with the key that was probably meant, or "".

    Keys that differ in case, ``-`` and ``_`` only are near."""
    name = meant(key, known)
    return f"write {name}; " if name else ""


def meant(key: str, known: Iterable[str]) -> str:
    """Return the key that was probably meant, "" where none is near."""
    names = {folded(name): name for name in known}
    near = difflib.get_close_matches(folded(key[:64]), names, n=1)
    return names[near[0]] if near else ""


def folded(key: str) -> str:
    """Return a key without what people mix up: case, ``-`` and ``_``."""
    return key.replace("-", "").replace("_", "").lower()

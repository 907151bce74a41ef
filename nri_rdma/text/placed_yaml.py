"""Reads YAML documents as Kubernetes does, with the place of each of their keys.

A text may have many documents, also in JSON, which the same parser reads. Words mean what they mean to `kubectl`, whose
library reads a mixture of YAML 1.1 and 1.2 (goyaml.v2 in sigs.k8s.io/yaml): ``on`` and ``y`` are truth values, ``010``
is 8, ``0000:10:00.0`` and a date are texts. Anchors, aliases and merge keys are allowed, as in Kubernetes.

What Kubernetes would silently lose is refused: a key that occurs twice, and text after a document without ``---``.
Size, depth and the number of nodes are bounded; an alias counts as much as its target. An error in one document does
not hide the others. Law: any text becomes documents and RequestErrors, in bounded time; no other error is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from yaml import Event, MappingStartEvent, ScalarEvent, SequenceStartEvent, StreamEndEvent

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.nodes import Path
from nri_rdma.text.yaml import At, Builder, Dialect

MAX_BYTES = 4 << 20
"""The most bytes of a text: more than twice etcd's limit for one object, because a list of many pods can be as
large."""
MAX_DOCUMENTS = 10_000
"""The most documents of one text, including empty ones."""
MAX_DEPTH = 64
"""The most levels of nesting; a container's field in a CronJob is at level twelve."""
MAX_NODES = 200_000
"""The most nodes of a document: those of a list of a thousand pods. Reading more would take several seconds."""

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"


@dataclass(frozen=True, slots=True)
class Place:
    """A line and a column in a text, counted from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Written:
    """The notation and the place of a text value: `style` is ``|``, ``>``, a quote, or "" for a plain value."""

    style: str
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A document with the places of its keys, list entries and text values.

    Values that come from an alias or a merge key have no places of their own.
    """

    value: Value
    places: Mapping[Path, Place] = field(default_factory=dict)
    texts: Mapping[Path, Written] = field(default_factory=dict)

    def place_of(self, path: Path) -> Place:
        """Return the place of a path, or of the nearest enclosing path that has one."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places.get(path, Place(1, 1))


def read_documents(data: bytes) -> tuple[Placed | RequestError, ...]:
    """Return the documents of a text in order; a document with an error is replaced by the error. Empty documents are
    left out."""
    if len(data) > MAX_BYTES:
        hint = "split the file at its --- lines"
        return (_error(ErrorCode.MANIFEST_SIZE, f"the file is larger than {MAX_BYTES} bytes", hint, Place(0, 0)),)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        return (_error(ErrorCode.MANIFEST_SYNTAX, "it is not UTF-8", "save it as UTF-8", Place(line, 0)),)
    chunks = list(islice(_chunks(text), MAX_DOCUMENTS + 1))
    found = [document for chunk, line in chunks[:MAX_DOCUMENTS] if (document := _document(chunk, line)) is not None]
    if len(chunks) > MAX_DOCUMENTS:
        what, place = f"there are more than {MAX_DOCUMENTS} documents", Place(chunks[-1][1] + 1, 1)
        found.append(_error(ErrorCode.MANIFEST_SIZE, what, "split the file at its --- lines", place))
    return tuple(found)


def read_one(text: str) -> Placed | None:
    """Return the document of a text that has one document; None if it has none, or if it cannot be read."""
    document = _document(text, 0)
    return document if isinstance(document, Placed) else None


_SEPARATOR = re.compile(r"^---(?=[ \t\r\n]|$)", re.MULTILINE)
"""The line start that separates documents, even inside a text value."""


def _chunks(text: str) -> Iterator[tuple[str, int]]:
    """Yield the text of each document with the number of lines before it."""
    cuts = [found.start() for found in _SEPARATOR.finditer(text)]
    line, before = 0, 0
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        line += text.count("\n", before, begin)
        before = begin
        yield text[begin:end], line


def _document(text: str, line: int) -> Placed | RequestError | None:
    try:
        return _Manifest(text, line).document()
    except RequestError as error:
        return error


_KINDS: tuple[type[Event], ...] = (ScalarEvent, SequenceStartEvent, MappingStartEvent)
MANIFESTS = Dialect(
    max_depth=MAX_DEPTH,
    depth_hint="nest it less deep: no object of Kubernetes needs so many levels",
    max_nodes=MAX_NODES,
    nodes_hint="split the document",
    size=ErrorCode.MANIFEST_SIZE,
    syntax=ErrorCode.MANIFEST_SYNTAX,
    duplicate=ErrorCode.MANIFEST_DUPLICATE_KEY,
    not_yaml="neither YAML nor JSON",
    tags=dict.fromkeys(_KINDS, frozenset({"!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))})),
)


class _Manifest(Builder[Value]):
    """Builds the values of one document and records their places."""

    def __init__(self, text: str, line: int) -> None:
        self._first_line = line
        self._text = text
        self._places: dict[Path, Place] = {}
        self._texts: dict[Path, Written] = {}
        super().__init__(text, MANIFESTS)

    def document(self) -> Placed | None:
        if isinstance(self.next(), StreamEndEvent):
            return None
        first = self.next()
        self.enter((), first)
        value = self.node(first, (), 1)
        self.next()  # DocumentEndEvent
        self.next()  # StreamEndEvent: the text was cut before the next ---, so that it has only one document
        if value is None and not self._texts:
            return None
        return Placed(value=value, places=self._places, texts=self._texts)

    def enter(self, path: Path, event: Event) -> None:
        self._places[path] = self._place(event)

    def scalar(self, event: ScalarEvent, path: Path) -> Value:
        text = str(event.value)
        value = text if event.style or event.tag is not None else kubernetes_value(text)
        if isinstance(value, str):
            self._texts[path] = Written(event.style or "", self._place(event))
        return value

    def sequence(self, items: list[Value], start: SequenceStartEvent) -> Value:
        return items

    def mapping(
        self, entries: dict[str, tuple[Value, Event]], merged: list[Value], start: MappingStartEvent, path: Path
    ) -> Value:
        values = {key: value for key, (value, _) in entries.items()}
        for source in merged:
            assert isinstance(source, dict)  # `merge` returns nothing else
            for name, value in source.items():
                values.setdefault(name, value)
        return values

    def key(self, event: Event, path: Path, depth: int) -> tuple[str, bool]:
        self.check(event, path, depth)
        if not isinstance(event, ScalarEvent):
            hint = "write key: value; a template with {{ }} has to be rendered first"
            raise self.refuse(ErrorCode.MANIFEST_SYNTAX, "a key has to be one word", hint, event, path)
        text = str(event.value)
        return text, text == "<<" and not event.style

    def is_twice(self, key: str, is_merge: bool, entries: dict[str, tuple[Value, Event]], merged: list[Value]) -> bool:
        return key in entries or (is_merge and bool(merged))  # a quoted << and a merge key count as the same key

    def merge(self, node: Value, key: Event) -> list[Value]:
        named = node if isinstance(node, list) else [node]
        sources: list[Value] = [source for source in named if isinstance(source, dict)]
        if len(sources) != len(named):
            what, hint = "a merge key names what is no mapping", "write << with an alias of a mapping"
            raise self.refuse(ErrorCode.MANIFEST_SYNTAX, what, hint, key, ())
        return sources

    def error(self, code: ErrorCode, what: str, hint: str, at: At | None, path: Path) -> RequestError:
        found = within(self._text, Place(*(at or (1, 0))))
        return _error(code, what, hint, Place(self._first_line + found.line, found.column))

    def _place(self, event: Event) -> Place:
        """Return the place where an event begins. The parser sets the mark of every event, although its types allow
        None."""
        mark = event.start_mark
        return Place(self._first_line + getattr(mark, "line", 0) + 1, getattr(mark, "column", 0) + 1)


def _error(code: ErrorCode, what: str, hint: str, place: Place) -> RequestError:
    return RequestError(code, what, hint=hint, line=place.line, column=place.column)


# What a word means to Kubernetes


def kubernetes_value(text: str) -> str | int | float | bool | None:
    """Return the value that an unquoted word has for Kubernetes."""
    if text in _WORDS:
        return _WORDS[text]
    if not text[0].isascii() or text[0] not in "+-.0123456789" or len(text) > LONGEST_NUMBER:
        return text
    digits = text.replace("_", "")
    if (whole := whole_number(digits)) is not None:
        return whole
    return float(digits) if _FRACTION.fullmatch(digits) else text


def whole_number(digits: str) -> int | None:
    """Return the whole number that Go's YAML libraries read from a word: decimal, 0x, 0o, 0b, or octal with a leading
    0. Returns None for any other word. `digits` is the word without its ``_``."""
    for pattern, base in _WHOLE:
        if found := pattern.fullmatch(digits):
            return int(found[1] + found[2], base)
    return None


LONGEST_NUMBER = 67
"""The most characters of a number: 64 bits in binary, with sign and prefix. A longer word is taken for a text, so that
no conversion takes long."""
_WORDS: Mapping[str, bool | float | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **{form: True for word in ("y", "yes", "on", "true") for form in (word, word.capitalize(), word.upper())},
    **{form: False for word in ("n", "no", "off", "false") for form in (word, word.capitalize(), word.upper())},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{f"{sign}.{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")},
}
_WHOLE = (
    (re.compile(r"([-+]?)(0|[1-9][0-9]*)", re.ASCII), 10),
    (re.compile(r"([-+]?)0[xX]([0-9a-fA-F]+)"), 16),
    (re.compile(r"([-+]?)0[oO]?([0-7]+)"), 8),
    (re.compile(r"([-+]?)0[bB]([01]+)"), 2),
)
_FRACTION = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)


# Texts within the text


def within(text: str, place: Place) -> Place:
    """Return the place, or the end of the last non-empty line if the place is after the end of the text.

    Parsers report such a place if something is missing.
    """
    lines = text.rstrip().split("\n")
    return place if place.line <= len(lines) else Place(len(lines), len(lines[-1]) + 1)


def place_within(lines: list[str], written: Written, text: str, place: Place) -> Place:
    """Return the place in a document that corresponds to a `place` in one of its text values. `lines` are the
    document's lines, `text` is the value, and `written` says where the value begins.

    The result is exact if the value is written in a ``|`` block or on one line, without escapes. Otherwise it is the
    place where the value begins.
    """
    inner_lines, place = text.split("\n"), within(text, place)
    inner = inner_lines[place.line - 1]
    if written.style == "|":
        line = written.place.line + place.line
        outer = _line(lines, line).removesuffix("\r")
        if outer.endswith(inner):
            return Place(line, len(outer) - len(inner) + max(place.column, 1))
    elif len(inner_lines) == 1 and written.style != ">":
        begin = written.place.column - 1 + len(written.style)
        if _line(lines, written.place.line)[begin : begin + len(text)] == text:
            return Place(written.place.line, begin + max(place.column, 1))
    return written.place


def _line(lines: list[str], number: int) -> str:
    """Return the line with this number, counted from 1; "" if there is no such line. A parser's number can be too high,
    because it also counts line ends other than newlines."""
    return lines[number - 1] if number <= len(lines) else ""

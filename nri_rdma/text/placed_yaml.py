"""YAML documents as Kubernetes reads them, with the place of each of their keys.

Many documents in one text, JSON among them: JSON is read by the same parser. Words mean what they mean to `kubectl`,
whose library reads a mixture of YAML 1.1 and 1.2 (goyaml.v2 in sigs.k8s.io/yaml): ``on`` and ``y`` are truth values,
``010`` is 8, ``0000:10:00.0`` and a date are texts. Anchors, aliases and merge keys are allowed there, and here.

Refused is what would be lost in silence: a key that occurs twice, what follows a document without ``---``. Size, depth
and nodes are bounded; an alias counts as much as what it stands for. A document with an error does not hide the others.
Law: any text becomes documents and RequestError, in bounded time, and nothing else is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from yaml import CSafeLoader, YAMLError
from yaml.error import MarkedYAMLError
from yaml.events import (
    AliasEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.refusals import quoted

MAX_BYTES = 4 << 20
"""More than twice what etcd takes of one object; a list of many pods is as large."""
MAX_DOCUMENTS = 10_000
"""Of one text, empty ones included."""
MAX_DEPTH = 64
"""A container's field in a CronJob is twelve deep."""
MAX_NODES = 200_000
"""A list of a thousand pods. One that is larger would take more than some seconds."""

Value: TypeAlias = "str | int | float | bool | list[Value] | dict[str, Value] | None"
Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A line and a column of a text, from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Written:
    """How a text value is written: ``|``, ``>``, a quote or "" for none, from a place on."""

    style: str
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A document, and where each key, entry of a list and text value of it is written. What came by an alias or a merge
    key has no places of its own."""

    value: Value
    places: Mapping[Path, Place] = field(default_factory=dict)
    texts: Mapping[Path, Written] = field(default_factory=dict)

    def place_of(self, path: Path) -> Place:
        """Where it is, or what is around it."""
        while path not in self.places and path:
            path = path[:-1]
        return self.places.get(path, Place(1, 1))


def read_documents(data: bytes) -> tuple[Placed | RequestError, ...]:
    """The documents of a text, in order, each or what is wrong with it; empty ones are left out."""
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
    """The places in a text that holds one document; None when it holds none, or cannot be read."""
    document = _document(text, 0)
    return document if isinstance(document, Placed) else None


_SEPARATOR = re.compile(r"^---(?=[ \t\r\n]|$)", re.MULTILINE)
"""At the beginning of a line it separates documents wherever it stands, within a text too."""


def _chunks(text: str) -> Iterator[tuple[str, int]]:
    """The text of each document, and the number of lines before it."""
    cuts = [found.start() for found in _SEPARATOR.finditer(text)]
    line, before = 0, 0
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        line += text.count("\n", before, begin)
        before = begin
        yield text[begin:end], line


def _document(text: str, line: int) -> Placed | RequestError | None:
    try:
        return _Reader(text, line).document()
    except RequestError as error:
        return error


@dataclass(slots=True)
class _Anchored:
    """What an alias stands for, and the nodes that it counts for; not `complete` while it is read."""

    value: Value = None
    size: int = 0
    complete: bool = False


class _Reader:
    """Builds a document from parser events; recursion ends at MAX_DEPTH."""

    def __init__(self, text: str, line: int) -> None:
        self._first_line = line
        self._text = text
        self._nodes = 0
        self._anchors: dict[str, _Anchored] = {}
        self._places: dict[Path, Place] = {}
        self._texts: dict[Path, Written] = {}
        try:
            self._parser = CSafeLoader(text)  # its events only; its resolver is not Kubernetes'
        except (YAMLError, UnicodeError) as error:
            raise self._syntax(error) from error
        self._next()  # StreamStartEvent

    def document(self) -> Placed | None:
        if isinstance(self._next(), StreamEndEvent):
            return None
        first = self._next()
        self._places[()] = self._place(first)
        value = self._node(first, (), 1)
        self._next()  # DocumentEndEvent
        self._next()  # StreamEndEvent: to the parser a document begins with ---, and the text was cut there
        if value is None and not self._texts:
            return None
        return Placed(value=value, places=self._places, texts=self._texts)

    def _node(self, event: Event, path: Path, depth: int) -> Value:
        if isinstance(event, AliasEvent):
            return self._alias(event)
        before, anchored = self._nodes, _Anchored()
        if isinstance(event, NodeEvent) and event.anchor is not None:
            self._anchors[event.anchor] = anchored  # from here on: within itself it is no older one of that name
        self._check(event, depth)
        anchored.value = self._content(event, path, depth)
        anchored.size = self._nodes - before
        anchored.complete = True
        return anchored.value

    def _content(self, event: Event, path: Path, depth: int) -> Value:
        if isinstance(event, SequenceStartEvent):
            return self._list(path, depth)
        if isinstance(event, MappingStartEvent):
            return self._mapping(path, depth)
        return self._scalar(event, path)

    def _alias(self, event: AliasEvent) -> Value:
        found = self._anchors.get(str(event.anchor))
        if found is None or not found.complete:
            what = f"the alias {quoted(str(event.anchor))} stands for nothing that is complete before it"
            raise self._refuse(ErrorCode.MANIFEST_SYNTAX, what, "put the anchor before it", event)
        self._count(found.size, event)
        return found.value

    def _list(self, path: Path, depth: int) -> list[Value]:
        items: list[Value] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            below = (*path, len(items))
            self._places[below] = self._place(event)
            items.append(self._node(event, below, depth + 1))
        return items

    def _mapping(self, path: Path, depth: int) -> dict[str, Value]:
        entries: dict[str, Value] = {}
        merged: list[dict[str, Value]] = []
        while not isinstance(event := self._next(), MappingEndEvent):
            key, is_merge = self._key(event, depth + 1)
            below = (*path, key)
            if key in entries or (is_merge and merged):
                what = f"the key {quoted(key)} is there twice"
                raise self._refuse(ErrorCode.MANIFEST_DUPLICATE_KEY, what, "keep one of them", event)
            if is_merge:
                merged = self._merged(self._node(self._next(), below, depth + 1), event)
                continue
            self._places[below] = self._place(event)
            entries[key] = self._node(self._next(), below, depth + 1)
        for source in merged:
            for name, value in source.items():
                entries.setdefault(name, value)
        return entries

    def _merged(self, value: Value, event: Event) -> list[dict[str, Value]]:
        """The mappings that ``<<`` names; the first that has a key gives it."""
        named = value if isinstance(value, list) else [value]
        sources = [source for source in named if isinstance(source, dict)]
        if len(sources) != len(named):
            what, hint = "a merge key names what is no mapping", "write << with an alias of a mapping"
            raise self._refuse(ErrorCode.MANIFEST_SYNTAX, what, hint, event)
        return sources

    def _key(self, event: Event, depth: int) -> tuple[str, bool]:
        """The key, and whether it is the merge key."""
        self._check(event, depth)
        if not isinstance(event, ScalarEvent):
            hint = "write key: value; a template with {{ }} has to be rendered first"
            raise self._refuse(ErrorCode.MANIFEST_SYNTAX, "a key has to be one word", hint, event)
        text = str(event.value)
        return text, text == "<<" and not event.style

    def _scalar(self, event: Event, path: Path) -> Value:
        assert isinstance(event, ScalarEvent)  # parser's contract: a node is an alias, a collection or a scalar
        text = str(event.value)
        value = text if event.style or event.tag is not None else kubernetes_value(text)
        if isinstance(value, str):
            self._texts[path] = Written(event.style or "", self._place(event))
        return value

    def _check(self, event: Event, depth: int) -> None:
        self._count(1, event)
        if depth > MAX_DEPTH:
            what, hint = f"it is nested deeper than {MAX_DEPTH} levels", "write what Kubernetes has; it is not so deep"
            raise self._refuse(ErrorCode.MANIFEST_SIZE, what, hint, event)
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _TAGS:
            what = f"the tag {quoted(str(tag))} is not allowed"
            raise self._refuse(ErrorCode.MANIFEST_SYNTAX, what, "leave the ! word out", event)

    def _count(self, nodes: int, event: Event) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            what = f"there are more than {MAX_NODES} values"
            raise self._refuse(ErrorCode.MANIFEST_SIZE, what, "split the document", event)

    def _next(self) -> Event:
        try:
            event = self._parser.get_event()
        except (YAMLError, UnicodeError) as error:
            raise self._syntax(error) from error
        assert isinstance(event, Event)  # only after StreamEndEvent there is none, and nobody asks then
        return event

    def _place(self, event: Event) -> Place:
        """The parser always has a mark; the types say it may not."""
        mark = event.start_mark
        return Place(self._first_line + getattr(mark, "line", 0) + 1, getattr(mark, "column", 0) + 1)

    def _refuse(self, code: ErrorCode, what: str, hint: str, event: Event) -> RequestError:
        return _error(code, what, hint, self._place(event))

    def _syntax(self, error: Exception) -> RequestError:
        problem, mark = "a character that YAML does not allow", None
        if isinstance(error, MarkedYAMLError):
            problem, mark = error.problem or "unreadable", error.problem_mark or error.context_mark
        found = within(self._text, Place(getattr(mark, "line", 0) + 1, getattr(mark, "column", -1) + 1))
        place = Place(self._first_line + found.line, found.column)
        hint = "check indentation, brackets and quotes there"
        return _error(ErrorCode.MANIFEST_SYNTAX, f"neither YAML nor JSON: {problem}", hint, place)


_TAGS = frozenset({"!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))})


def _error(code: ErrorCode, what: str, hint: str, place: Place) -> RequestError:
    return RequestError(code, what, hint=hint, line=place.line, column=place.column)


# What a word means to Kubernetes


def kubernetes_value(text: str) -> str | int | float | bool | None:
    """The value of a word without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if not text[0].isascii() or text[0] not in "+-.0123456789" or len(text) > _LONGEST_NUMBER:
        return text
    digits = text.replace("_", "")
    for pattern, base in _WHOLE:
        if found := pattern.fullmatch(digits):
            return int(found[1] + found[2], base)
    return float(digits) if _FRACTION.fullmatch(digits) else text


_LONGEST_NUMBER = 67
"""Characters: 64 bits in binary, with sign and prefix; what is longer is a text here, so that none takes long."""
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
    """A place that may be behind the end of a text, as parsers have it when something is missing: then the end of its
    last line with anything in it."""
    lines = text.rstrip().split("\n")
    return place if place.line <= len(lines) else Place(len(lines), len(lines[-1]) + 1)


def place_within(lines: list[str], written: Written, text: str, place: Place) -> Place:
    """Where in a document (its lines) a place of a text value is: exactly where the value is written as it reads, in a
    ``|`` block or on one line; else where the value begins."""
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
    """Parsers count other characters than a newline too, so that there may be none."""
    return lines[number - 1] if number <= len(lines) else ""

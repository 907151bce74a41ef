"""YAML text that strangers wrote, read into plain nodes.

Grammar: one document of YAML 1.2 without anchors, aliases, tags, merge keys, directives or duplicate keys. JSON is read
by the same parser, because a flow collection of YAML 1.2 is JSON; one parser means that no text has two readings. (Not
read from JSON: ``\\uD83D\\uDE00`` pairs, nor keys over 1,024 characters; nothing that is asked here needs either.)

Law: the text is hostile. Size, depth, entries, nodes and the length of a scalar are bounded, and each bound is checked
while events arrive, so that nothing larger is ever built. Nothing but RequestError escapes. Scalars keep their text:
``14e4`` is a vendor to one reader and a float to another, so their type is resolved by the reader that wants one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from yaml import CSafeLoader, YAMLError
from yaml.error import MarkedYAMLError
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
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

MAX_BYTES = 64 * 1024
MAX_DEPTH = 8
MAX_ENTRIES = 64
"""Of one list or mapping."""
MAX_NODES = 4096
MAX_SCALAR = 256
"""Characters; the longest thing a request names is a 63-character label."""

CoreValue: TypeAlias = bool | int | float | str | None
Node: TypeAlias = "Scalar | list[Node] | dict[str, Node]"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar as written; `plain` is one without quotes, the only kind that can be other than a string."""

    text: str
    plain: bool

    @property
    def value(self) -> CoreValue:
        """What the YAML 1.2 core schema takes it for: ``on`` and ``0000:10:00.0`` are strings, ``010`` is 10."""
        if not self.plain:
            return self.text
        return next((resolve(self.text) for pattern, resolve in _CORE if pattern.fullmatch(self.text)), self.text)


_CORE: tuple[tuple[re.Pattern[str], Callable[[str], CoreValue]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    (re.compile(r"[-+]?[0-9]+", re.ASCII), int),
    (re.compile(r"0o[0-7]+"), lambda text: int(text, 0)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text, 0)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda text: float(text.replace(".", ""))),
    (re.compile(r"\.(nan|NaN|NAN)"), lambda text: float("nan")),
)


def read_yaml(text: str, where: str) -> Node | None:
    """The document in `text`, None when there is none in it. Raises RequestError, located by `where` and line."""
    if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise RequestError(
            ErrorCode.ANNOTATION_SIZE,
            f"the text is larger than {MAX_BYTES} bytes",
            where=where,
            hint="ask for less, or with fewer words",
        )
    return _Reader(text, where).document()


class _Reader:
    """Builds nodes from parser events; recursion ends at MAX_DEPTH."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        self._nodes = 0
        try:
            self._parser = CSafeLoader(text)  # its events only; its resolver and constructor are YAML 1.1
        except (YAMLError, UnicodeError) as error:
            raise self._syntax(error) from error
        self._next()  # StreamStartEvent

    def document(self) -> Node | None:
        start = self._next()
        if isinstance(start, StreamEndEvent):
            return None
        if isinstance(start, DocumentStartEvent) and (start.version or start.tags):
            raise self._refuse(
                ErrorCode.ANNOTATION_SYNTAX, "a YAML directive is not allowed", start, "leave % lines out"
            )
        node = self._node(self._next(), 1)
        self._next()  # DocumentEndEvent
        after = self._next()
        if not isinstance(after, StreamEndEvent):
            raise self._refuse(
                ErrorCode.ANNOTATION_SYNTAX, "a second document is not allowed", after, "write one document, one list"
            )
        return node

    def _node(self, event: Event, depth: int) -> Node:
        self._check_node(event, depth)
        if isinstance(event, SequenceStartEvent):
            return self._sequence(depth)
        if isinstance(event, MappingStartEvent):
            return self._mapping(depth)
        return self._scalar(event)

    def _sequence(self, depth: int) -> list[Node]:
        items: list[Node] = []
        while not isinstance(event := self._next(), SequenceEndEvent):
            self._check_entries(len(items), event)
            items.append(self._node(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[str, Node]:
        entries: dict[str, Node] = {}
        while not isinstance(event := self._next(), MappingEndEvent):
            self._check_entries(len(entries), event)
            key = self._key(event, depth + 1)
            if key in entries:
                what = f"the key {key!r} is there twice"
                raise self._refuse(ErrorCode.ANNOTATION_DUPLICATE_KEY, what, event, "keep one of them")
            entries[key] = self._node(self._next(), depth + 1)
        return entries

    def _key(self, event: Event, depth: int) -> str:
        self._check_node(event, depth)
        if not isinstance(event, ScalarEvent):
            raise self._refuse(ErrorCode.ANNOTATION_SYNTAX, "a key has to be one word", event, "write key: value")
        key = self._scalar(event)
        if key.plain and key.text == "<<":
            raise self._refuse(ErrorCode.ANNOTATION_ALIAS, "a merge key is not allowed", event, "write the keys out")
        return key.text

    def _scalar(self, event: Event) -> Scalar:
        assert isinstance(event, ScalarEvent)  # parser's contract: a node is an alias, a collection or a scalar
        text = str(event.value)
        if len(text) > MAX_SCALAR:
            what = f"a value of {len(text)} characters is too long"
            raise self._refuse(ErrorCode.ANNOTATION_SIZE, what, event, f"a value has at most {MAX_SCALAR} characters")
        return Scalar(text, not event.style)

    def _check_node(self, event: Event, depth: int) -> None:
        self._nodes += 1
        if isinstance(event, AliasEvent):
            raise self._refuse(ErrorCode.ANNOTATION_ALIAS, "an alias is not allowed", event, "write the value out")
        if isinstance(event, NodeEvent) and event.anchor is not None:
            raise self._refuse(ErrorCode.ANNOTATION_ALIAS, "an anchor is not allowed", event, "leave the & name out")
        if getattr(event, "tag", None) is not None:
            raise self._refuse(ErrorCode.ANNOTATION_ALIAS, "a tag is not allowed", event, "leave the ! name out")
        if depth > MAX_DEPTH:
            what = f"it is nested deeper than {MAX_DEPTH} levels"
            raise self._refuse(
                ErrorCode.ANNOTATION_SIZE, what, event, "write a list of requests; none of their keys is so deep"
            )
        if self._nodes > MAX_NODES:
            what = f"there are more than {MAX_NODES} values"
            raise self._refuse(ErrorCode.ANNOTATION_SIZE, what, event, "ask for less")

    def _check_entries(self, entries: int, event: Event) -> None:
        if entries >= MAX_ENTRIES:
            what = f"there are more than {MAX_ENTRIES} entries in one list"
            raise self._refuse(ErrorCode.ANNOTATION_SIZE, what, event, f"write at most {MAX_ENTRIES}")

    def _next(self) -> Event:
        try:
            event = self._parser.get_event()
        except (YAMLError, UnicodeError) as error:
            raise self._syntax(error) from error
        assert isinstance(event, Event)  # only after StreamEndEvent there is none, and nobody asks then
        return event

    def _refuse(self, code: ErrorCode, what: str, event: Event, hint: str) -> RequestError:
        return self._error(code, what, hint, event.start_mark)

    def _error(self, code: ErrorCode, what: str, hint: str, mark: object) -> RequestError:
        line, column = getattr(mark, "line", None), getattr(mark, "column", None)
        if line is None or column is None:
            return RequestError(code, what, where=self._where, hint=hint)
        line, column = line + 1, column + 1
        where = f"{self._where} line {line} column {column}"
        return RequestError(code, what, where=where, hint=hint, line=line, column=column)

    def _syntax(self, error: Exception) -> RequestError:
        problem, mark = "a character that YAML does not allow", None
        if isinstance(error, MarkedYAMLError):
            problem, mark = error.problem or "unreadable", error.problem_mark or error.context_mark
        hint = "check indentation, brackets and quotes there"
        return self._error(ErrorCode.ANNOTATION_SYNTAX, f"not YAML: {problem}", hint, mark)

"""The text of a CDI spec, read into plain nodes that know their lines.

Runtimes read every spec, also ``*.json``, as YAML (the Go library uses yaml.v3), so that one parser reads both here.
What they accept is accepted, with its meaning: anchors, aliases, merge keys, a version directive, ``0666`` for 438.

Refused is what readers take differently or drop in silence: a key that occurs twice, another encoding than UTF-8, tags
but ``!!str`` and ``!``, keys that are no text, a second document. Size, nodes and the length of a text are bounded; an
alias counts as much as what it stands for, so that none multiplies. Nothing but CdiError escapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from yaml import CSafeLoader, YAMLError
from yaml.error import MarkedYAMLError
from yaml.events import (
    AliasEvent,
    CollectionStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
)

from nri_rdma.cdi.problems import Problems
from nri_rdma.cdi.version import Path
from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.text.refusals import quoted

MAX_BYTES = 1 << 20
"""A thousand devices of ours are a quarter of it."""
MAX_DEPTH = 16
"""The schema is seven deep."""
MAX_NODES = 50_000
"""Two thousand devices of ours have fewer. A file with this many is read in 0.1 to 0.4 s (seen on a slow machine)."""
MAX_TEXT = 128 * 1024
"""Characters. No longer argument or variable reaches a program: MAX_ARG_STRLEN of Linux."""
MAX_KEY = 317
"""Characters. The longest annotation key of Kubernetes: a prefix of 253, a slash and a name of 63."""


@dataclass(frozen=True, slots=True)
class Text:
    """A scalar as written; `plain` is one without quotes, the only kind that can be other than a text."""

    text: str
    plain: bool
    line: int

    @property
    def is_null(self) -> bool:
        """Whether it stands for nothing; runtimes then see the field as if it were not there."""
        return self.plain and self.text in {"", "~", "null", "Null", "NULL"}


@dataclass(frozen=True, slots=True)
class List:
    """A sequence."""

    items: tuple[Node, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Entry:
    """The value of a key, and the key's line."""

    node: Node
    line: int


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping, merged with those it names by ``<<``."""

    entries: dict[str, Entry]
    line: int


Node: TypeAlias = Text | List | Mapping


def read_document(data: bytes, problems: Problems) -> Node | None:
    """The first node of the text, None when there is none in it. Raises CdiError; adds duplicate keys to `problems`."""
    if len(data) > MAX_BYTES:
        hint = "write fewer devices into one file"
        raise problems.error(ErrorCode.CDI_SIZE, f"the file is larger than {MAX_BYTES} bytes", hint=hint)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise problems.error(ErrorCode.CDI_SYNTAX, "it is not UTF-8", hint="save it as UTF-8", line=line) from error
    return _Reader(text, problems).document()


@dataclass(slots=True)
class _Anchored:
    """What an alias stands for, None while it is read, and the nodes that it counts for."""

    node: Node | None = None
    size: int = 0


class _Reader:
    """Builds nodes from parser events; recursion ends at MAX_DEPTH."""

    def __init__(self, text: str, problems: Problems) -> None:
        self._problems = problems
        self._nodes = 0
        self._flow = 0  # how many [ and { are open
        self._anchors: dict[str, _Anchored] = {}
        try:
            self._parser = CSafeLoader(text)  # its events only; its resolver and constructor know no schema
        except (YAMLError, UnicodeError) as error:
            raise self._syntax(error) from error
        self._next()  # StreamStartEvent

    def document(self) -> Node | None:
        if isinstance(self._next(), StreamEndEvent):
            return None
        node = self._node(self._next(), (), 1)
        end = self._next()
        if not self._is_over():
            what = "something follows the first document, which runtimes pass over"
            raise self._refuse(ErrorCode.CDI_SYNTAX, what, "write one document", end, ())
        return node

    def _is_over(self) -> bool:
        try:
            return isinstance(self._next(), StreamEndEvent)
        except CdiError:  # not even a document: runtimes do not look at it
            return False

    def _node(self, event: Event, path: Path, depth: int) -> Node:
        if isinstance(event, AliasEvent):
            return self._alias(event, path)
        before, anchored = self._nodes, _Anchored()
        if isinstance(event, NodeEvent) and event.anchor is not None:
            self._anchors[event.anchor] = anchored  # from here on: within itself it is no older one of that name
        self._check(event, path, depth)
        anchored.node = self._content(event, path, depth)
        anchored.size = self._nodes - before
        return anchored.node

    def _content(self, event: Event, path: Path, depth: int) -> Node:
        if not isinstance(event, CollectionStartEvent):
            return self._text(event, path)
        self._flow += bool(event.flow_style)
        node = (
            self._list(event, path, depth)
            if isinstance(event, SequenceStartEvent)
            else self._mapping(event, path, depth)
        )
        self._flow -= bool(event.flow_style)
        return node

    def _alias(self, event: AliasEvent, path: Path) -> Node:
        found = self._anchors.get(str(event.anchor))
        if found is None or found.node is None:
            what = f"the alias {quoted(str(event.anchor))} stands for nothing that is complete before it"
            raise self._refuse(ErrorCode.CDI_SYNTAX, what, "put the anchor before it", event, path)
        self._count(found.size, event, path)
        return found.node

    def _list(self, event: Event, path: Path, depth: int) -> List:
        items: list[Node] = []
        while not isinstance(inner := self._next(), SequenceEndEvent):
            items.append(self._node(inner, (*path, len(items)), depth + 1))
        return List(tuple(items), _line(event))

    def _mapping(self, event: Event, path: Path, depth: int) -> Mapping:
        entries: dict[str, Entry] = {}
        merged: Node | None = None
        while not isinstance(inner := self._next(), MappingEndEvent):
            key, is_merge = self._key(inner, path)
            if (is_merge and merged is not None) or (not is_merge and key in entries):
                what, hint = f"the key {quoted(key)} is there twice", "keep one of them"
                self._problems.add(self._refuse(ErrorCode.CDI_DUPLICATE_KEY, what, hint, inner, (*path, key)))
            value = self._node(self._next(), (*path, key), depth + 1)
            if is_merge:
                merged = value
            else:
                entries[key] = Entry(value, _line(inner))
        for source in self._sources(merged, event, path):
            for key, entry in source.entries.items():
                entries.setdefault(key, entry)
        return Mapping(entries, _line(event))

    def _sources(self, merged: Node | None, event: Event, path: Path) -> list[Mapping]:
        """The mappings that ``<<`` names; the first that has a key gives it."""
        nodes = merged.items if isinstance(merged, List) else () if merged is None else (merged,)
        sources = [node for node in nodes if isinstance(node, Mapping)]
        if len(sources) != len(nodes):
            what = "a merge key names what is no mapping"
            raise self._refuse(ErrorCode.CDI_SYNTAX, what, "write << with an alias of a mapping", event, path)
        return sources

    def _key(self, event: Event, path: Path) -> tuple[str, bool]:
        """The key, and whether it is the merge key."""
        self._check(event, path, 1)
        key = self._text(event, path) if isinstance(event, ScalarEvent) and event.anchor is None else None
        if key is None or key.is_null or not key.text.isprintable() or len(key.text) > MAX_KEY:
            hint = f"write a key of at most {MAX_KEY} printable characters"
            raise self._refuse(ErrorCode.CDI_SYNTAX, "a key is no text", hint, event, path)
        return key.text, key.plain and key.text == "<<"

    def _text(self, event: Event, path: Path) -> Text:
        assert isinstance(event, ScalarEvent)  # parser's contract: a node is an alias, a collection or a scalar
        text = str(event.value)
        if len(text) > MAX_TEXT:
            what = f"a text of {len(text)} characters is too long"
            raise self._refuse(ErrorCode.CDI_SIZE, what, f"a text has at most {MAX_TEXT} characters", event, path)
        if "\0" in text:
            hint = "take it out: no path, variable or argument can hold it"
            raise self._refuse(ErrorCode.CDI_VALUE, "there is a NUL in the text", hint, event, path)
        if self._flow and not event.style and "?" in text:
            what = "runtimes do not read a word with ? within [ ] or { }"
            raise self._refuse(ErrorCode.CDI_SYNTAX, what, "put it in quotes", event, path)
        return Text(text, not event.style and event.tag is None, _line(event))

    def _check(self, event: Event, path: Path, depth: int) -> None:
        self._count(1, event, path)
        if depth > MAX_DEPTH:
            hint = "write what the schema has; it is not so deep"
            raise self._refuse(ErrorCode.CDI_SIZE, f"it is nested deeper than {MAX_DEPTH} levels", hint, event, path)
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _TAGS[type(event)]:
            what = f"the tag {quoted(str(tag))} is not allowed"
            raise self._refuse(ErrorCode.CDI_SYNTAX, what, "leave the ! word out", event, path)

    def _count(self, nodes: int, event: Event, path: Path) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            what = f"there are more than {MAX_NODES} values"
            raise self._refuse(ErrorCode.CDI_SIZE, what, "write fewer devices into one file", event, path)

    def _next(self) -> Event:
        try:
            event = self._parser.get_event()
        except (YAMLError, UnicodeError) as error:
            raise self._syntax(error) from error
        assert isinstance(event, Event)  # only after StreamEndEvent there is none, and nobody asks then
        return event

    def _refuse(self, code: ErrorCode, what: str, hint: str, event: Event, path: Path) -> CdiError:
        return self._problems.error(code, what, hint=hint, line=_line(event), path=path)

    def _syntax(self, error: Exception) -> CdiError:
        problem, mark = "a character that YAML does not allow", None
        if isinstance(error, MarkedYAMLError):
            problem, mark = error.problem or "unreadable", error.problem_mark or error.context_mark
        line = getattr(mark, "line", None)
        return self._problems.error(
            ErrorCode.CDI_SYNTAX,
            f"neither JSON nor YAML: {problem}",
            hint="check indentation, brackets and quotes there",
            line=0 if line is None else line + 1,
        )


_PREFIX = "tag:yaml.org,2002:"
_TAGS: dict[type[Event], frozenset[str]] = {
    ScalarEvent: frozenset({"!", f"{_PREFIX}str"}),
    SequenceStartEvent: frozenset({f"{_PREFIX}seq"}),
    MappingStartEvent: frozenset({f"{_PREFIX}map"}),
}


def _line(event: Event) -> int:
    return getattr(event.start_mark, "line", 0) + 1  # the parser always has one; the types say it may not

"""Parses YAML of untrusted authors into nodes (scalars, lists and mappings), and has the rules for requests.

A Dialect is the set of rules for one kind of text: requests (here), Kubernetes manifests (text/placed_yaml.py) and CDI
specs (cdi/document.py). The Builder limits the depth and the number of nodes in all of them.

Grammar of a request: one document of YAML 1.2 without anchors, aliases, tags, merge keys, directives or duplicate keys.
JSON is read by the same parser, because JSON is a part of YAML 1.2; one parser means that no text has two meanings.
(Not read from JSON: ``\\uD83D\\uDE00`` pairs, and keys over 1,024 characters. No request needs them.)

Law: the text is hostile. Size, depth, entries, nodes and the length of a scalar are bounded, and each bound is checked
while the parser delivers events, so that nothing larger is ever built. No error but RequestError is raised.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

# From the package, never from its modules: threads import it late. One that imports yaml.error first holds its lock and
# wants the package's, while another holds that one and wants yaml.error's; Python ends such a deadlock by handing out
# half a module.
from yaml import (
    AliasEvent,
    CollectionStartEvent,
    CSafeLoader,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    MarkedYAMLError,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    YAMLError,
)

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.nodes import Node, Path, Scalar
from nri_rdma.text.refusals import quoted

MAX_BYTES = 64 * 1024
MAX_DEPTH = 8
MAX_ENTRIES = 64
"""The most entries of one list or mapping."""
MAX_NODES = 4096
MAX_SCALAR = 256
"""The most characters of a scalar; the longest name in a request is a label of 63 characters."""

N = TypeVar("N")
At: TypeAlias = tuple[int, int]
"""A line and a column in a text, counted from 1."""


def read_yaml(text: str, where: str) -> Node | None:
    """Parse the text of a request, and return its node; None if the text has no document. Raises RequestError that
    names `where` and the line."""
    if len(text) > MAX_BYTES or len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise RequestError(
            ErrorCode.ANNOTATION_SIZE,
            f"the text is larger than {MAX_BYTES} bytes",
            where=where,
            hint="ask for less, or with fewer words",
        )
    return _Requests(text, where).document()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The rules for one kind of YAML text: its limits, and the codes and hints of its errors."""

    max_depth: int
    depth_hint: str
    max_nodes: int
    nodes_hint: str
    size: ErrorCode
    syntax: ErrorCode
    duplicate: ErrorCode
    not_yaml: str
    tags: Mapping[type[Event], frozenset[str]] = field(default_factory=dict)
    """The YAML tags (``!name``) that are allowed, by the kind of node."""


@dataclass(slots=True)
class _Anchored(Generic[N]):
    """The node of a YAML anchor (``&name``). `built` holds the node; None until the node is complete. `size` is the
    number of nodes in it, which each alias (``*name``) adds to the count of the whole document."""

    built: tuple[N] | None = None
    size: int = 0


_LIBYAML_DEPTH = "maximum nesting depth"
"""Words of the error that PyYAML 6.0.4 raises at 1,000 levels of nesting. PyYAML reads ahead of its events, so that
this error can come before the Builder checks the depth itself."""


class Builder(ABC, Generic[N]):
    """Builds the nodes of a YAML text from parser events, and checks each limit before it builds a node. A subclass
    makes the nodes of one dialect (the rules for one kind of text).

    An alias counts for all nodes of the value that it refers to. A short text with many aliases therefore cannot become
    larger than the limit of nodes. `max_depth` of the dialect also limits the recursion.
    """

    def __init__(self, text: str, dialect: Dialect) -> None:
        self._dialect = dialect
        self._nodes = 0
        self._anchors: dict[str, _Anchored[N]] = {}
        try:
            self._parser = CSafeLoader(text)  # its events only; its resolver and constructor know no dialect
        except (YAMLError, UnicodeError) as error:
            raise self._unreadable(error) from error
        self.next()  # StreamStartEvent

    @abstractmethod
    def scalar(self, event: ScalarEvent, path: Path) -> N:
        """Return the node of a scalar. `path` has the keys and list indexes that lead to it."""

    @abstractmethod
    def sequence(self, items: list[N], start: SequenceStartEvent) -> N:
        """Return the node of a list. `items` are the nodes of its entries, and `start` is the event that began the
        list."""

    @abstractmethod
    def mapping(self, entries: dict[str, tuple[N, Event]], merged: list[N], start: MappingStartEvent, path: Path) -> N:
        """Return the node of a mapping. `entries` has for each key the value's node and the key's event. `merged` are
        the mappings that its merge key (``<<``) names, and `start` is the event that began the mapping."""

    @abstractmethod
    def key(self, event: Event, path: Path, depth: int) -> tuple[str, bool]:
        """Return the text of a key, and whether it is the merge key (``<<``). `event` is the key's event, and `path` is
        the path of the mapping. Raises RequestError for a key that is not allowed."""

    @abstractmethod
    def error(self, code: ErrorCode, what: str, hint: str, at: At | None, path: Path) -> RequestError:
        """Return the error for the part of the text at a line and column (None: the parser does not name a place).
        `what` says what is wrong, and `hint` what to write instead."""

    def refuse(self, code: ErrorCode, what: str, hint: str, event: Event, path: Path) -> RequestError:
        """Return the error for the part of the text at a parser event. `what` says what is wrong, and `hint` what to
        write instead."""
        return self.error(code, what, hint, _at(event.start_mark), path)

    def merge(self, node: N, key: Event) -> list[N]:
        """Return the mappings that a merge key (``<<``) names; `mapping` gets them as `merged`. If several of them have
        a key, the first mapping's value is used."""
        return [node]

    def is_twice(self, key: str, is_merge: bool, entries: dict[str, tuple[N, Event]], merged: list[N]) -> bool:
        """Return whether the mapping has this key already. With `is_merge`, return whether it has a merge key (``<<``)
        already."""
        return bool(merged) if is_merge else key in entries

    def enter(self, path: Path, event: Event) -> None:
        """Record the place of a list's or mapping's entry before it is built. `event` is the first event of a list's
        entry, or the key of a mapping's entry. Does nothing, unless a subclass overrides it."""

    def check_entries(self, entries: int, event: Event) -> None:
        """Raise RequestError if a list or mapping that has this number of entries must not get another one. Does
        nothing, unless a subclass overrides it."""

    def open(self, start: CollectionStartEvent) -> None:
        """Record that a list or mapping begins. Does nothing, unless a subclass overrides it."""

    def close(self, start: CollectionStartEvent) -> None:
        """Record that a list or mapping ends. Does nothing, unless a subclass overrides it."""

    def duplicate(self, key: str, event: Event, path: Path) -> None:
        """Raise RequestError for a key that occurs twice in a mapping. A subclass may collect the error instead."""
        what = f"the key {quoted(key)} is there twice"
        raise self.refuse(self._dialect.duplicate, what, "keep one of them", event, path)

    def node(self, event: Event, path: Path, depth: int) -> N:
        """Build and return the node that begins with `event`, with everything in it. `depth` is its level of nesting,
        from 1."""
        if isinstance(event, AliasEvent):
            return self.alias(event, path)
        before = self._nodes
        self.check(event, path, depth)
        if not isinstance(event, NodeEvent) or event.anchor is None:
            return self._content(event, path, depth)
        anchored = self._anchors[event.anchor] = _Anchored[N]()  # within itself it is no older one of that name
        built = self._content(event, path, depth)
        anchored.built, anchored.size = (built,), self._nodes - before
        return built

    def alias(self, event: AliasEvent, path: Path) -> N:
        """Return the node that an alias (``*name``) refers to. Raises RequestError if the anchor (``&name``) is
        missing, or if its node is not complete yet."""
        found = self._anchors.get(str(event.anchor))
        if found is None or found.built is None:
            what = f"the alias {quoted(str(event.anchor))} stands for nothing that is complete before it"
            raise self.refuse(self._dialect.syntax, what, "put the anchor before it", event, path)
        self.count(found.size, event, path)
        return found.built[0]

    def check(self, event: Event, path: Path, depth: int) -> None:
        """Count the node that begins with `event`. Raises RequestError if the text has too many nodes, if this node is
        nested too deep, or if its tag is not allowed."""
        self.count(1, event, path)
        self.check_depth(event, path, depth)
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in self._dialect.tags.get(type(event), ()):
            what = f"the tag {quoted(str(tag))} is not allowed"
            raise self.refuse(self._dialect.syntax, what, "leave the ! word out", event, path)

    def check_depth(self, event: Event, path: Path, depth: int) -> None:
        """Raise RequestError if the level of nesting `depth` is above the dialect's limit (the limit for this kind of
        text)."""
        if depth > self._dialect.max_depth:
            raise self._too_deep(event, path)

    def count(self, nodes: int, event: Event, path: Path) -> None:
        """Add a number of nodes to the count of the text. Raises RequestError if the count is above the dialect's limit
        (the limit for this kind of text)."""
        self._nodes += nodes
        if self._nodes > self._dialect.max_nodes:
            what = f"there are more than {self._dialect.max_nodes} values"
            raise self.refuse(self._dialect.size, what, self._dialect.nodes_hint, event, path)

    def next(self) -> Event:
        """Return the parser's next event. Raises RequestError if the text is not valid YAML there."""
        try:
            event = self._parser.get_event()
        except (YAMLError, UnicodeError) as error:
            raise self._unreadable(error) from error
        assert isinstance(event, Event)  # only after StreamEndEvent there is none, and nobody asks then
        return event

    def _content(self, event: Event, path: Path, depth: int) -> N:
        if not isinstance(event, CollectionStartEvent):
            assert isinstance(event, ScalarEvent)  # parser's contract: a node is an alias, a collection or a scalar
            return self.scalar(event, path)
        self.open(event)
        node = (
            self._sequence(event, path, depth)
            if isinstance(event, SequenceStartEvent)
            else self._mapping(event, path, depth)
        )
        self.close(event)
        return node

    def _sequence(self, start: SequenceStartEvent, path: Path, depth: int) -> N:
        items: list[N] = []
        while not isinstance(event := self.next(), SequenceEndEvent):
            self.check_entries(len(items), event)
            below = (*path, len(items))
            self.enter(below, event)
            items.append(self.node(event, below, depth + 1))
        return self.sequence(items, start)

    def _mapping(self, start: Event, path: Path, depth: int) -> N:
        assert isinstance(start, MappingStartEvent)
        entries: dict[str, tuple[N, Event]] = {}
        merged: list[N] = []
        while not isinstance(event := self.next(), MappingEndEvent):
            self.check_entries(len(entries), event)
            key, is_merge = self.key(event, path, depth + 1)
            below = (*path, key)
            if self.is_twice(key, is_merge, entries, merged):
                self.duplicate(key, event, below)
            if is_merge:
                merged = self.merge(self.node(self.next(), below, depth + 1), event)
                continue
            self.enter(below, event)
            entries[key] = (self.node(self.next(), below, depth + 1), event)
        return self.mapping(entries, merged, start, path)

    def _too_deep(self, event: Event, path: Path) -> RequestError:
        what = f"it is nested deeper than {self._dialect.max_depth} levels"
        return self.refuse(self._dialect.size, what, self._dialect.depth_hint, event, path)

    def _unreadable(self, error: Exception) -> RequestError:
        problem, mark = "a character that YAML does not allow", None
        if isinstance(error, MarkedYAMLError):
            problem, mark = error.problem or "unreadable", error.problem_mark or error.context_mark
            if _LIBYAML_DEPTH in problem:
                return self._too_deep(Event(mark, mark), ())
        hint = "check indentation, brackets and quotes there"
        return self.error(self._dialect.syntax, f"{self._dialect.not_yaml}: {problem}", hint, _at(mark), ())


def _at(mark: object) -> At | None:
    line, column = getattr(mark, "line", None), getattr(mark, "column", None)
    return None if line is None or column is None else (line + 1, column + 1)


REQUESTS = Dialect(
    max_depth=MAX_DEPTH,
    depth_hint="write a list of requests; none of their keys is so deep",
    max_nodes=MAX_NODES,
    nodes_hint="ask for less",
    size=ErrorCode.ANNOTATION_SIZE,
    syntax=ErrorCode.ANNOTATION_SYNTAX,
    duplicate=ErrorCode.ANNOTATION_DUPLICATE_KEY,
    not_yaml="not YAML",
)


class _Requests(Builder[Node]):
    """Builds the nodes of a request's text. Aliases, anchors, tags and merge keys are refused."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        super().__init__(text, REQUESTS)

    def document(self) -> Node | None:
        start = self.next()
        if isinstance(start, StreamEndEvent):
            return None
        if isinstance(start, DocumentStartEvent) and (start.version or start.tags):
            what = "a YAML directive is not allowed"
            raise self.refuse(ErrorCode.ANNOTATION_SYNTAX, what, "leave % lines out", start, ())
        node = self.node(self.next(), (), 1)
        self.next()  # DocumentEndEvent
        after = self.next()
        if not isinstance(after, StreamEndEvent):
            what = "a second document is not allowed"
            raise self.refuse(ErrorCode.ANNOTATION_SYNTAX, what, "write one document, one list", after, ())
        return node

    def scalar(self, event: ScalarEvent, path: Path) -> Scalar:
        text = str(event.value)
        if len(text) > MAX_SCALAR:
            what = f"a value of {len(text)} characters is too long"
            hint = f"a value has at most {MAX_SCALAR} characters"
            raise self.refuse(ErrorCode.ANNOTATION_SIZE, what, hint, event, path)
        return Scalar(text, not event.style)

    def sequence(self, items: list[Node], start: SequenceStartEvent) -> Node:
        return items

    def mapping(
        self, entries: dict[str, tuple[Node, Event]], merged: list[Node], start: MappingStartEvent, path: Path
    ) -> Node:
        return {key: node for key, (node, _) in entries.items()}

    def key(self, event: Event, path: Path, depth: int) -> tuple[str, bool]:
        self.check(event, path, depth)
        if not isinstance(event, ScalarEvent):
            what = "a key has to be one word"
            raise self.refuse(ErrorCode.ANNOTATION_SYNTAX, what, "write key: value", event, path)
        key = self.scalar(event, path)
        if key.plain and key.text == "<<":
            what = "a merge key is not allowed"
            raise self.refuse(ErrorCode.ANNOTATION_ALIAS, what, "write the keys out", event, path)
        return key.text, False

    def alias(self, event: AliasEvent, path: Path) -> Node:
        what = "an alias is not allowed"
        raise self.refuse(ErrorCode.ANNOTATION_ALIAS, what, "write the value out", event, path)

    def check(self, event: Event, path: Path, depth: int) -> None:
        if isinstance(event, AliasEvent):  # as a key
            self.alias(event, path)
        if isinstance(event, NodeEvent) and event.anchor is not None:
            what = "an anchor is not allowed"
            raise self.refuse(ErrorCode.ANNOTATION_ALIAS, what, "leave the & name out", event, path)
        if getattr(event, "tag", None) is not None:
            raise self.refuse(ErrorCode.ANNOTATION_ALIAS, "a tag is not allowed", "leave the ! name out", event, path)
        self.check_depth(event, path, depth)
        self.count(1, event, path)

    def check_entries(self, entries: int, event: Event) -> None:
        if entries >= MAX_ENTRIES:
            what = f"there are more than {MAX_ENTRIES} entries in one list"
            raise self.refuse(ErrorCode.ANNOTATION_SIZE, what, f"write at most {MAX_ENTRIES}", event, ())

    def duplicate(self, key: str, event: Event, path: Path) -> None:
        what = f"the key {key!r} is there twice"
        raise self.refuse(ErrorCode.ANNOTATION_DUPLICATE_KEY, what, "keep one of them", event, path)

    def error(self, code: ErrorCode, what: str, hint: str, at: At | None, path: Path) -> RequestError:
        if at is None:
            return RequestError(code, what, where=self._where, hint=hint)
        line, column = at
        where = f"{self._where} line {line} column {column}"
        return RequestError(code, what, where=where, hint=hint, line=line, column=column)

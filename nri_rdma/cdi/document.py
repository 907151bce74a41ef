"""The text of a CDI spec, read into plain nodes that know their lines.

Runtimes read every spec as YAML, also ``*.json`` (the Go library uses yaml.v3), so one parser reads both here. It
understands what yaml.v3 does: anchors, aliases, merge keys, a version directive, ``0666`` for 438.

The parser refuses texts that some runtimes read differently or drop silently: a key that occurs twice, an encoding
other than UTF-8, tags except ``!!str`` and ``!``, keys that are not texts, a second document. The size, the number of
nodes and the length of a text are limited. Each use of an alias counts like a copy of its nodes, so that a short text
with aliases cannot become a huge document. The only error raised is RequestError.
"""

from __future__ import annotations

from yaml import CollectionStartEvent, Event, MappingStartEvent, ScalarEvent, SequenceStartEvent, StreamEndEvent

from nri_rdma.cdi.problems import path_text
from nri_rdma.cdi.scalars import Text
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.nodes import LinedList, LinedMapping, Node, Path
from nri_rdma.text.refusals import Errors, quoted
from nri_rdma.text.yaml import At, Builder, Dialect

MAX_BYTES = 1 << 20
"""Longest spec, in bytes; a longer one is refused. A spec with a thousand of nri-rdma's devices has a quarter of it."""
MAX_DEPTH = 16
"""Greatest depth to which lists and mappings of a spec may be nested; a deeper spec is refused. CDI's schema has seven
levels."""
MAX_NODES = 50_000
"""Most nodes (texts, lists and mappings) of a spec; one with more is refused. Two thousand of nri-rdma's devices have
fewer. Reading this many took 0.1 to 0.4 s on a slow machine."""
MAX_TEXT = 128 * 1024
"""Most characters of a text; a longer one is refused. Linux does not pass a longer argument or variable to a program
(MAX_ARG_STRLEN)."""
MAX_KEY = 317
"""Most characters of a key; a longer one is refused. The longest annotation key of Kubernetes has this length: a prefix
of 253, a slash and a name of 63."""


def read_document(data: bytes, errors: Errors) -> Node | None:
    """Return the top node of the text; None if the text is empty. Raise RequestError if the text is too large, or
    cannot be read as JSON or YAML. Duplicate keys are added to `errors`."""
    if len(data) > MAX_BYTES:
        hint = "write fewer devices into one file"
        raise RequestError(ErrorCode.CDI_SIZE, f"the file is larger than {MAX_BYTES} bytes", hint=hint)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RequestError(ErrorCode.CDI_SYNTAX, "it is not UTF-8", hint="save it as UTF-8", line=line) from error
    return _Spec(text, errors).document()


_PREFIX = "tag:yaml.org,2002:"
SPECS = Dialect(
    max_depth=MAX_DEPTH,
    depth_hint="write what the schema has; it is not so deep",
    max_nodes=MAX_NODES,
    nodes_hint="write fewer devices into one file",
    size=ErrorCode.CDI_SIZE,
    syntax=ErrorCode.CDI_SYNTAX,
    duplicate=ErrorCode.CDI_DUPLICATE_KEY,
    not_yaml="neither JSON nor YAML",
    tags={
        ScalarEvent: frozenset({"!", f"{_PREFIX}str"}),
        SequenceStartEvent: frozenset({f"{_PREFIX}seq"}),
        MappingStartEvent: frozenset({f"{_PREFIX}map"}),
    },
)


class _Spec(Builder[Node]):
    """Builds the nodes of a spec. A duplicate key is added to the errors, and its last value counts."""

    def __init__(self, text: str, errors: Errors) -> None:
        self._errors = errors
        self._flow = 0  # how many [ and { are open
        super().__init__(text, SPECS)

    def document(self) -> Node | None:
        if isinstance(self.next(), StreamEndEvent):
            return None
        node = self.node(self.next(), (), 1)
        end = self.next()
        if not self._is_over():
            what = "something follows the first document, which runtimes pass over"
            raise self.refuse(ErrorCode.CDI_SYNTAX, what, "write one document", end, ())
        return node

    def _is_over(self) -> bool:
        try:
            return isinstance(self.next(), StreamEndEvent)
        except RequestError:  # not even a document: runtimes do not look at it
            return False

    def open(self, start: CollectionStartEvent) -> None:
        self._flow += bool(start.flow_style)

    def close(self, start: CollectionStartEvent) -> None:
        self._flow -= bool(start.flow_style)

    def scalar(self, event: ScalarEvent, path: Path) -> Text:
        text = str(event.value)
        if len(text) > MAX_TEXT:
            what = f"a text of {len(text)} characters is too long"
            raise self.refuse(ErrorCode.CDI_SIZE, what, f"a text has at most {MAX_TEXT} characters", event, path)
        if "\0" in text:
            hint = "take it out: no path, variable or argument can hold it"
            raise self.refuse(ErrorCode.CDI_VALUE, "there is a NUL in the text", hint, event, path)
        if self._flow and not event.style and "?" in text:
            what = "runtimes do not read a word with ? within [ ] or { }"
            raise self.refuse(ErrorCode.CDI_SYNTAX, what, "put it in quotes", event, path)
        return Text(text, not event.style and event.tag is None, _line(event))

    def sequence(self, items: list[Node], start: SequenceStartEvent) -> Node:
        return LinedList(items, _line(start))

    def mapping(
        self, entries: dict[str, tuple[Node, Event]], merged: list[Node], start: MappingStartEvent, path: Path
    ) -> Node:
        own = {key: node for key, (node, _) in entries.items()}
        lines = {key: _line(event) for key, (_, event) in entries.items()}
        for source in self._sources(merged, start, path):
            for key, node in source.items():
                own.setdefault(key, node)
                lines.setdefault(key, source.lines[key])
        return LinedMapping(own, _line(start), lines)

    def key(self, event: Event, path: Path, depth: int) -> tuple[str, bool]:
        self.check(event, path, 1)
        key = self.scalar(event, path) if isinstance(event, ScalarEvent) and event.anchor is None else None
        if key is None or key.is_missing or not key.text.isprintable() or len(key.text) > MAX_KEY:
            hint = f"write a key of at most {MAX_KEY} printable characters"
            raise self.refuse(ErrorCode.CDI_SYNTAX, "a key is no text", hint, event, path)
        return key.text, key.plain and key.text == "<<"

    def _sources(self, merged: list[Node], start: Event, path: Path) -> list[LinedMapping]:
        nodes = [node for named in merged for node in (named if isinstance(named, list) else (named,))]
        sources = [node for node in nodes if isinstance(node, LinedMapping)]
        if len(sources) != len(nodes):
            what = "a merge key names what is no mapping"
            raise self.refuse(ErrorCode.CDI_SYNTAX, what, "write << with an alias of a mapping", start, path)
        return sources

    def duplicate(self, key: str, event: Event, path: Path) -> None:
        what = f"the key {quoted(key)} is there twice"
        self._errors.add(self.refuse(ErrorCode.CDI_DUPLICATE_KEY, what, "keep one of them", event, path))

    def error(self, code: ErrorCode, what: str, hint: str, at: At | None, path: Path) -> RequestError:
        return RequestError(code, what, where=path_text(path), hint=hint, line=at[0] if at else 0)


def _line(event: Event) -> int:
    return getattr(event.start_mark, "line", 0) + 1  # the parser always has one; the types say it may not

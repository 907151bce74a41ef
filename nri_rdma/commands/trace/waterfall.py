"""Draws traces as waterfalls: the spans of the daemon's document become blocks, and blocks become lines. Pure.

A block is one event: a span whose parent is not in the document, with all spans below it. Its width is the time until
its last span ends. That may be later than the answer to RunPodSandbox, because a worker continues the attach.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest

import msgspec

from nri_rdma.errors import ErrorCode, NotReadyError

_SHOWN_ATTRIBUTES = ("rdma.device", "rdma.devices", "k8s.container.name", "step")
_NAME_SHARE, _BAR_SHARE = 0.36, 0.40
_NAME_WIDTHS, _BAR_WIDTHS = (22, 34), (18, 60)
_DURATION_WIDTH = 9
_LEAST_TEXT_WIDTH = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRow:
    """A span, with the fields of the trace document."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, str | int | float | bool]
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallRow:
    """A span with its place in the block's tree. `last` has a value for each ancestor, from the top down, and one for
    the span: whether it is the last of its siblings."""

    span: SpanRow
    last: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One event: a tree of spans, in the order of time. The first row is the span of the whole event."""

    rows: tuple[WaterfallRow, ...]

    @property
    def event(self) -> SpanRow:
        return self.rows[0].span

    @property
    def has_failed(self) -> bool:
        return any(row.span.error for row in self.rows)

    @property
    def end_ns(self) -> int:
        return max(row.span.end_ns for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallLine:
    """A line of the drawn waterfall. `is_header`: it is the first line of an event. `is_error`: it belongs to a failed
    span."""

    text: str
    is_header: bool = False
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pen:
    """The characters to draw with. `pieces` are the pieces of a bar, the shortest first; the others are the lines of
    the tree."""

    pieces: str
    branch: str
    corner: str
    pipe: str


UNICODE = Pen(pieces="▏▎▍▌▋▊▉█", branch="├ ", corner="└ ", pipe="│ ")
ASCII = Pen(pieces="#", branch="|-", corner="`-", pipe="| ")


def read_spans(document: Mapping[str, object]) -> tuple[SpanRow, ...]:
    """Return the spans of a trace document. Raises NotReadyError if the document has no valid spans."""
    try:
        spans: tuple[SpanRow, ...] = msgspec.convert(document.get("spans"), tuple[SpanRow, ...])
    except msgspec.ValidationError as error:
        hint = "restart the daemon after an upgrade"
        raise NotReadyError(ErrorCode.DAEMON_ABSENT, f"the trace cannot be read: {error}", hint=hint) from error
    return spans


def make_blocks(spans: Iterable[SpanRow]) -> tuple[Block, ...]:
    """Return the events that these spans form, in the order of time."""
    ordered = sorted(spans, key=lambda span: (span.start_ns, -span.end_ns))
    children: dict[tuple[str, str], list[SpanRow]] = {}
    events: list[SpanRow] = []
    newest: dict[str, SpanRow] = {}
    known = {(span.trace_id, span.span_id) for span in ordered}
    for span in ordered:
        parent = (span.trace_id, span.parent_id)
        if parent not in known and (unfinished := _event_around(span, newest)) is not None:
            parent = (unfinished.trace_id, unfinished.span_id)
        if parent in known:
            children.setdefault(parent, []).append(span)
        else:
            events.append(span)
            newest[span.trace_id] = span
    return tuple(Block(rows=tuple(_rows(event, children, ()))) for event in events)


def _event_around(span: SpanRow, newest: Mapping[str, SpanRow]) -> SpanRow | None:
    """Return the event to which a span without a known parent belongs: the newest event of its trace. A parent that is
    still running is not in the document yet.

    None if the span has the attribute `sandbox`. Only the span of an event has it, so this span is an event itself.
    """
    if "sandbox" in span.attributes:
        return None
    return newest.get(span.trace_id)


def _rows(
    span: SpanRow, children: Mapping[tuple[str, str], list[SpanRow]], last: tuple[bool, ...]
) -> Iterator[WaterfallRow]:
    yield WaterfallRow(span=span, last=last)
    below = children.get((span.trace_id, span.span_id), [])
    for number, child in enumerate(below, start=1):
        yield from _rows(child, children, (*last, number == len(below)))


# Drawing


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The widths of the parts of a line."""

    name: int
    bar: int
    details: int

    @classmethod
    def of(cls, width: int) -> _Columns:
        name = _between(round(width * _NAME_SHARE), *_NAME_WIDTHS)
        bar = _between(round(width * _BAR_SHARE), *_BAR_WIDTHS)
        return cls(name=name, bar=bar, details=width - name - bar - _DURATION_WIDTH - 4)


def draw(block: Block, width: int, pen: Pen) -> Iterator[WaterfallLine]:
    """Yield the lines of the block, each of at most `width` characters, drawn with the characters of `pen`."""
    columns = _Columns.of(width)
    period = (block.event.start_ns, block.end_ns)
    errors = {(row.span.parent_id, row.span.error) for row in block.rows}
    for text in textwrap.wrap(_header(block), width, subsequent_indent="  ", break_on_hyphens=False):
        yield WaterfallLine(text=text, is_header=True)
    for row, following in zip_longest(block.rows, block.rows[1:]):
        gutter = _gutter(row, following, pen)
        details, error = _details(row.span), _error(row.span, errors)
        beside = details if len(details) <= columns.details else ""
        yield WaterfallLine(text=_row_text(row, period, columns, pen, beside), is_error=bool(error))
        for text in _below("" if beside else details, gutter, width):
            yield WaterfallLine(text=text)
        for text in _below(error, gutter, width):
            yield WaterfallLine(text=text, is_error=True)


def _header(block: Block) -> str:
    event = block.event
    when = datetime.fromtimestamp(event.start_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"
    total = f"{_time(block.end_ns - event.start_ns)} in all"
    if block.end_ns > event.end_ns:
        total += f", answered after {_time(event.end_ns - event.start_ns)}"
    failed = "ERROR" if block.has_failed else ""
    pod = str(event.attributes.get("k8s.pod.name", ""))
    return "  ".join(filter(None, (event.name, pod, when, total, failed)))


def _row_text(row: WaterfallRow, period: tuple[int, int], columns: _Columns, pen: Pen, details: str) -> str:
    name = _shortened(_branches(row.last, pen) + row.span.name, columns.name)
    bar = _bar(row.span, period, columns.bar, pen)
    duration = _time(row.span.end_ns - row.span.start_ns)
    return f"{name:<{columns.name}} {bar:<{columns.bar}} {duration:>{_DURATION_WIDTH}}  {details}".rstrip()


def _branches(last: tuple[bool, ...], pen: Pen) -> str:
    if not last:
        return ""
    return "".join("  " if is_last else pen.pipe for is_last in last[:-1]) + (pen.corner if last[-1] else pen.branch)


def _gutter(row: WaterfallRow, following: WaterfallRow | None, pen: Pen) -> str:
    """Return the characters for the lines of text below a row. They continue the lines of the tree to later rows."""
    lines = "".join("  " if is_last else pen.pipe for is_last in row.last)
    has_children = following is not None and len(following.last) > len(row.last)
    return lines + (pen.pipe if has_children else "  ")


def _below(text: str, gutter: str, width: int) -> Iterator[str]:
    for line in textwrap.wrap(text, max(_LEAST_TEXT_WIDTH, width - len(gutter) - 2), break_on_hyphens=False):
        yield f"{gutter}  {line}"


def _bar(span: SpanRow, period: tuple[int, int], width: int, pen: Pen) -> str:
    """Return the bar of a span in a line of `width` characters, which stand for `period`, the begin and end of the
    block. Even the shortest span gets one character. If the clock was set back meanwhile, spans can begin before the
    block."""
    begin, total = period[0], max(1, period[1] - period[0])
    pieces = len(pen.pieces)
    first = max(0, min(width - 1, (span.start_ns - begin) * width // total))
    end = round((span.end_ns - begin) * width * pieces / total)
    length = max(1, min(end, width * pieces) - first * pieces)
    full, rest = divmod(length, pieces)
    return " " * first + pen.pieces[-1] * full + (pen.pieces[rest - 1] if rest else "")


def _error(span: SpanRow, errors: Set[tuple[str, str]]) -> str:
    """Return the text for a failed span. If a span below it has the same error, the text refers to that span instead of
    repeating the error. `errors` are the errors of the block, each with the id of the failed span's parent."""
    if not span.error:
        return ""
    return "ERROR, see below" if (span.span_id, span.error) in errors else f"ERROR {span.error}"


def _details(span: SpanRow) -> str:
    """Return the reason that a span has; without a reason, those of its attributes that help a person, such as the
    device."""
    shown = (str(span.attributes.get(key, "")) for key in _SHOWN_ATTRIBUTES)
    return str(span.attributes.get("reason", "")) or ": ".join(filter(None, shown))


def _time(ns: int) -> str:
    if ns < 1_000_000:
        return f"{ns // 1000} us"
    return f"{ns / 1e6:.1f} ms" if ns < 100_000_000 else f"{ns / 1e6:.0f} ms"


def _shortened(name: str, width: int) -> str:
    return name if len(name) <= width else name[: width - 2] + ".."


def _between(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))

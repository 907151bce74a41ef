"""Spans of the hot path, recorded cheaply.

A span of the OpenTelemetry SDK costs tens of microseconds to make; the whole answer to CreateContainer costs about a
hundred. So the hot path records plain values here, and nri_rdma.observe.export turns them into SDK spans in a thread of
its own (docs/adr/0003). Names and ids are OpenTelemetry's, so nothing is lost on the way.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType

AttributeValue = str | int | float | bool

_current: ContextVar[Span | None] = ContextVar("nri_rdma_span", default=None)
_random_bits = random.Random().getrandbits  # ids need to be distinct, not secret


class Span:
    """One timed operation; use it in a ``with`` statement.

    Times are nanoseconds since the epoch; ids are the integers of a W3C trace context; `error` is "" when it went well;
    `links` are trace id and span id of spans in other traces that it goes back to.
    """

    __slots__ = (
        "_recorder",
        "_token",
        "attributes",
        "end_ns",
        "error",
        "links",
        "name",
        "parent_id",
        "span_id",
        "start_ns",
        "trace_id",
    )

    def __init__(
        self, recorder: Recorder, name: str, trace_id: int, parent_id: int, attributes: dict[str, AttributeValue]
    ) -> None:
        self._recorder = recorder
        self._token: Token[Span | None] | None = None
        self.name = name
        self.trace_id = trace_id
        self.span_id = _random_bits(64) or 1
        self.parent_id = parent_id
        self.attributes = attributes
        self.links: tuple[tuple[int, int], ...] = ()
        self.start_ns = 0
        self.end_ns = 0
        self.error = ""

    def __enter__(self) -> Span:
        self._token = _current.set(self)
        self.start_ns = time.time_ns()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _at: TracebackType | None
    ) -> None:
        self.end_ns = time.time_ns()
        if self._token is not None:
            _current.reset(self._token)
        if error is not None:
            self.error = str(error) or type(error).__name__
        self._recorder.finish(self)


class _Dropped(dict[str, AttributeValue]):
    """Takes attributes and keeps none."""

    def __setitem__(self, key: str, value: AttributeValue) -> None:
        return

    def update(self, *_args: object, **_more: object) -> None:
        return


class _UnrecordedSpan(Span):
    """The span of a recorder that is off, one for all callers: takes attributes and keeps none."""

    __slots__ = ()

    def __init__(self) -> None:
        self.attributes = _Dropped()

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        return


_UNRECORDED = _UnrecordedSpan()


class Recorder:
    """Makes spans and keeps the most recent finished ones. Safe for use by several threads.

    `sink`, when given, sees every finished span on the thread that finished it: it must only hand it on. With neither
    capacity nor sink the recorder is off, and a span costs a fifth of a microsecond instead of one to three.
    """

    def __init__(self, capacity: int = 4096, sink: Callable[[Span], None] | None = None) -> None:
        self._ring: deque[Span] = deque(maxlen=capacity)
        self.capacity = capacity
        self._sink = sink
        self.enabled = capacity > 0 or sink is not None

    def span(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        traceparent: str = "",
        origin: Span | None = None,
    ) -> Span:
        """Start a span below the current one; without one, below `traceparent`; without that, the root of a new trace,
        which has a link to the span `origin`, if there is one."""
        if not self.enabled:
            return _UNRECORDED
        parent = _current.get()
        if parent is not None:
            return Span(self, name, parent.trace_id, parent.span_id, dict(attributes or {}))
        trace_id, parent_id = parse_traceparent(traceparent) if traceparent else (0, 0)
        span = Span(self, name, trace_id or _random_bits(128) or 1, parent_id, dict(attributes or {}))
        if origin is not None:
            span.links = ((origin.trace_id, origin.span_id),)
        return span

    def finish(self, span: Span) -> None:
        """Keep a span that has ended."""
        self._ring.append(span)
        if self._sink is not None:
            self._sink(span)

    def recent(self) -> tuple[Span, ...]:
        """Return the finished spans that are still kept, oldest first."""
        return tuple(self._ring)


def current_span() -> Span | None:
    """Return the span that is open in this thread."""
    return _current.get()


@contextmanager
def under(span: Span | None) -> Iterator[None]:
    """Make the spans of this thread children of a span of another: ``with under(span): ...``."""
    token = _current.set(span)
    try:
        yield
    finally:
        _current.reset(token)


def parse_traceparent(text: str) -> tuple[int, int]:
    """Return trace id and parent span id of a W3C ``traceparent``; (0, 0) when the text is none.

    Source: W3C Trace Context, version 00; later versions are read by their first four fields.
    """
    fields = text.split("-")
    if len(fields) < 4 or [len(field) for field in fields[:4]] != [2, 32, 16, 2] or fields[0] == "ff":
        return 0, 0
    try:
        trace_id, parent_id = int(fields[1], 16), int(fields[2], 16)
    except ValueError:
        return 0, 0
    return (trace_id, parent_id) if trace_id and parent_id else (0, 0)

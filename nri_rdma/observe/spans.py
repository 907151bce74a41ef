"""Records trace spans cheaply enough for every call of the runtime.

Making a span with OpenTelemetry's SDK takes tens of microseconds, and the whole answer to CreateContainer about a
hundred. So plain values are recorded here, and nri_rdma.observe.export converts them in a thread of its own
(docs/adr/0003). Names and ids follow OpenTelemetry, so nothing is lost.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from types import TracebackType
from typing import Final

AttributeValue = str | int | float | bool

_current: ContextVar[Span | None] = ContextVar("nri_rdma_span", default=None)
_random_bits = random.Random().getrandbits  # ids need to be distinct, not secret

SLOW_NS: Final = 1_000_000_000
"""Duration in nanoseconds from which a span counts as slow: half of the time that runtimes give a plugin to answer."""

_SAMPLED: Final = 0x01


class Unsampled:
    """The state that all spans of one event share if the caller's trace is not sampled.

    Such spans are kept in memory. They are exported only if one of them fails or is slow.
    """

    __slots__ = ("is_exported", "since_ns")

    def __init__(self) -> None:
        self.is_exported = False
        self.since_ns = time.time_ns()


class Span:
    """A timed operation; use it in a `with` statement.

    Times are in nanoseconds since the epoch; ids are the integers of a W3C trace context. `error` is "" after success.
    `links` are pairs of trace id and span id of related spans in other traces. `unsampled` is None if the span is
    exported in any case.
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
        "unsampled",
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
        self.unsampled: Unsampled | None = None
        self.start_ns = 0
        self.end_ns = 0
        self.error = ""

    def link(self, traceparents: Iterable[str]) -> None:
        """Add links to the spans of these W3C traceparents. Invalid texts are ignored."""
        callers = filter(None, map(parse_traceparent, traceparents))
        self.links += tuple((caller.trace_id, caller.span_id) for caller in callers)

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
    """A dictionary that ignores all writes."""

    def __setitem__(self, key: str, value: AttributeValue) -> None:
        return

    def update(self, *_args: object, **_more: object) -> None:
        return


class _UnrecordedSpan(Span):
    """A span that records nothing, for a recorder that is switched off. All callers share one such span."""

    __slots__ = ()

    def __init__(self) -> None:
        self.attributes = _Dropped()

    def link(self, traceparents: Iterable[str]) -> None:
        return

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        return


_UNRECORDED = _UnrecordedSpan()


class Recorder:
    """Creates spans, and keeps the most recent finished ones. Thread-safe.

    `sink` is called with each finished span, in the thread that finished it, and must not block. Spans of a trace that
    the caller does not sample are passed to `sink` only if one of the event's spans failed or was slow. `counter` is
    called with every finished span. If `capacity` is 0 and both functions are None, nothing is recorded, and a span
    takes 0.2 us instead of 1 to 3.
    """

    def __init__(
        self,
        capacity: int = 4096,
        sink: Callable[[Span], None] | None = None,
        counter: Callable[[Span], object] | None = None,
    ) -> None:
        self._ring: deque[Span] = deque(maxlen=capacity)
        self.capacity = capacity
        self._sink = sink
        self._counter = counter
        self._lock = threading.Lock()
        self.enabled = capacity > 0 or sink is not None or counter is not None

    def span(
        self,
        name: str,
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        traceparent: str = "",
        origin: Span | None = None,
    ) -> Span:
        """Start a span. Its parent is this thread's current span, otherwise the span of `traceparent`. Without both the
        span begins a new trace, with a link to `origin` if given.

        If `traceparent` says that its trace is not sampled, the span begins a new trace with a link to `traceparent`.
        """
        if not self.enabled:
            return _UNRECORDED
        parent = _current.get()
        if parent is not None:
            span = Span(self, name, parent.trace_id, parent.span_id, dict(attributes or {}))
            span.unsampled = parent.unsampled
            return span
        caller = parse_traceparent(traceparent) if traceparent else None
        if caller is not None and caller.is_sampled:
            return Span(self, name, caller.trace_id, caller.span_id, dict(attributes or {}))
        span = Span(self, name, _random_bits(128) or 1, 0, dict(attributes or {}))
        before = caller or origin
        if before is not None:
            span.links = ((before.trace_id, before.span_id),)
        if caller is not None or (origin is not None and origin.unsampled is not None):
            span.unsampled = Unsampled()
        return span

    def finish(self, span: Span) -> None:
        """Keep a finished span, and pass it to `counter` and `sink`."""
        if self._counter is not None:
            self._counter(span)
        if span.unsampled is not None:
            self._finish_unsampled(span, span.unsampled)
            return
        self._ring.append(span)
        if self._sink is not None:
            self._sink(span)

    def _finish_unsampled(self, span: Span, event: Unsampled) -> None:
        """Keep a finished span whose trace the caller does not sample. If it failed or was slow, pass it to `sink`,
        together with the other spans of its event."""
        with self._lock:
            if self._sink is not None and not event.is_exported and (span.error or _is_slow(span)):
                event.is_exported = True
                for each in self._kept(event):
                    self._sink(each)
            if self._sink is not None and event.is_exported:
                self._sink(span)
            self._ring.append(span)

    def _kept(self, event: Unsampled) -> Iterator[Span]:
        """Yield the spans of an event that are still in memory, newest first."""
        for span in reversed(self.recent()):
            if span.end_ns < event.since_ns:
                return
            if span.unsampled is event:
                yield span

    def take_up(self, spans: Iterable[Span]) -> None:
        """Keep finished spans of an earlier daemon, so that `trace` shows them. Call it before the first span is
        recorded."""
        self._ring.extend(spans)

    @property
    def newest(self) -> Span | None:
        """The span that was finished last; None if there is none."""
        return self._ring[-1] if self._ring else None

    def recent(self) -> tuple[Span, ...]:
        """Return the finished spans that are still kept, oldest first."""
        return tuple(self._ring)


def _is_slow(span: Span) -> bool:
    return span.end_ns - span.start_ns >= SLOW_NS


def current_span() -> Span | None:
    """Return the open span of this thread or task; None if there is none."""
    return _current.get()


def traceparent() -> str:
    """Return the open span of this thread or task as a W3C traceparent; "" if there is none."""
    span = _current.get()
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-01" if span is not None else ""


@contextmanager
def under(span: Span | None) -> Iterator[None]:
    """Make `span`, which another thread started, the parent of the spans that this thread starts in the block: `with
    under(span): ...`."""
    token = _current.set(span)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(frozen=True, slots=True)
class Caller:
    """The span of a caller in another program."""

    trace_id: int
    span_id: int
    is_sampled: bool


def parse_traceparent(text: str) -> Caller | None:
    """Parse a W3C traceparent; None if it is invalid.

    Source: W3C Trace Context, version 00. Of later versions only the first four fields are read.
    """
    fields = text.split("-")
    if len(fields) < 4 or [len(field) for field in fields[:4]] != [2, 32, 16, 2] or fields[0] == "ff":
        return None
    try:
        trace_id, span_id, flags = (int(field, 16) for field in fields[1:4])
    except ValueError:
        return None
    return Caller(trace_id, span_id, bool(flags & _SAMPLED)) if trace_id and span_id else None

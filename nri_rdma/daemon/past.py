"""Stores spans and refusals for the next daemon, so that `trace` and `status` also show the time before a restart.

A thread writes new spans and refusals to the state directory, twice a second, and logs the spans with log_level =
debug. Threads that serve pods do nothing for it. A killed daemon loses the last half second. Counters are not stored;
they restart at 0, as Prometheus expects (docs/adr/0058-what-a-daemon-did-outlives-it.md).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from nri_rdma.daemon.past_file import PastFile
from nri_rdma.engine.refusals import RefusalRow, RefusedLately
from nri_rdma.observe.spans import AttributeValue, Recorder, Span

log = logging.getLogger(__name__)

PAUSE_S = 0.5
_BATCH = 64
"""Number of spans that are written at once. Writing them takes a third of a millisecond, and other threads run between
two batches."""
_LOGGED = frozenset({"rdma.device", "rdma.devices", "k8s.container.name", "reason"})
"""The attributes of spans that appear in the log."""


@dataclass(frozen=True, slots=True)
class _KeptSpan:
    name: str
    trace: str
    span: str
    parent: str
    start: int
    end: int
    error: str = ""
    attributes: dict[str, AttributeValue] = field(default_factory=dict)
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Line:
    span: _KeptSpan | None = None
    refusal: RefusalRow | None = None


class Past:
    """A thread that stores new spans and refusals in a file, from `begin` to `close`."""

    def __init__(self, folder: Path, spans: Recorder, refused: RefusedLately, *, pause_s: float = PAUSE_S) -> None:
        self._file = PastFile(folder)
        self._spans = spans
        self._refused = refused
        self._pause_s = pause_s
        self._last_span: Span | None = None
        self._rows: frozenset[RefusalRow] = frozenset()
        self._has_failed = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="past", daemon=True)

    def begin(self) -> None:
        """Load the spans and refusals of the daemon before, then start the thread that stores new ones. Call it before
        the first span is recorded."""
        self._take_up()
        self._thread.start()

    def _take_up(self) -> None:
        spans: list[Span] = []
        rows: list[RefusalRow] = []
        before: Iterator[Span | RefusalRow] = self._file.read(self._decoded)
        try:
            for said in before:
                if isinstance(said, Span):
                    spans.append(said)
                else:
                    rows.append(said)
        except OSError as error:
            log.warning("what an earlier daemon did cannot be read", extra={"error": str(error)})
        self._spans.take_up(spans)
        self._refused.take_up(rows)
        self._last_span, self._rows = self._spans.newest, frozenset(self._refused.rows())

    def close(self) -> None:
        """Store the spans and refusals that are not in the file yet, and end the thread. Calling it twice is
        allowed."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._closing.wait(self._pause_s)
            spans, rows = self._new_spans(), self._new_rows()
            _log_steps(spans, self._spans)
            for first in range(0, len(spans), _BATCH):
                self._keep([_Line(span=_kept(span)) for span in spans[first : first + _BATCH]])
            if rows:
                self._keep([_Line(refusal=row) for row in rows])

    def _keep(self, lines: Sequence[_Line]) -> None:
        try:
            self._file.append([*_texts(lines)])
        except OSError as error:  # such as a full disk: pods are served all the same
            if not self._has_failed:
                log.warning("what is done is not kept for the next daemon", extra={"error": str(error)})
            self._has_failed = True
        else:
            self._has_failed = False

    def _new_spans(self) -> Sequence[Span]:
        if self._spans.newest is self._last_span:
            return ()
        recent = self._spans.recent()
        known = next((number for number in range(len(recent), 0, -1) if recent[number - 1] is self._last_span), 0)
        self._last_span = recent[-1]
        return recent[known:]

    def _new_rows(self) -> Sequence[RefusalRow]:
        """Return the refusals that are new or have occurred again since the last call, oldest first."""
        rows, before = self._refused.rows(), self._rows
        self._rows = frozenset(rows)
        return [row for row in reversed(rows) if row not in before]

    def _decoded(self, text: bytes) -> Span | RefusalRow | None:
        """Return the span or refusal in a line of the file; None if this release cannot read the line."""
        try:
            line = _line(text)
            return line.refusal if line.span is None else _span(line.span, self._spans)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return None


def _texts(lines: Sequence[_Line]) -> Iterator[bytes]:
    """Yield the lines as JSON. A line that cannot be encoded is logged and left out."""
    for line in lines:
        try:
            yield _text(line)
        except (TypeError, ValueError, OverflowError):
            log.exception("a step cannot be kept for the next daemon", extra={"line": repr(line)})


def _text(line: _Line) -> bytes:
    try:
        return msgspec.json.encode(line)
    except UnicodeEncodeError:  # a name that is not UTF-8 is kept as surrogates (host/netlink/links/link_state.py)
        return json.dumps(msgspec.to_builtins(line)).encode()


def _line(text: bytes) -> _Line:
    """Parse a line of the file. Raises MsgspecError or ValueError."""
    try:
        return msgspec.json.decode(text, type=_Line)
    except msgspec.DecodeError:  # surrogates, as in _text
        return msgspec.convert(json.loads(text), type=_Line)


def _log_steps(spans: Sequence[Span], recorder: Recorder) -> None:
    """Log each span with the facts that the command `trace` shows. The pod's name comes from the span of the runtime's
    call in the span's trace."""
    if not spans or not log.isEnabledFor(logging.DEBUG):
        return
    pods = {it.trace_id: it.attributes["k8s.pod.name"] for it in recorder.recent() if "k8s.pod.name" in it.attributes}
    for span in spans:
        ended = datetime.fromtimestamp(span.end_ns / 1e9, UTC).isoformat(timespec="milliseconds")
        facts = {"step": span.name, "ms": round((span.end_ns - span.start_ns) / 1e6, 3), "ended": ended}
        facts |= {"pod": pods[span.trace_id]} if span.trace_id in pods else {}
        facts |= {key: value for key, value in span.attributes.items() if key in _LOGGED and value != span.name}
        log.debug("step done", extra={**facts, **({"error": span.error} if span.error else {})})


def _kept(span: Span) -> _KeptSpan:
    return _KeptSpan(
        name=span.name,
        trace=f"{span.trace_id:x}",
        span=f"{span.span_id:x}",
        parent=f"{span.parent_id:x}",
        start=span.start_ns,
        end=span.end_ns,
        error=span.error,
        attributes=dict(span.attributes),
        links=tuple((f"{trace:x}", f"{linked:x}") for trace, linked in span.links),
    )


def _span(kept: _KeptSpan, recorder: Recorder) -> Span:
    """Return the recorded span for a span read from the file. Raises ValueError if its ids are not hexadecimal
    numbers."""
    span = Span(recorder, kept.name, int(kept.trace, 16), int(kept.parent, 16), kept.attributes)
    span.span_id, span.start_ns, span.end_ns, span.error = int(kept.span, 16), kept.start, kept.end, kept.error
    span.links = tuple((int(trace, 16), int(linked, 16)) for trace, linked in kept.links)
    return span

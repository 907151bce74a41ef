"""Exports recorded spans with OpenTelemetry's SDK, in a thread of its own.

Threads that serve pods only put a span into a bounded queue; if the queue is full, the span is dropped and counted.
OpenTelemetry's own environment variables say whether and how spans are exported. The SDK is imported only if they are.
"""

from __future__ import annotations

import logging
import platform
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from nri_rdma import __version__
from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.observe.conventions import attributes_of, is_server
from nri_rdma.observe.spans import Span

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import SpanContext

log = logging.getLogger(__name__)

CAPACITY = 4096
BATCH = 512
PAUSE_S = 0.5
"""Pause in seconds between two checks of the queue. Waking the thread for every span would slow down the threads that
serve pods."""
CLOSE_S = 2.0
MAX_REASON = 300
"""Maximum length of an exporter's error text, in characters."""
SILENCE_S = 60.0
"""Minimum time in seconds between two warnings that spans were lost."""
_SLOW = "the collector is slower than spans come"

_OTLP_MODULES = {
    "http/protobuf": "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "grpc": "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
}
"""The exporter's module, by the protocol in OpenTelemetry's variables; the first is the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCounts:
    """The numbers of spans since the start, by their fate: waiting, exported, dropped or failed."""

    waiting: int
    exported: int
    dropped: int
    """Spans that were dropped because the queue was full."""
    failed: int
    """Spans that the exporter could not deliver."""
    error: str
    """The reason of the last loss of spans; "" if none was lost."""


class SpanExportThread:
    """A thread that passes spans to an exporter. The object's creator closes it. Any thread may call `put`, which never
    blocks."""

    def __init__(self, exporter: SpanExporter, resource: Resource, *, capacity: int = CAPACITY) -> None:
        self._exporter = exporter
        self._overheard = _Overheard()
        self._resource = resource
        self._capacity = capacity
        self._queue: deque[Span] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._exported = 0
        self._dropped = 0
        self._failed = 0
        self._error = ""
        self._losses = Losses()
        self._thread = threading.Thread(target=self._run, name="span-export", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        """Queue a finished span for export; drop it if the queue is full.

        It takes no lock, because callers serve pods and must be fast. A span that is queued during `close` counts as
        lost.
        """
        waiting = len(self._queue)
        if waiting >= self._capacity or self._closing:
            with self._lock:
                self._dropped += 1
            return
        self._queue.append(span)
        if waiting == BATCH:
            self._wake.set()

    def close(self) -> None:
        """Export the queued spans within 2 s, and end the thread. Calling it twice is allowed. Spans in an exporter
        that hangs are lost."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake.set()
        deadline = time.monotonic() + CLOSE_S
        self._thread.join(CLOSE_S * 0.75)
        self._exporter.shutdown()  # ends retries of an exporter whose collector is away
        self._thread.join(max(0.0, deadline - time.monotonic()))
        self._overheard.end()
        counts = self.counts()
        if self._thread.is_alive() or counts.dropped or counts.failed:
            facts = {"dropped": counts.dropped, "failed": counts.failed + counts.waiting}
            log.warning("spans were not exported", extra=facts)

    def counts(self) -> ExportCounts:
        """Return the present counts. Thread-safe."""
        with self._lock:
            return ExportCounts(
                waiting=len(self._queue),
                exported=self._exported,
                dropped=self._dropped,
                failed=self._failed,
                error=self._error,
            )

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait(PAUSE_S)
            self._wake.clear()
            closing = self._closing  # read before the queue is emptied: after it nothing is added
            while batch := self._take():
                self._export(batch)
            if closing:
                return

    def _take(self) -> list[Span]:
        return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]

    def _export(self, batch: Sequence[Span]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            result = self._exporter.export([readable_span(span, self._resource) for span in batch])
        except Exception as error:  # noqa: BLE001 - an exporter is foreign code, and pods must not wait for its health
            result, why = SpanExportResult.FAILURE, str(error) or type(error).__name__
        else:
            why = self._overheard.why()
        self._overheard.messages.clear()
        self._count(len(batch), "" if result is SpanExportResult.SUCCESS else why)

    def _count(self, spans: int, why: str) -> None:
        """Count an exported batch; `why` is the reason if the export failed, otherwise ""."""
        with self._lock:
            if why:
                self._failed += spans
                self._error = why
            else:
                self._exported += spans
                if self._dropped > self._losses.dropped:
                    self._error = _SLOW
        self._losses.tell(self.counts(), time.monotonic())


class Losses:
    """Logs when spans begin to be lost, and when they are exported again. It does not log each batch."""

    def __init__(self) -> None:
        self.dropped = 0
        self.failed = 0
        self._is_told = False
        self._silent_until = 0.0

    def tell(self, counts: ExportCounts, now: float) -> None:
        """Log a warning if spans were lost in the last batch, or a line that export works again after a loss. `counts`
        are the totals since the start; `now` is in seconds of `time.monotonic`."""
        dropped, failed = counts.dropped - self.dropped, counts.failed - self.failed
        self.dropped, self.failed = counts.dropped, counts.failed
        totals = {"dropped": counts.dropped, "failed": counts.failed}
        if dropped or failed:
            if not self._is_told and now >= self._silent_until:
                self._is_told, self._silent_until = True, now + SILENCE_S
                message = "a batch of spans was not exported" if failed else "spans were dropped"
                log.warning(message, extra={"spans": failed or dropped, "error": counts.error, **totals})
        elif self._is_told:
            self._is_told = False
            log.info("spans are exported again", extra=totals)


class _Overheard(logging.Handler):
    """Captures the log lines of OpenTelemetry's exporters until `end`. Otherwise each failed batch would log several
    long lines."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: deque[str] = deque(maxlen=16)
        self._before = "it did not say why"
        self._logger = logging.getLogger("opentelemetry.exporter")
        self._logger.addHandler(self)
        self._logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of a log record of OpenTelemetry's exporters, from which `why` takes the reason of a failed
        batch."""
        self.messages.append(record.getMessage())

    def why(self) -> str:
        """Return the reason of a failed batch: the system error that a captured line names, otherwise the last line.

        If no line was captured, return the reason of the batch before, because exporters do not repeat a line within 20
        s.
        """
        named = next(filter(None, map(_ERRNO.search, self.messages)), None)
        if named is not None:
            self._before = named[1]
        elif self.messages:
            self._before = self.messages[-1][:MAX_REASON]
        return self._before

    def end(self) -> None:
        """Stop capturing: the exporters' log lines are logged normally again."""
        self._logger.removeHandler(self)
        self._logger.propagate = True


_ERRNO = re.compile(r"\[Errno -?[0-9]+\] ([^\"')]+)")


def exporter_kind(environment: Mapping[str, str]) -> str:
    """Return the exporter that OTEL_TRACES_EXPORTER names, in lower case; "none" if it names none or if
    OTEL_SDK_DISABLED is true."""
    is_disabled = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return "none" if is_disabled else environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "none"


def make_exporter(environment: Mapping[str, str]) -> SpanExportThread | None:
    """Return the exporter that OTEL_TRACES_EXPORTER names; None if it names none.

    Raises SettingError if this variable or another variable of OpenTelemetry has a wrong value.
    """
    kind = exporter_kind(environment)
    if kind == "none":
        return None
    if kind not in {"console", "otlp"}:
        raise _refused("OTEL_TRACES_EXPORTER", kind, "set it to none, console or otlp")
    try:
        exporter = _console_exporter() if kind == "console" else _otlp_exporter(environment)
        return SpanExportThread(exporter, make_resource())
    except SettingError:
        raise
    except Exception as error:
        hint = "see OpenTelemetry's variables, OTEL_*"
        why = f", because it fails with {type(error).__name__}: {error}"[:MAX_REASON]
        raise _refused("OTEL_TRACES_EXPORTER", kind, hint, why) from error


def make_resource() -> Resource:
    """Return the description of the program that sends the spans. OTEL_SERVICE_NAME, then OTEL_RESOURCE_ATTRIBUTES
    replace our own values; OpenTelemetry's library reads both from this process's environment."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    written = {key: value for key, value in OTELResourceDetector().detect().attributes.items() if str(value).strip()}
    ours = {"service.name": "nri-rdma", "service.version": __version__, "host.name": platform.node()}
    return Resource.create({**ours, **written})


def readable_span(span: Span, resource: Resource) -> ReadableSpan:
    """Return the recorded span as a span of OpenTelemetry's SDK."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode

    is_call = is_server(span)  # then its parent or linked span is in the caller's process
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id, is_remote=is_call) if span.parent_id else None,
        resource=resource,
        kind=SpanKind.SERVER if is_call else SpanKind.INTERNAL,
        attributes=attributes_of(span),
        links=tuple(Link(_context(*link, is_remote=is_call)) for link in span.links),
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=span.start_ns,
        end_time=span.end_ns,
        instrumentation_scope=InstrumentationScope("nri_rdma", __version__),
    )


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace_id, span_id, is_remote=is_remote, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _console_exporter() -> SpanExporter:
    from opentelemetry.sdk.trace.export import ConsoleSpanExporter

    return ConsoleSpanExporter(out=sys.stdout)  # the default is stdout at the time of the SDK's import


def _otlp_exporter(environment: Mapping[str, str]) -> SpanExporter:
    names = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    name, protocol = _first_of(names, environment)
    protocol = protocol.lower() or next(iter(_OTLP_MODULES))
    if protocol not in _OTLP_MODULES:
        hint = "set it to http/protobuf (collectors listen on port 4318) or grpc (port 4317)"
        raise _refused(name, protocol, hint)
    names = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    it, endpoint = _first_of(names, environment)
    if endpoint and protocol != "grpc" and not endpoint.lower().startswith(("http://", "https://")):
        raise _refused(it, endpoint, f"write http://{endpoint}", ", because it has no scheme")
    try:
        module = import_module(_OTLP_MODULES[protocol])  # belongs to an extra that may not be installed
    except ImportError as error:
        hint = "install nri-rdma with its extra `otlp`, as the README says, or set it to none or console"
        raise _refused("OTEL_TRACES_EXPORTER", "otlp", hint, f", because {error.name} is not installed") from error
    exporter: SpanExporter = module.OTLPSpanExporter()
    return exporter


def _first_of(names: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the first of the variables that is set, with its value; the last one, with "", if none is."""
    given = ((name, environment.get(name, "").strip()) for name in names)
    return next((it for it in given if it[1]), (names[-1], ""))


def _refused(name: str, value: str, hint: str, why: str = "") -> SettingError:
    return SettingError(ErrorCode.SETTING, f"{name} = {value!r} cannot be used{why}", hint=hint)

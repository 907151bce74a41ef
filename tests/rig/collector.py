"""A receiver of OTLP over gRPC: the service that OpenTelemetry generates, with its spans as values."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.rig.deadline import wait_until


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSpan:
    """A span that arrived; ids as they are in a traceparent, "" for none. `links` are (trace id, span id)."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start_ns: int
    end_ns: int
    error: str
    attributes: Mapping[str, object] = field(repr=False)
    links: tuple[tuple[str, str], ...] = ()

    @property
    def is_failed(self) -> bool:
        """Whether its status is an error."""
        return bool(self.error)


class Collector(TraceServiceServicer):
    """Listens on 127.0.0.1 from construction to close(); also a context manager.

    `refusal` is the status with which it refuses spans (None: it takes them), `delay_s` how long it waits before each
    answer, unless it is closed. Both may be set at any time.
    """

    def __init__(self) -> None:
        self.refusal: grpc.StatusCode | None = None
        self.delay_s = 0.0
        self.refused = 0
        """Spans that were refused."""
        self._spans: list[SeenSpan] = []
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=4, thread_name_prefix="collector")
        self._server = grpc.server(self._pool)
        add_TraceServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call] # generated
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stops to listen; what has arrived stays. Calling it again is no error."""
        self._closing.set()
        self._server.stop(None).wait()
        self._pool.shutdown()

    @property
    def environment(self) -> dict[str, str]:
        """OpenTelemetry's variables that send a program's traces here."""
        return {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        }

    @property
    def sender_environment(self) -> dict[str, str]:
        """The same for a program in Go, which sends its spans every 0.1 s and not every 5 s."""
        return self.environment | {"OTEL_EXPORTER_OTLP_INSECURE": "true", "OTEL_BSP_SCHEDULE_DELAY": "100"}

    @property
    def spans(self) -> tuple[SeenSpan, ...]:
        """What has arrived, in the order of the spans' beginnings."""
        return tuple(sorted(self._spans, key=lambda it: it.start_ns))

    def of(self, service: str) -> tuple[SeenSpan, ...]:
        """The spans of one program."""
        return tuple(it for it in self.spans if it.service == service)

    def wait_for(self, service: str, names: Sequence[str], seconds: float = 15) -> None:
        """Waits until a program's spans of these names have arrived, each as often as it is named."""
        wanted = Counter(names)

        def missing() -> Counter[str]:
            return wanted - Counter(it.name for it in self.of(service))

        wait_until(lambda: not missing(), f"spans of {service}: {names}", seconds)

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:  # noqa: N802
        """Takes a batch, or refuses it."""
        if self.delay_s:
            self._closing.wait(self.delay_s)
        seen = _seen(request)
        if self.refusal is not None:
            self.refused += len(seen)
            context.abort(self.refusal, "not now")
        self._spans.extend(seen)
        return ExportTraceServiceResponse()


def _seen(request: ExportTraceServiceRequest) -> list[SeenSpan]:
    return [
        _span(span, str(_attributes(of.resource.attributes).get("service.name", "")))
        for of in request.resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]


def _span(span: Span, service: str) -> SeenSpan:
    is_failed = span.status.code == Status.STATUS_CODE_ERROR
    return SeenSpan(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        error=(span.status.message or "failed") if is_failed else "",
        attributes=_attributes(span.attributes),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
    )


def _attributes(pairs: Any) -> dict[str, object]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_value(it) for it in value.array_value.values)
    return getattr(value, kind) if kind else None

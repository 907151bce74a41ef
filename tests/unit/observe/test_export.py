"""Recorded spans reach an exporter of the SDK with everything they have."""

import json
import logging
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import grpc
import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from nri_rdma import __version__
from nri_rdma.errors import ErrorCode, PlacementError, SettingError
from nri_rdma.observe import export as export_module
from nri_rdma.observe.export import (
    CLOSE_S,
    PAUSE_S,
    SILENCE_S,
    ExportCounts,
    Losses,
    SpanExportThread,
    make_exporter,
    make_resource,
)
from nri_rdma.observe.spans import Recorder, Span
from tests.rig.collector import Collector
from tests.rig.deadline import wait_until

RESOURCE = Resource({})


class HangingExporter(SpanExporter):
    """A collector that takes its time: until it is told to go on, or shut down."""

    def __init__(self, result: SpanExportResult = SpanExportResult.FAILURE) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self._result = result

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.go_on.wait()
        return self._result

    def shutdown(self) -> None:
        self.go_on.set()


class BrokenExporter(SpanExporter):
    """An exporter with a bug."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise RuntimeError("no")


@pytest.fixture
def memory() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the tester says who it is."""
    for name in ("OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def export(memory: InMemorySpanExporter) -> Iterator[SpanExportThread]:
    thread = SpanExportThread(memory, make_resource())
    yield thread
    thread.close()


def some_span() -> Span:
    recorder = Recorder()
    with recorder.span("x") as span:
        pass
    return span


def test_ids_parents_times_and_attributes_survive(memory: InMemorySpanExporter, export: SpanExportThread) -> None:
    recorder = Recorder(sink=export.put)
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with (
        recorder.span("event", {"k8s.pod.uid": "u"}, traceparent=traceparent) as event,
        recorder.span("step", {"rdma.device": "mlx5_0", "rdma.count": 2}) as step,
    ):
        pass
    export.close()

    told = {span.name: span for span in memory.get_finished_spans()}
    for span, there in ((event, told["event"]), (step, told["step"])):
        assert there.context is not None
        assert (there.context.trace_id, there.context.span_id) == (span.trace_id, span.span_id)
        assert (there.start_time, there.end_time) == (span.start_ns, span.end_ns)
        assert dict(there.attributes or {}) == span.attributes
        assert there.status.status_code is StatusCode.UNSET
    assert f"{event.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert told["event"].parent is not None
    assert f"{told['event'].parent.span_id:016x}" == "b7ad6b7169203331"
    assert told["step"].parent is not None
    assert told["step"].parent.span_id == event.span_id


def test_a_root_has_no_parent(memory: InMemorySpanExporter, export: SpanExportThread) -> None:
    export.put(some_span())
    export.close()
    (there,) = memory.get_finished_spans()
    assert there.parent is None


def test_a_root_goes_back_to_its_origin_and_a_child_to_its_parent(
    memory: InMemorySpanExporter, export: SpanExportThread
) -> None:
    recorder, origin = Recorder(sink=export.put), some_span()
    with recorder.span("root", origin=origin) as root, recorder.span("child", origin=origin):
        pass
    export.close()
    child, there = memory.get_finished_spans()
    assert [(it.context.trace_id, it.context.span_id) for it in there.links] == [(origin.trace_id, origin.span_id)]
    assert root.trace_id != origin.trace_id
    assert list(child.links) == []


def test_an_error_becomes_the_status(memory: InMemorySpanExporter, export: SpanExportThread) -> None:
    with pytest.raises(ValueError, match="why"), Recorder(sink=export.put).span("step"):
        raise ValueError("why")
    export.close()
    (there,) = memory.get_finished_spans()
    assert (there.status.status_code, there.status.description) == (StatusCode.ERROR, "why")


@pytest.mark.usefixtures("nobody")
def test_the_resource_says_who_it_is(memory: InMemorySpanExporter, export: SpanExportThread) -> None:
    export.put(some_span())
    export.close()
    (there,) = memory.get_finished_spans()
    assert there.resource.attributes["service.name"] == "nri-rdma"
    assert there.resource.attributes["service.version"] == __version__
    assert there.resource.attributes["host.name"]


@pytest.mark.parametrize(
    ("attributes", "name", "expected"),
    [
        ("service.name=east,host.name=node-17", "", ("east", "node-17")),
        ("service.name=east,host.name=node-17", "mine", ("mine", "node-17")),
        ("service.name=", " ", ("nri-rdma", platform.node())),
    ],
)
def test_the_variables_say_who_it_is(
    monkeypatch: pytest.MonkeyPatch, attributes: str, name: str, expected: tuple[str, str]
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", attributes)
    monkeypatch.setenv("OTEL_SERVICE_NAME", name)
    said = make_resource().attributes
    assert (said["service.name"], said["host.name"]) == expected


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time between two looks into the queue."""
    monkeypatch.setattr(export_module, "PAUSE_S", PAUSE_S / 10)


@pytest.mark.usefixtures("hurried")
def test_spans_are_exported_without_waiting_for_the_end(memory: InMemorySpanExporter, export: SpanExportThread) -> None:
    export.put(some_span())
    deadline = time.monotonic() + 5
    while not memory.get_finished_spans():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("hurried")
def test_a_full_queue_drops_and_counts_and_never_blocks() -> None:
    exporter = HangingExporter()
    thread = SpanExportThread(exporter, RESOURCE, capacity=10)
    thread.put(some_span())
    assert exporter.entered.wait(30)
    started = time.monotonic()
    for _ in range(25):
        thread.put(some_span())
    assert time.monotonic() - started < 10
    assert thread.counts().dropped == 15
    exporter.go_on.set()
    thread.close()
    assert thread.counts().failed == 11


@pytest.mark.usefixtures("hurried")
def test_close_ends_in_its_time_when_the_collector_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "CLOSE_S", CLOSE_S / 10)
    exporter = HangingExporter()
    thread = SpanExportThread(exporter, RESOURCE)
    thread.put(some_span())
    assert exporter.entered.wait(30)
    started = time.monotonic()
    thread.close()
    assert CLOSE_S / 20 < time.monotonic() - started < 5 * CLOSE_S
    assert CLOSE_S == 2  # what operators are told


def test_nothing_is_taken_after_close(memory: InMemorySpanExporter, export: SpanExportThread) -> None:
    export.close()
    export.put(some_span())
    assert (memory.get_finished_spans(), export.counts().dropped) == ((), 1)


class ChattyExporter(SpanExporter):
    """An exporter that says in its own words, several times, why it does not reach its collector."""

    def __init__(self, *messages: str) -> None:
        self.messages = messages

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for message in self.messages:
            logging.getLogger("opentelemetry.exporter.otlp.some.module").warning(message)
        return SpanExportResult.FAILURE


@pytest.mark.parametrize(
    ("exporter", "why"),
    [
        (
            ChattyExporter("no route (Caused by ('[Errno 113] No route to host')), again in 1s", "gave up"),
            "No route to host",
        ),
        (
            ChattyExporter("again in 1s", "Failed, code 401, reason: Unauthorized"),
            "Failed, code 401, reason: Unauthorized",
        ),
        (ChattyExporter("x" * 1000), "x" * 300),
        (ChattyExporter(), "it did not say why"),
        (BrokenExporter(), "no"),
    ],
)
def test_a_batch_that_is_not_exported_is_one_line_with_the_reason(
    exporter: SpanExporter, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    thread = SpanExportThread(exporter, RESOURCE)
    thread.put(some_span())
    thread.close()
    batch, total = caplog.records
    assert (batch.message, batch.__dict__["spans"], batch.__dict__["error"]) == (
        "a batch of spans was not exported",
        1,
        why,
    )
    assert (total.message, total.__dict__["failed"]) == ("spans were not exported", 1)


def test_after_the_end_exporters_log_for_themselves_again(caplog: pytest.LogCaptureFixture) -> None:
    SpanExportThread(ChattyExporter(), RESOURCE).close()
    logging.getLogger("opentelemetry.exporter.other").warning("hello")
    assert [record.message for record in caplog.records] == ["hello"]


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_EXPORTER": ""},
        {"OTEL_TRACES_EXPORTER": " None "},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"},
    ],
)
def test_by_default_nothing_is_exported(environment: dict[str, str]) -> None:
    assert make_exporter(environment) is None


def test_console_prints_spans() -> None:
    program = (
        "from nri_rdma.observe.export import make_exporter\n"
        "from nri_rdma.observe.spans import Recorder\n"
        "thread = make_exporter({'OTEL_TRACES_EXPORTER': 'console'})\n"
        "with Recorder(sink=thread.put).span('step'):\n    pass\n"
        "thread.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["name"] == "step"
    assert ConsoleSpanExporter.__name__ not in done.stderr


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"OTEL_TRACES_EXPORTER": "jaeger"}, "OTEL_TRACES_EXPORTER = 'jaeger' cannot be used. Next: set it to none,"),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
            "OTEL_EXPORTER_OTLP_PROTOCOL = 'http/json' cannot be used. Next: set it to http/protobuf",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4318"},
            "OTEL_EXPORTER_OTLP_ENDPOINT = '127.0.0.1:4318' cannot be used, because it has no scheme. Next: write http://",
        ),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "thrift"},
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL = 'thrift' cannot be used. Next: set it to http/protobuf",
        ),
    ],
)
def test_an_exporter_that_there_is_not_is_refused(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingError) as caught:
        make_exporter(environment)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "HTTP/Protobuf"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "GRPC"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "HTTP://127.0.0.1:4318"},
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "127.0.0.1:4317",  # for metrics and logs of others
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces",
        },
    ],
)
def test_values_that_the_specification_allows_are_taken(environment: dict[str, str]) -> None:
    exporter = make_exporter({"OTEL_TRACES_EXPORTER": "otlp", **environment})
    assert exporter is not None
    exporter.close()


def test_a_missing_extra_is_a_sentence() -> None:
    program = (
        "import sys\n"
        "sys.modules['opentelemetry.exporter'] = None\n"  # as if the extra were not installed
        "from nri_rdma.observe.export import make_exporter\n"
        "try:\n    make_exporter({'OTEL_TRACES_EXPORTER': 'otlp'})\n"
        "except Exception as error:\n    print(type(error).__name__, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        "SettingError nri-rdma: SETTING: OTEL_TRACES_EXPORTER = 'otlp' cannot be used, because "
    )
    assert "its extra `otlp`" in done.stdout


def test_spans_arrive_over_grpc_with_the_names_of_the_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://{collector.address}")
    exporter = make_exporter({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert exporter is not None
    recorder = Recorder(sink=exporter.put)
    names = {"k8s.pod.name": "ml/train", "k8s.pod.uid": "u-1", "sandbox": "s-1"}
    with suppress(PlacementError), recorder.span("RunPodSandbox", dict(names)), recorder.span("place") as place:
        place.attributes["rdma.devices"] = "mlx5_0,mlx5_1"
        raise PlacementError(ErrorCode.NOT_ALIGNED, "too far", hint="wait")
    exporter.close()
    collector.close()
    by_name = {span.name: span for span in collector.spans}
    event, place_span = by_name["RunPodSandbox"], by_name["place"]
    assert place_span.parent_id == event.span_id
    assert event.attributes == {
        "k8s.namespace.name": "ml",
        "k8s.pod.name": "train",
        "k8s.pod.uid": "u-1",
        "rdma.sandbox": "s-1",
        "rpc.system.name": "ttrpc",
        "rpc.service": "nri.pkg.api.v1alpha1.Plugin",
        "rpc.method": "RunPodSandbox",
        "error.type": "NOT-ALIGNED",
    }
    assert place_span.attributes["rdma.devices"] == ("mlx5_0", "mlx5_1")
    assert (event.kind, place_span.kind) == ("SERVER", "INTERNAL")


REFUSALS = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED]


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda it: it.name)
@pytest.mark.usefixtures("hurried")
def test_a_collector_that_refuses_is_counted_and_logged_once_and_taken_again(
    refusal: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    exporters = logging.getLogger("opentelemetry.exporter.otlp.proto.grpc.exporter")
    monkeypatch.setattr(exporters, "filters", [])  # it logs nothing twice within 20 s: other tests are in the process
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")  # the time for all attempts of a batch
    with Collector() as collector:
        for name, value in collector.environment.items():
            monkeypatch.setenv(name, value)
        collector.refusal = refusal
        exporter = make_exporter(os.environ)
        assert exporter is not None
        for batches in (1, 2):
            exporter.put(some_span())
            wait_until(lambda wanted=batches: exporter.counts().failed == wanted, "the batch to fail")  # type: ignore[misc]
        assert refusal.name in exporter.counts().error
        collector.refusal = None
        exporter.put(some_span())
        wait_until(lambda: exporter.counts().exported == 1, "the collector to take a batch")
        exporter.close()
    assert [it.message for it in caplog.records] == [
        "a batch of spans was not exported",
        "spans are exported again",
        "spans were not exported",
    ]
    assert refusal.name in vars(caplog.records[0])["error"]
    assert {name: vars(caplog.records[1])[name] for name in ("dropped", "failed")} == {"dropped": 0, "failed": 2}
    assert len(collector.spans) == 1


@pytest.mark.usefixtures("hurried")
def test_a_collector_that_is_away_is_one_line_in_the_log_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Over http the exporter has two lines for each batch, and its last one gives no reason."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2.5")  # it tries again after a second, and says why
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")  # the port of `discard`: nobody listens
    exporter = make_exporter({"OTEL_TRACES_EXPORTER": "otlp"})
    assert exporter is not None
    exporter.put(some_span())
    wait_until(lambda: exporter.counts().failed == 1, "the batch to fail")
    exporter.close()
    first, last = caplog.records
    assert (first.message, last.message) == ("a batch of spans was not exported", "spans were not exported")
    assert vars(first)["error"] == "Connection refused"


def counts(*, dropped: int = 0, failed: int = 0) -> ExportCounts:
    return ExportCounts(waiting=0, exported=0, dropped=dropped, failed=failed, error="why")


def test_losses_that_come_and_go_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    losses = Losses()
    for number in range(100):
        losses.tell(counts(failed=number + number % 2), now=1.0 + number)
    levels = [it.levelname for it in caplog.records]
    assert levels == ["WARNING", "INFO"] * 2
    losses.tell(counts(failed=1000, dropped=3), now=1.0 + 3 * SILENCE_S)
    last = vars(caplog.records[-1])
    assert (last["spans"], last["failed"], last["dropped"], last["error"]) == (900, 1000, 3, "why")


@pytest.mark.usefixtures("hurried")
def test_a_collector_that_is_too_slow_is_the_reason_for_what_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    exporter = HangingExporter(SpanExportResult.SUCCESS)
    thread = SpanExportThread(exporter, RESOURCE, capacity=10)
    thread.put(some_span())
    assert exporter.entered.wait(30)
    for _ in range(25):
        thread.put(some_span())
    exporter.go_on.set()
    thread.close()
    after = thread.counts()
    assert (after.exported, after.dropped, after.failed) == (11, 15, 0)
    assert after.error == "the collector is slower than spans come"
    assert (caplog.records[0].message, vars(caplog.records[0])["spans"]) == ("spans were dropped", 15)


def test_the_sdk_is_imported_only_when_something_is_exported() -> None:
    program = (
        "import sys\n"
        "from nri_rdma.observe.export import make_exporter\n"
        "make_exporter({})\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_recorder_that_is_off_takes_everything_and_keeps_nothing() -> None:
    spans = Recorder(capacity=0)
    with pytest.raises(RuntimeError), spans.span("attach", {"a": 1}) as span:
        span.attributes["b"] = 2
        span.attributes.update(c=3)
        raise RuntimeError
    assert (spans.recent(), dict(spans.span("next").attributes)) == ((), {})

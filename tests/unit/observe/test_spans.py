"""Spans that are recorded, and which of them are handed on."""

import threading

import pytest

from nri_rdma.observe import spans as spans_module
from nri_rdma.observe.spans import Caller, Recorder, Span, current_span, parse_traceparent, under

TRACE, CALLER = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SAMPLED = f"00-{TRACE:032x}-{CALLER:016x}-01"
UNSAMPLED = f"00-{TRACE:032x}-{CALLER:016x}-00"


class Sink(list[Span]):
    """What was handed on."""

    @property
    def names(self) -> set[str]:
        """The names of the spans, each of which came once."""
        found = [span.name for span in self]
        assert len(found) == len(set(found)), found
        return set(found)


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def recorder(sink: Sink) -> Recorder:
    return Recorder(sink=sink.append)


@pytest.mark.parametrize(
    ("text", "caller"),
    [
        (SAMPLED, Caller(TRACE, CALLER, is_sampled=True)),
        (UNSAMPLED, Caller(TRACE, CALLER, is_sampled=False)),
        (UNSAMPLED[:-2] + "02", Caller(TRACE, CALLER, is_sampled=False)),  # a random trace id, and no more
        (UNSAMPLED[:-2] + "03", Caller(TRACE, CALLER, is_sampled=True)),
        ("01" + SAMPLED[2:] + "-later", Caller(TRACE, CALLER, is_sampled=True)),
        ("ff" + SAMPLED[2:], None),
        (SAMPLED[:-3], None),
        (SAMPLED[:-2] + "0x", None),
        (f"00-{0:032x}-{CALLER:016x}-01", None),
        (f"00-{TRACE:032x}-{0:016x}-01", None),
        ("", None),
    ],
)
def test_a_traceparent_is_a_caller_or_nothing(text: str, caller: Caller | None) -> None:
    assert parse_traceparent(text) == caller


def test_spans_below_a_sampled_caller_are_handed_on(recorder: Recorder, sink: Sink) -> None:
    with recorder.span("call", traceparent=SAMPLED) as call, recorder.span("step") as step:
        assert current_span() is step
    assert sink.names == {"call", "step"}
    assert (call.trace_id, call.parent_id, call.links) == (TRACE, CALLER, ())


def test_spans_below_a_caller_that_is_not_sampled_are_kept_and_not_handed_on(recorder: Recorder, sink: Sink) -> None:
    with recorder.span("call", traceparent=UNSAMPLED) as call, recorder.span("step"):
        pass
    with under(call), recorder.span("later"):
        pass
    with recorder.span("undo", origin=call):
        pass
    assert sink.names == set()
    assert [span.name for span in recorder.recent()] == ["step", "call", "later", "undo"]


def fail(recorder: Recorder) -> None:
    with pytest.raises(ValueError, match="why"), recorder.span("failed"):
        raise ValueError("why")


def test_a_failure_is_handed_on_with_all_of_its_event_as_a_root_with_a_link(recorder: Recorder, sink: Sink) -> None:
    with recorder.span("other", traceparent=UNSAMPLED):
        pass
    with recorder.span("call", traceparent=UNSAMPLED) as call:
        with recorder.span("before"):
            pass
        fail(recorder)
        with recorder.span("after"):
            pass
    assert sink.names == {"before", "failed", "after", "call"}
    assert {span.trace_id for span in sink} == {call.trace_id}
    assert call.trace_id != TRACE
    assert (call.parent_id, call.links) == (0, ((TRACE, CALLER),))


def test_an_attach_that_fails_after_the_answer_is_handed_on_with_its_call(recorder: Recorder, sink: Sink) -> None:
    with recorder.span("call", traceparent=UNSAMPLED) as call, recorder.span("plan"):
        pass
    assert sink.names == set()

    def attach() -> None:
        with under(call):
            fail(recorder)

    worker = threading.Thread(target=attach)
    worker.start()
    worker.join()
    assert sink.names == {"plan", "call", "failed"}


def test_an_undo_that_fails_is_handed_on_when_its_pod_was_not(recorder: Recorder, sink: Sink) -> None:
    with recorder.span("call", traceparent=UNSAMPLED) as call:
        pass
    with recorder.span("undo", origin=call) as undo:
        fail(recorder)
    assert sink.names == {"undo", "failed"}
    assert undo.links == ((call.trace_id, call.span_id),)


def test_what_is_slow_is_handed_on_like_a_failure(
    recorder: Recorder, sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recorder.span("call", traceparent=UNSAMPLED):
        monkeypatch.setattr(spans_module, "SLOW_NS", 0)
        with recorder.span("slow"):
            pass
        monkeypatch.undo()
    assert sink.names == {"slow", "call"}
    assert spans_module.SLOW_NS == 1_000_000_000  # what operators are told


def test_spans_of_one_event_that_end_together_are_handed_on_once_each(recorder: Recorder, sink: Sink) -> None:
    with recorder.span("call", traceparent=UNSAMPLED) as call:
        pass
    ready = threading.Barrier(8)

    def work(number: int) -> None:
        with under(call):
            ready.wait()
            for turn in range(50):
                with recorder.span(f"step {number} {turn}"):
                    pass
                if turn == 25:
                    with recorder.span(f"failed {number}") as failed:
                        failed.error = "why"

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(sink.names) == 1 + 8 * 51


def test_a_recorder_without_a_ring_hands_on_a_failure_and_what_follows(sink: Sink) -> None:
    recorder = Recorder(capacity=0, sink=sink.append)
    with recorder.span("call", traceparent=UNSAMPLED):
        with recorder.span("before"):
            pass
        fail(recorder)
    assert sink.names == {"failed", "call"}

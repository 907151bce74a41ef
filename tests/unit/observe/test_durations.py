"""Durations are counted into buckets, by labels, whoever counts."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.observe.durations import BOUNDS_S, CAPACITY, CallOutcome, Durations, Tally, measured
from nri_rdma.observe.spans import Recorder

STEP = ("place", "done")


@given(st.lists(st.integers(min_value=0, max_value=10**11), max_size=50))
def test_each_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed(durations: list[int]) -> None:
    counted = Durations()
    for duration in durations:
        counted.note((STEP, duration))
    if not durations:
        assert counted.histograms() == {}
        return
    found = counted.histograms()[STEP]
    for bound in range(len(BOUNDS_S)):
        at_most = sum(1 for duration in durations if duration / 1e9 <= BOUNDS_S[bound])
        assert sum(found.buckets[: bound + 1]) == at_most
    assert found.count == len(durations)
    assert found.seconds == pytest.approx(sum(durations) / 1e9)


def test_a_clock_that_was_set_back_takes_nothing_from_the_sum() -> None:
    counted = Durations()
    counted.note((STEP, -5_000_000_000))
    counted.note((STEP, 1_000_000_000))
    found = counted.histograms()[STEP]
    assert (found.count, found.seconds, found.buckets[0]) == (2, 1.0, 1)


def test_threads_lose_no_count() -> None:
    counted, at_once, each = Durations(), 4, CAPACITY // 4

    def count() -> None:
        for _ in range(each):
            counted.note((STEP, 1000))

    threads = [threading.Thread(target=count) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = counted.histograms()[STEP]
    assert found.count == at_once * each
    assert found.seconds == pytest.approx(at_once * each * 1e-6)


def test_a_call_is_counted_by_how_it_ends_and_its_answer_stays() -> None:
    counted = Durations()

    def refuse() -> None:
        raise NriRdmaError(ErrorCode.NOT_READY, "not yet")

    assert measured(counted, "Allocate", lambda: 7) == 7
    with pytest.raises(NriRdmaError):
        measured(counted, "Allocate", refuse)
    with pytest.raises(ZeroDivisionError):
        measured(counted, "Allocate", lambda: 1 // 0)
    counts = {labels: it.count for labels, it in counted.histograms().items()}
    assert counts == {
        ("Allocate", outcome): 1 for outcome in (CallOutcome.DONE, CallOutcome.REFUSED, CallOutcome.FAILED)
    }


def test_nothing_is_counted_where_nobody_asked_for_metrics() -> None:
    assert measured(None, "Allocate", lambda: 7) == 7


def test_every_span_is_counted_by_its_name_and_whether_it_failed_sampled_or_not_and_also_where_none_is_kept() -> None:
    tally = Tally()
    recorder = Recorder(capacity=0, counter=tally.span_ended)
    unsampled = f"00-{1:032x}-{1:016x}-00"
    for caller in ("", unsampled):
        with recorder.span("RunPodSandbox", traceparent=caller), recorder.span("place"):
            pass
    with pytest.raises(ZeroDivisionError), recorder.span("place"):
        raise ZeroDivisionError
    tally.settle()
    assert counts_of(tally.steps) == {("place", "done"): 2, ("place", "failed"): 1}
    assert counts_of(tally.events) == {("RunPodSandbox", "done"): 2}
    assert recorder.recent() == ()


def test_a_call_of_the_runtime_that_ended_with_an_error_was_refused_if_that_has_a_code() -> None:
    tally = Tally()
    recorder = Recorder(capacity=0, counter=tally.span_ended)
    for error in (NriRdmaError(ErrorCode.NOT_READY, "not yet"), ZeroDivisionError()):
        with pytest.raises(type(error)), recorder.span("CreateContainer"), recorder.span("barrier"):
            raise error
    tally.settle()
    assert counts_of(tally.events) == {("CreateContainer", "refused"): 1, ("CreateContainer", "failed"): 1}
    assert counts_of(tally.steps) == {("barrier", "failed"): 2}


def counts_of(durations: Durations) -> dict[tuple[str, ...], int]:
    return {labels: it.count for labels, it in durations.histograms().items()}


def test_what_waits_to_be_counted_is_bounded() -> None:
    tally = Tally()
    recorder = Recorder(capacity=0, counter=tally.span_ended)
    for _ in range(CAPACITY + 10):
        with recorder.span("place"):
            pass
    tally.settle()
    assert tally.steps.histograms()[STEP].count == CAPACITY

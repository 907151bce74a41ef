"""Histograms of durations by labels, for the metrics page. Recording is cheap enough for each call of the runtime.

Recording a duration only appends it to a queue (0.05 us; a span 0.01 us). The thread that serves the page counts the
queues' content from time to time, and for each page.

The duration of a runtime's call is that of its span. A call about a pod that requests nothing has no span and is only
counted: measuring it would take 2 to 4 % of its 22 us.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter_ns
from typing import Final, TypeAlias, TypeVar

from nri_rdma.errors import NriRdmaError
from nri_rdma.observe.conventions import EVENTS, KUBELET_CALLS
from nri_rdma.observe.spans import Span

T = TypeVar("T")
Labels: TypeAlias = tuple[str, ...]

BOUNDS_S: Final = (
    *(0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0),
)
"""Upper bounds of the histograms' buckets in seconds. An answer from memory takes 0.1 ms, an attach some 10 ms; a
runtime drops a plugin after 2 s."""
REFUSAL: Final = "nri-rdma: "
"""The prefix of the text of every error that has a code."""
CAPACITY: Final = 8192
"""Maximum number of durations in a queue. If more come before the queue is counted, the oldest are dropped. Six hundred
pods that start within a second produce as many spans."""
_BOUNDS_NS: Final = tuple(round(bound * 1e9) for bound in BOUNDS_S)


class CallOutcome(StrEnum):
    """The outcome of an operation."""

    DONE = "done"
    NOTHING_ASKED = "nothing_asked"
    """The pod has no request for devices."""
    REFUSED = "refused"
    """The call failed with an error that has a code; the caller got its text."""
    FAILED = "failed"
    """The message could not be decoded, or there is a bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The durations of one kind of operation.

    `buckets` are the numbers of durations between each bound and the bound before it. The last bucket is for durations
    above all bounds.
    """

    buckets: tuple[int, ...]
    seconds: float
    """Sum of all durations."""

    @property
    def count(self) -> int:
        """Return the number of durations."""
        return sum(self.buckets)


class Durations:
    """A histogram of durations for each combination of labels. Label values must come from a small fixed set, because
    every combination is kept. Thread-safe."""

    def __init__(self) -> None:
        self._noted: deque[tuple[Labels, int]] = deque(maxlen=CAPACITY)
        self.note: Callable[[tuple[Labels, int]], object] = self._noted.append
        """Puts a duration (labels, nanoseconds) into the queue; `settle` counts it."""
        self._lock = threading.Lock()
        self._rows: dict[Labels, list[int]] = {}

    def settle(self) -> None:
        """Count the durations in the queue. A negative duration, after a clock was set back, counts as 0."""
        with self._lock:
            for labels, duration_ns in taken(self._noted):
                row = self._rows.setdefault(labels, [0] * (len(_BOUNDS_NS) + 2))
                row[bisect_left(_BOUNDS_NS, duration_ns)] += 1
                row[-1] += max(duration_ns, 0)

    def histograms(self) -> Mapping[Labels, Histogram]:
        """Return the histograms since the start, by labels."""
        self.settle()
        with self._lock:
            rows = {labels: tuple(row) for labels, row in sorted(self._rows.items())}
        return {labels: Histogram(buckets=row[:-1], seconds=row[-1] / 1e9) for labels, row in rows.items()}


class Tally:
    """All counts and durations of a daemon, for its metrics page."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=CAPACITY)
        self.span_ended: Callable[[Span], object] = self._spans.append
        """Puts a finished span into the queue; `settle` counts its duration."""
        self.steps = Durations()
        """Durations of the spans that are no calls of the runtime or the kubelet, by name and outcome."""
        self.event_counts: Counter[Labels] = Counter()
        """Number of the runtime's calls, by NRI's name of the call and outcome. Only the thread that answers the calls
        writes it."""
        self.events = Durations()
        """Durations of the runtime's calls about pods with requests for devices, by name and outcome."""
        self.kubelet_calls = Durations()
        """Durations of the kubelet's calls, by gRPC method and outcome."""
        self.hook_calls = Durations()
        """Durations of the answers to OCI hooks of podman and Docker, by the hook's OCI name and outcome."""

    def settle(self) -> None:
        """Count the content of all queues. Must be called often enough: a queue that holds more than CAPACITY items
        drops the oldest."""
        for span in taken(self._spans):
            self._durations_of(span.name).note((_labels(span), span.end_ns - span.start_ns))
        for each in (self.steps, self.events, self.kubelet_calls, self.hook_calls):
            each.settle()

    def _durations_of(self, name: str) -> Durations:
        if name in EVENTS:
            return self.events
        return self.kubelet_calls if name in KUBELET_CALLS else self.steps


def _labels(span: Span) -> Labels:
    """Return name and outcome of a span. Only calls of runtime and kubelet can have the outcome REFUSED."""
    if not span.error:
        return span.name, CallOutcome.DONE
    is_call = span.name in EVENTS or span.name in KUBELET_CALLS
    is_refusal = is_call and span.error.startswith(REFUSAL)
    return span.name, CallOutcome.REFUSED if is_refusal else CallOutcome.FAILED


def taken(queue: deque[T]) -> Iterator[T]:
    """Remove and yield the items that are in the queue at the time of the call. Items that are added later stay."""
    for _ in range(len(queue)):
        yield queue.popleft()


def outcome_of(error: BaseException | None) -> CallOutcome:
    """Return the outcome of an operation that raised this error; None: it raised none."""
    if error is None:
        return CallOutcome.DONE
    return CallOutcome.REFUSED if isinstance(error, NriRdmaError) else CallOutcome.FAILED


def measured(durations: Durations | None, method: str, call: Callable[[], T]) -> T:
    """Call the function, and record its duration by method and outcome. Return its result or raise its error. If
    `durations` is None, nothing is recorded."""
    if durations is None:
        return call()
    begin = perf_counter_ns()
    error: BaseException | None = None
    try:
        return call()
    except BaseException as raised:
        error = raised
        raise
    finally:
        durations.note(((method, outcome_of(error)), perf_counter_ns() - begin))

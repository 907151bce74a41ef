"""How long operations took, counted for a page of metrics: histograms by labels, cheap enough for the hot path.

Whoever notes a duration only appends it to a queue (0.05 us, of a span 0.01 us). The thread that serves the page
empties the queues every now and then, and whenever the page is asked for. A call of the runtime has its duration from
its span: a call about a pod that asks for nothing has none, and is counted only, because two looks at the clock and a
place in a queue were 2 to 4 % of its 22 us.
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
"""Upper bounds of the buckets in seconds. An answer from memory takes 0.1 ms, an attach some 10 ms; a runtime drops a
plugin after 2 s."""
REFUSAL: Final = "nri-rdma: "
"""The begin of every error that has a code."""
CAPACITY: Final = 8192
"""Most durations of a kind that wait to be counted; beyond it the oldest are not counted. Six hundred pods that start
within a second leave so many spans."""
_BOUNDS_NS: Final = tuple(round(bound * 1e9) for bound in BOUNDS_S)


class CallOutcome(StrEnum):
    """The end of an operation."""

    DONE = "done"
    NOTHING_ASKED = "nothing_asked"
    """The pod asks nri-rdma for nothing."""
    REFUSED = "refused"
    """An error with a code: whoever asked has its sentence."""
    FAILED = "failed"
    """A message that cannot be read, or a bug."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """The durations of one kind of operation. `buckets` has how many fell between each bound and the one before, and
    last those above all bounds."""

    buckets: tuple[int, ...]
    seconds: float
    """All durations together."""

    @property
    def count(self) -> int:
        """Return how many there were."""
        return sum(self.buckets)


class Durations:
    """Counts durations by labels, which are few and known. Safe for use by several threads."""

    def __init__(self) -> None:
        self._noted: deque[tuple[Labels, int]] = deque(maxlen=CAPACITY)
        self.note: Callable[[tuple[Labels, int]], object] = self._noted.append
        """Notes the labels and the nanoseconds of one; it is counted later."""
        self._lock = threading.Lock()
        self._rows: dict[Labels, list[int]] = {}

    def settle(self) -> None:
        """Count what was noted. A clock that was set back makes a duration negative: it counts as none."""
        with self._lock:
            for labels, duration_ns in taken(self._noted):
                row = self._rows.setdefault(labels, [0] * (len(_BOUNDS_NS) + 2))
                row[bisect_left(_BOUNDS_NS, duration_ns)] += 1
                row[-1] += max(duration_ns, 0)

    def histograms(self) -> Mapping[Labels, Histogram]:
        """Return what was counted since the start, by labels."""
        self.settle()
        with self._lock:
            rows = {labels: tuple(row) for labels, row in sorted(self._rows.items())}
        return {labels: Histogram(buckets=row[:-1], seconds=row[-1] / 1e9) for labels, row in rows.items()}


class Tally:
    """All that a daemon counts for its page of metrics."""

    def __init__(self) -> None:
        self._spans: deque[Span] = deque(maxlen=CAPACITY)
        self.span_ended: Callable[[Span], object] = self._spans.append
        """Notes a span."""
        self.steps = Durations()
        """Spans, by name and outcome."""
        self.event_counts: Counter[Labels] = Counter()
        """Calls of the runtime, by NRI's names and outcome. The thread that answers them counts."""
        self.events = Durations()
        """Those that were about pods that ask, by name and outcome."""
        self.kubelet_calls = Durations()
        """Calls of the kubelet, by the names of their interfaces and outcome."""
        self.hook_calls = Durations()
        """Questions of podman's and Docker's hooks, by OCI's names of hooks and outcome."""

    def settle(self) -> None:
        """Count what was noted. To be called more often than CAPACITY durations come."""
        for span in taken(self._spans):
            self._durations_of(span.name).note((_labels(span), span.end_ns - span.start_ns))
        for each in (self.steps, self.events, self.kubelet_calls, self.hook_calls):
            each.settle()

    def _durations_of(self, name: str) -> Durations:
        if name in EVENTS:
            return self.events
        return self.kubelet_calls if name in KUBELET_CALLS else self.steps


def _labels(span: Span) -> Labels:
    """Return name and outcome of a span. Only calls of runtime and kubelet are refused: their errors have codes."""
    if not span.error:
        return span.name, CallOutcome.DONE
    is_call = span.name in EVENTS or span.name in KUBELET_CALLS
    is_refusal = is_call and span.error.startswith(REFUSAL)
    return span.name, CallOutcome.REFUSED if is_refusal else CallOutcome.FAILED


def taken(queue: deque[T]) -> Iterator[T]:
    """Take and yield what is in the queue now; what is put in meanwhile stays."""
    for _ in range(len(queue)):
        yield queue.popleft()


def outcome_of(error: BaseException | None) -> CallOutcome:
    """Return how an operation ended that raised this."""
    if error is None:
        return CallOutcome.DONE
    return CallOutcome.REFUSED if isinstance(error, NriRdmaError) else CallOutcome.FAILED


def measured(durations: Durations | None, method: str, call: Callable[[], T]) -> T:
    """Return what the call returns, or raise what it raises, and count it by method and outcome."""
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

"""The page of metrics in Prometheus' text format.

Only the thread of nri_rdma.doors.metrics.metrics_server uses this module. prometheus_client is imported with the first
page, because that takes 50 ms and 4 MB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from nri_rdma.doors.metrics.declared import METRICS, Measured, MetricDeclaration
from nri_rdma.doors.metrics.http import PageAnswer, PageRequest
from nri_rdma.observe.durations import BOUNDS_S, Histogram, Labels

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import CollectorRegistry

TEXT_FORMAT: Final = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of Prometheus' text format. Every release of Prometheus reads this format."""
_BOUNDS: Final = (*map(str, BOUNDS_S), "+Inf")


class Pages:
    """The pages /metrics and /healthz."""

    def __init__(self, measure: Callable[[], Measured], health: Callable[[], str]) -> None:
        """`measure` returns the values of our metrics. `health` returns the reason why the daemon does not serve pods;
        "" while it does."""
        self._measure = measure
        self._health = health
        self._registry: CollectorRegistry | None = None

    def answer(self, request: PageRequest) -> PageAnswer:
        """Return the page that the request names. Any path other than /metrics and /healthz gets status 404."""
        match request.path:
            case "/metrics":
                return self._metrics()
            case "/healthz":
                why = self._health()
                return PageAnswer(status=503, body=f"{why}\n".encode()) if why else PageAnswer(body=b"ok\n")
            case _:
                return PageAnswer(status=404, body=b"there are /metrics and /healthz\n")

    def _metrics(self) -> PageAnswer:
        from prometheus_client.exposition import generate_latest

        if self._registry is None:
            self._registry = _registry(self._measure)
        return PageAnswer(body=generate_latest(self._registry), content_type=TEXT_FORMAT)


def _registry(measure: Callable[[], Measured]) -> CollectorRegistry:
    """Return a registry of our metrics and of prometheus_client's own: process_*, python_gc_* and python_info."""
    from prometheus_client.gc_collector import GCCollector
    from prometheus_client.platform_collector import PlatformCollector
    from prometheus_client.process_collector import ProcessCollector
    from prometheus_client.registry import Collector, CollectorRegistry

    class Ours(Collector):
        def collect(self) -> Iterator[Metric]:
            measured = measure()
            return (_metric(it, measured.get(it.name, {})) for it in METRICS)

    registry = CollectorRegistry()
    registry.register(Ours())
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


def _metric(declared: MetricDeclaration, rows: Mapping[Labels, float | Histogram]) -> Metric:
    from prometheus_client.metrics_core import Metric

    made = Metric(declared.name.removesuffix("_total"), declared.text, declared.kind)
    for values, value in rows.items():
        labels = dict(zip(declared.labels, map(str, values), strict=True))
        if isinstance(value, Histogram):
            for bound, count in zip(_BOUNDS, accumulate(value.buckets), strict=True):
                made.add_sample(f"{declared.name}_bucket", {**labels, "le": bound}, count)
            made.add_sample(f"{declared.name}_count", labels, value.count)
            made.add_sample(f"{declared.name}_sum", labels, value.seconds)
        else:
            made.add_sample(declared.name, labels, value)
    return made

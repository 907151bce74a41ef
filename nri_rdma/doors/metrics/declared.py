"""The declarations of all metrics. Pure. docs/metrics.md prints METRICS.

Names follow Prometheus' practice (https://prometheus.io/docs/practices/naming/). No label names a pod, a container or a
device. Such a label would make a new series for each pod that ever ran, and would show every reader of the page who
runs on the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from nri_rdma.observe.durations import Histogram, Labels


class MetricKind(StrEnum):
    """The Prometheus type of a metric."""

    COUNTER = "counter"
    """A count since the daemon's start; it only grows."""
    GAUGE = "gauge"
    """A present value, which goes up and down."""
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricDeclaration:
    """The declaration of one metric: its name on the page, its type, its help text and its labels."""

    name: str
    kind: MetricKind
    text: str
    labels: tuple[str, ...] = ()


Measured: TypeAlias = Mapping[str, Mapping[Labels, "float | Histogram"]]
"""All values of the page, by the metric's name and then by the values of its labels."""


def _counter(name: str, text: str, *labels: str) -> MetricDeclaration:
    return MetricDeclaration(name=f"nri_rdma_{name}_total", kind=MetricKind.COUNTER, text=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> MetricDeclaration:
    return MetricDeclaration(name=f"nri_rdma_{name}", kind=MetricKind.GAUGE, text=text, labels=labels)


def _histogram(name: str, text: str, *labels: str) -> MetricDeclaration:
    return MetricDeclaration(name=f"nri_rdma_{name}_seconds", kind=MetricKind.HISTOGRAM, text=text, labels=labels)


METRICS: Final = (
    _gauge("build_info", "Always 1; the labels are the daemon's version and its commit.", "version", "revision"),
    _gauge("runtime_synchronized", "1 while the container runtime is connected and has reported its pods, or none is"
           " needed because only podman or Docker asks; 0: pods start without nri-rdma."),
    _counter("nri_requests", "Calls of the container runtime.", "method", "outcome"),
    _histogram("nri_request_duration", "Time until a call of the container runtime about a pod that asks was answered.",
               "method", "outcome"),
    _counter("kubelet_requests", "Calls of the kubelet: claims that it has prepared and unprepared, and allocations of"
             " resources.", "method", "outcome"),
    _histogram("kubelet_request_duration", "Time until a call of the kubelet was answered.", "method", "outcome"),
    _counter("hook_requests", "Questions of OCI hooks of podman and Docker.", "method", "outcome"),
    _histogram("hook_request_duration", "Time until a question of an OCI hook was answered.", "method", "outcome"),
    _histogram("step_duration", "Time of each step of a pod's way, by the names that `nri-rdma trace` shows.", "step",
               "outcome"),
    _counter("refusals", "Refusals of pods and containers, by error code. The kubelet tries again, so one pod may count"
             " often.", "code"),
    _gauge("devices", "RDMA devices: a pod has it, the host uses it, or it is free; missing: a pod has it, and the"
           " machine does not show it.", "state"),
    _gauge("attachments", "What pods asked for, by how far that is.", "state"),
    _gauge("attached_pods", "Pods that have devices now."),
    _gauge("attachments_failing_to_return", "Attachments of pods that have ended whose devices could not be given"
           " back to the host yet: it is tried again."),
    _counter("lost_netdevs", "Netdevs that were not there when their pods ended."),
    _gauge("unserved_pods", "Pods that run, or wait, without what they ask for."),
    _gauge("pool_devices", "Devices of a pool, given or not.", "pool"),
    _gauge("pool_shares", "Shares, or devices by their ids, that a pool has for the kubelet.", "pool"),
    _gauge("pool_shares_given", "Those of them that pods have.", "pool"),
    _gauge("published_devices", "Devices in this node's ResourceSlices after the last successful update."),
    _gauge("publishing_failing", "1 while the ResourceSlices could not be updated."),
    _gauge("claims", "Claims that the kubelet has prepared, by what became of them.", "state"),
    _gauge("guarded", "1 while containers of a runtime handler have the guard, as the runtime runs; 0: while no daemon"
           " runs, those that ask start without their devices.", "handler"),
    _gauge("guard_resource_served", "1 while the kubelet gives the guard with its resource; 0: pods with that wait."),
    _gauge("configuration_refused", "1 while the settings are those from before a reload that was refused."),
    _gauge("troubles", "What the daemon goes without since its start, by its part; `status` says why.", "part"),
    _gauge("network_namespaces_held", "Network namespaces of pods that the daemon holds open."),
    _counter("spans", "Spans, by what became of them on their way to the collector of traces.", "outcome"),
)  # fmt: skip
"""All metrics, in the order of the page."""

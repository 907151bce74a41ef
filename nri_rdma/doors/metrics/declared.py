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
    _histogram("nri_request_duration", "Time to answer a call of the container runtime about a pod that asks for"
               " devices.", "method", "outcome"),
    _counter("kubelet_requests", "Calls of the kubelet: to prepare and unprepare claims, and to allocate resources.",
             "method", "outcome"),
    _histogram("kubelet_request_duration", "Time to answer a call of the kubelet.", "method", "outcome"),
    _counter("hook_requests", "Questions of OCI hooks of podman and Docker.", "method", "outcome"),
    _histogram("hook_request_duration", "Time to answer a question of an OCI hook.", "method", "outcome"),
    _histogram("step_duration", "Duration of each step for a pod, by the names that `nri-rdma trace` shows.", "step",
               "outcome"),
    _counter("refusals", "Refusals of pods and containers, by error code. The kubelet tries again, so one pod may count"
             " often. Claims that are not prepared count in nri_rdma_kubelet_requests_total.", "code"),
    _gauge("devices", "RDMA devices that a pod has, that the host uses, or that are free; missing: a pod has it, but"
           " the host does not see it.", "state"),
    _gauge("attachments", "Attachments of devices to pod sandboxes, by state.", "state"),
    _gauge("attached_pods", "Pods that have devices now."),
    _gauge("attachments_failing_to_return", "Attachments of ended pods whose devices could not be returned to the"
           " host yet; the daemon tries again."),
    _counter("lost_netdevs", "Netdevs that were not there when their pods ended."),
    _gauge("unserved_pods", "Pods that run, or wait, without the devices that they ask for."),
    _gauge("pool_devices", "Devices of a pool, whether pods have them or not.", "pool"),
    _gauge("pool_shares", "Shares, or devices by their ids, that a pool has for the kubelet.", "pool"),
    _gauge("pool_shares_given", "Shares of a pool, or its devices by their ids, that pods have.", "pool"),
    _gauge("published_devices", "Devices in this node's ResourceSlices after the last successful update."),
    _gauge("publishing_failing", "1 while the ResourceSlices could not be updated."),
    _gauge("claims", "Claims that the kubelet has prepared, by state.", "state"),
    _gauge("guarded", "1 while the containers of a runtime handler have the guard; 0: while no daemon runs, those"
           " that ask start without their devices.", "handler"),
    _gauge("guard_resource_served", "1 while the kubelet can allocate the guard resource; 0: pods that ask for it"
           " wait."),
    _gauge("configuration_refused", "1 while the daemon runs with old settings because a reload was refused."),
    _gauge("troubles", "Problems since the daemon's start, by the part that lacks something; `status` says why.",
           "part"),
    _gauge("network_namespaces_held", "Network namespaces of pods that the daemon holds open."),
    _counter("spans", "Spans for the collector of traces, by outcome.", "outcome"),
)  # fmt: skip
"""All metrics, in the order of the page."""

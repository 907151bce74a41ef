"""The values of all metrics. They are read from the engine, and from the counters of calls and durations, when a client
asks for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any  # Any: documents of JSON

from nri_rdma import __version__
from nri_rdma.attach.record import Phase
from nri_rdma.decide.policy import offer
from nri_rdma.doors.metrics.declared import Measured
from nri_rdma.engine.view import View
from nri_rdma.errors import ErrorCode
from nri_rdma.model.trouble import Part
from nri_rdma.observe.durations import CallOutcome, Durations, Labels, Tally
from nri_rdma.observe.revision import revision

EVENTS = ("RunPodSandbox", "CreateContainer", "StartContainer", "StopPodSandbox", "RemovePodSandbox")
"""Calls of the runtime about pods. The page shows them with 0 before the first call, so that Prometheus sees the first
increase. It also shows 0 for the calls of the kubelet and of hooks, and for error codes."""
KUBELET_CALLS = ("NodePrepareResources", "NodeUnprepareResources", "Allocate")
HOOKS = ("precreate", "createRuntime", "poststop")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSource:
    """The functions and counters from which the page is made. None of them blocks."""

    tally: Tally
    view: Callable[[], View]
    health: Callable[[], str]
    """Returns the reason why the daemon does not serve pods; "" while it does."""
    reload_error: Callable[[], str]
    driver: Callable[[], Mapping[str, Any] | None]
    """Returns the state of the DRA driver as the fields of DriverView; None if no pool serves claims."""
    traces: Callable[[], Mapping[str, Any] | None]
    """Returns how many spans were sent to a collector of traces, as the fields of ExportCounts; None if no spans are
    sent."""
    troubles: Callable[[], tuple[Mapping[str, str], ...]] = tuple
    """Returns the problems since the daemon's start, such as a missing permission, each as the fields of Trouble."""
    guards: Callable[[], Mapping[str, bool]] = dict
    """Returns, by runtime handler, whether its containers have the guard, an OCI hook that keeps a container from
    starting without its devices. A handler is left out if this is unknown."""


def measured_now(source: MetricsSource) -> Measured:
    """Return the present values of all metrics."""
    view, tally, troubles = source.view(), source.tally, source.troubles()
    tally.settle()
    return {
        "nri_rdma_build_info": {(__version__, revision()): 1},
        "nri_rdma_runtime_synchronized": {(): not source.health()},
        "nri_rdma_nri_requests_total": {**dict.fromkeys(product(EVENTS, CallOutcome), 0), **tally.event_counts},
        "nri_rdma_nri_request_duration_seconds": tally.events.histograms(),
        **_calls("nri_rdma_kubelet_request", tally.kubelet_calls, product(KUBELET_CALLS, _ASKING)),
        **_calls("nri_rdma_hook_request", tally.hook_calls, product(HOOKS, _ASKING)),
        "nri_rdma_step_duration_seconds": tally.steps.histograms(),
        "nri_rdma_refusals_total": {(code,): view.refused_by_code.get(code, 0) for code in ErrorCode},
        **_of_devices(view),
        **_of_pods(view),
        **_of_driver(source.driver()),
        "nri_rdma_guarded": {(handler,): has for handler, has in source.guards().items()},
        "nri_rdma_guard_resource_served": _guard_resource(view),
        "nri_rdma_configuration_refused": {(): bool(source.reload_error())},
        "nri_rdma_troubles": {(part,): sum(it["part"] == part for it in troubles) for part in Part},
        "nri_rdma_network_namespaces_held": {(): view.namespaces_held},
        "nri_rdma_spans_total": _spans(source.traces()),
    }


_ASKING = (CallOutcome.DONE, CallOutcome.REFUSED, CallOutcome.FAILED)


def _calls(name: str, durations: Durations, known: Iterator[Labels]) -> Measured:
    found = durations.histograms()
    counts = dict.fromkeys(known, 0) | {labels: it.count for labels, it in found.items()}
    return {f"{name}s_total": counts, f"{name}_duration_seconds": found}


def _of_devices(view: View) -> Measured:
    devices = {device.id: device for device in view.node.devices}
    held = {device_id for device_id, holders in view.taken.items() if not all(it.looks_on for it in holders)}
    uses = Counter(
        {"free": 0, "in_use": 0, "in_pods": len(held & devices.keys()), "missing": len(held - devices.keys())}
    )
    uses.update("in_use" if it.uses else "free" for device_id, it in devices.items() if device_id not in held)
    by_pool = offer(view.policy, view.node).by_pool
    shares = {
        pool.name: view.shares.counted(pool, by_pool[pool.name]) for pool in view.policy.pools.values() if pool.resource
    }
    return {
        "nri_rdma_devices": {(state,): count for state, count in uses.items()},
        "nri_rdma_pool_devices": {(name,): len(found) for name, found in by_pool.items()},
        "nri_rdma_pool_shares": {(name,): has for name, (has, _) in shares.items()},
        "nri_rdma_pool_shares_given": {(name,): given for name, (_, given) in shares.items()},
    }


def _of_pods(view: View) -> Measured:
    states = Counter(it.shown for it in view.attachments)
    attached = {it.pod.sandbox_id for it in view.attachments if it.shown is Phase.ATTACHED}
    return {
        "nri_rdma_attachments": {(phase,): states[phase] for phase in Phase if phase is not Phase.GONE},
        "nri_rdma_attached_pods": {(): len(attached)},
        "nri_rdma_attachments_failing_to_return": {(): sum(bool(it.now.undo_error) for it in view.attachments)},
        "nri_rdma_lost_netdevs_total": {(): view.lost_count},
        "nri_rdma_unserved_pods": {(): len(view.unserved)},
    }


def _of_driver(driver: Mapping[str, Any] | None) -> Measured:
    if driver is None:
        return {}
    return {
        "nri_rdma_published_devices": {(): driver["published"]["devices"]},
        "nri_rdma_publishing_failing": {(): bool(driver["published"]["error"])},
        "nri_rdma_claims": {(state,): count for state, count in driver["claims"].items()},
    }


def _guard_resource(view: View) -> Mapping[Labels, float]:
    known = view.shares.of_guard
    return {} if known is None else {(): view.shares.are_guarded and not known.error}


def _spans(traces: Mapping[str, Any] | None) -> Mapping[Labels, float]:
    return {} if traces is None else {(outcome,): traces[outcome] for outcome in ("exported", "dropped", "failed")}

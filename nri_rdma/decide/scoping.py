"""Finds the containers for a request that names none: those to which the kubelet allocated devices, if it reports
any."""

from __future__ import annotations

from dataclasses import replace

from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.request import DeviceRequest, Scope


def scoped(request: DeviceRequest, allocation: PodAllocation | None) -> DeviceRequest:
    """Return the request for only the containers to which the kubelet allocated devices, if its author wrote a single
    word (a number like ``"1"``, or a pool's name). The sidecar of a GPU job, to which nothing is allocated, then gets
    no NIC. If the kubelet reports no allocation, or the author wrote more, the request stays unchanged."""
    named = _named(request, allocation)
    return replace(request, scope=Scope(only=named, but=request.scope.but)) if named else request


def scope_words(request: DeviceRequest, allocation: PodAllocation | None) -> str:
    """Return a text that says which containers get the devices, and by which rule."""
    name = request.name or request.where
    if request.scope.only is not None:
        return f"{name}: the containers it names"
    named = _named(request, allocation)
    if named:
        return f"{name}: the containers to which the kubelet gave devices: {', '.join(sorted(named))}"
    return f"{name}: every container"


def _named(request: DeviceRequest, allocation: PodAllocation | None) -> frozenset[str]:
    if not request.word or request.scope.only is not None or allocation is None:
        return frozenset()
    return allocation.named - request.scope.but

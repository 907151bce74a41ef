"""Finds keys of a request that contradict its mode, exclusive or shared, on every node."""

from __future__ import annotations

from nri_rdma.errors import RequestError
from nri_rdma.model.request import DeviceRequest, Isolation, Mode
from nri_rdma.text.refusals import refused


def interface_misfit(request: DeviceRequest, mode: Mode) -> RequestError | None:
    """Return the error for a request that configures its netdev although the mode is shared: the netdev then stays on
    the host. Returns None if the request fits the mode."""
    if mode is Mode.EXCLUSIVE:
        return None
    if not request.interface.is_empty:
        what = "in mode shared the netdev stays on the host, so that the pod cannot set its name, MTU or addresses"
        return refused(f"{request.where}.interface", what, "remove interface, or ask for mode: exclusive")
    asked = {"routes": request.routes, "rules": request.rules, "neighbors": request.neighbours}
    for key, value in (*asked.items(), ("ethtool", request.ethtool.features or request.ethtool.private_flags)):
        if value:
            what = f"in mode shared the netdev stays on the host, so that the pod cannot set {key} of it"
            return refused(f"{request.where}.{key}", what, f"remove {key}, or ask for mode: exclusive")
    return None


def isolation_misfit(request: DeviceRequest, mode: Mode) -> RequestError | None:
    """Return the error for a request that demands hard isolation although the mode is shared: other pods then see the
    devices. Returns None if the request fits the mode."""
    if mode is Mode.EXCLUSIVE or request.isolation is Isolation.SOFT:
        return None
    what = "a device in mode shared cannot be hidden from other pods"
    return refused(f"{request.where}.isolation", what, "ask for mode: exclusive, or isolation: soft")

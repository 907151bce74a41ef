"""Finds keys of a request that contradict its mode, exclusive or shared, on every node."""

from __future__ import annotations

from collections.abc import Iterator

from nri_rdma.errors import RequestError
from nri_rdma.model.request import DeviceRequest, Isolation, Mode
from nri_rdma.text.refusals import refused


def misfits(request: DeviceRequest, mode: Mode) -> Iterator[RequestError]:
    """Yield an error for each way in which a request contradicts the mode. In mode shared the netdev stays on the host
    and cannot be configured for the pod, and other pods see the device."""
    if mode is Mode.EXCLUSIVE:
        return
    if not request.interface.is_empty:
        what = "in mode shared the netdev stays on the host, so that the pod cannot set its name, MTU or addresses"
        yield refused(f"{request.where}.interface", what, "remove interface, or ask for mode: exclusive")
    asked = {"routes": request.routes, "rules": request.rules, "neighbors": request.neighbours}
    for key, value in (*asked.items(), ("ethtool", request.ethtool.features or request.ethtool.private_flags)):
        if value:
            what = f"in mode shared the netdev stays on the host, so that the pod cannot set {key} of it"
            yield refused(f"{request.where}.{key}", what, f"remove {key}, or ask for mode: exclusive")
    if request.isolation is Isolation.HARD:
        what = "a device in mode shared cannot be hidden from other pods"
        yield refused(f"{request.where}.isolation", what, "ask for mode: exclusive, or isolation: soft")

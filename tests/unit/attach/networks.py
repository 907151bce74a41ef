"""Networks of requests, for tests of the attach: every operation that a key takes is in one of them."""

from __future__ import annotations

from dataclasses import replace

from nri_rdma.model.reach import Reach
from nri_rdma.model.request import DeviceRequest
from nri_rdma.text.annotations import PREFIX, parse_pod_request

_SETTINGS = """
  gsoMaxSize: 60000
  groMaxSize: 61000
  disableEbpfPrograms: true
  forwarding: true
  arpIgnore: 8
  arpAnnounce: 2
  enableIPv6: true
"""
_PARTED = """
routes:
- {destination: 10.20.0.0/16, gateway: 10.9.0.9}
- {destination: 10.21.0.0/16, gateway: 10.9.1.9, metric: 5, mtu: 1400}
- {destination: 10.22.0.0/16, gateway: 10.9.2.9, table: 100}
- {destination: 10.60.0.0/16, type: blackhole}
- {destination: 'fd60::/32', type: unreachable, table: 100}
neighbors:
- {destination: 10.9.0.9, hardwareAddr: '02:00:5e:10:00:01'}
- {destination: 10.9.1.9, hardwareAddr: '02:00:5e:10:00:02'}
"""
_RULES = """
rules:
- {priority: 100, table: 100}
- {priority: 100, source: 10.9.0.0/16, table: 100}
- {priority: 100, source: 10.9.0.0/16, fwmark: 1, table: 100}
- {priority: 101, table: 254, iif: lo, suppressPrefixLength: 0}
"""
_NO_VRF = f"interface:{_SETTINGS}{_PARTED}{_RULES}ethtool: {{features: {{tx-tcp-segmentation: false}}}}\n"
_IN_VRF = f"interface:{_SETTINGS}  vrf: {{name: red, table: 100}}\n{_PARTED.replace(', table: 100', '')}"


def networks(devices: int, *, vrf: bool = True) -> tuple[DeviceRequest | None, ...]:
    """None, one of everything but a VRF, and one with a VRF, for so many devices (at most three)."""
    addresses = ", ".join(f"[10.9.{number}.2/24, 'fd09:{number}::2/64']" for number in range(3))
    texts = [
        text.replace("interface:", f"count: 3\ninterface:\n  addresses: [{addresses}]", 1)
        for text in (_NO_VRF, _IN_VRF)
    ]
    asked = [parse_pod_request({PREFIX: text}) for text in (texts if vrf else texts[:1])]
    return (None, *(_for(pod.requests[0], devices) for pod in asked if pod is not None))


def _for(request: DeviceRequest, devices: int) -> DeviceRequest:
    """The same for fewer devices: what is for the others is left out."""
    every = request.interface.addresses
    mine = range(devices)
    return replace(
        request,
        count=devices,
        interface=replace(request.interface, addresses=every[:devices]),
        routes=tuple(it for it in request.routes if not it.is_over_netdev or Reach(every).netdev_of_route(it) in mine),
        neighbours=tuple(it for it in request.neighbours if Reach(every).netdev_of_neighbour(it.destination) in mine),
    )

"""Parsers for the text of a captured address, route or neighbour (nri_rdma.model.link.Captured)."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address, ip_interface, ip_network

from nri_rdma.model.link import Captured
from nri_rdma.model.network import MAIN_TABLE, IpAddress, IpNetwork, RouteConfig
from nri_rdma.model.routing import IpInterface

_KERNEL = "2"
"""RTPROT_KERNEL, include/uapi/linux/rtnetlink.h."""


@dataclass(frozen=True, slots=True)
class CarriedAddress:
    """An address of a link. `own` is the address with its prefix length. `network` is its network, or that of its peer
    if it has one. `has_no_route`: the kernel adds no route to `network` (noprefixroute). `is_hosts`: the address is
    valid on this host only (scope host)."""

    own: IpInterface
    network: IpNetwork
    has_no_route: bool
    is_hosts: bool = False


@dataclass(frozen=True, slots=True)
class CarriedRoute:
    """A route over a link, outside the table `local`. `is_kernels`: the kernel added the route with an address, and
    removes both together."""

    route: RouteConfig
    is_onlink: bool
    is_kernels: bool


def carried_address(thing: Captured) -> CarriedAddress | None:
    """Parse the text of an address, such as ``10.0.0.1/24 peer 10.0.0.1 scope 0 flags 0x80``. Return None if it is not
    an IP address."""
    own, *words = thing.text.split()
    said = _pairs(words)
    try:
        interface = ip_interface(own)
        peer = ip_interface(f"{said.get('peer', str(interface.ip))}/{interface.network.prefixlen}")
    except ValueError:
        return None
    flags = int(said.get("flags", "0"), 16)
    return CarriedAddress(interface, peer.network, bool(flags & _NO_PREFIX_ROUTE), said.get("scope") == _SCOPE_HOST)


def carried_route(thing: Captured) -> CarriedRoute | None:
    """Parse the text of a route, such as ``10.1.0.0/16 type 1 proto 3 scope 0 tos 0 onlink via 10.0.0.9 table 254``.
    Return None if it is not an IP route (MPLS, say)."""
    destination, *words = thing.text.split()
    network = _network(destination)
    if network is None:
        return None
    is_onlink = "onlink" in words
    said = _pairs([word for word in words if word != "onlink"])
    return CarriedRoute(
        RouteConfig(
            destination=network,
            gateway=_address(said.get("via")),
            source=_address(said.get("src")),
            table=int(said.get("table", MAIN_TABLE)),
            metric=int(said.get("metric", 0)),
        ),
        is_onlink,
        said.get("proto") == _KERNEL,
    )


_SCOPE_HOST = "254"
"""RT_SCOPE_HOST, include/uapi/linux/rtnetlink.h."""
_NO_PREFIX_ROUTE = 0x200
"""IFA_F_NOPREFIXROUTE, include/uapi/linux/if_addr.h."""


def neighbour_version(thing: Captured) -> int:
    """Return the IP version of a neighbour, from its text such as ``neighbour 10.0.0.9 lladdr 02:00:00:00:00:99``; 0 if
    it is not IP."""
    address = _address(thing.text.split()[1])
    return address.version if address is not None else 0


def _pairs(words: list[str]) -> dict[str, str]:
    return dict(zip(words[::2], words[1::2], strict=False))


def _network(text: str) -> IpNetwork | None:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def _address(text: str | None) -> IpAddress | None:
    try:
        return ip_address(text) if text is not None else None
    except ValueError:  # of a family that is not IP
        return None

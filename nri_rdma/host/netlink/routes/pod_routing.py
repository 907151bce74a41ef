"""Reads how a network namespace routes packets: a pod's namespace before a netdev moves into it, and the default routes
of the host's namespace."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_address, ip_network

from nri_rdma.attach.port import KernelError
from nri_rdma.host.kernel_file import read_text
from nri_rdma.host.netlink.namespaces.proc_sys import NET
from nri_rdma.host.netlink.restore.link_contents import AddressMessage, carried_interface, read_addresses
from nri_rdma.host.netlink.routes.routes import Route, read_all_routes
from nri_rdma.host.netlink.routes.rules import read_rules
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.model.network import IpAddress, RouteConfig
from nri_rdma.model.routing import LOCAL_TABLE, SHARED_TABLES, IpInterface, Routing

_IP_BYTES = (4, 16)
_DISABLE_IPV6 = f"{NET}/ipv6/conf/default/disable_ipv6"


def read_routing(route: RouteSocket) -> Routing:
    """Return rules, addresses and routes of the namespace that the calling thread is in. Raises KernelError if the
    kernel refuses a query, and WireError for a malformed message."""
    return replace(
        _routing(route, read_addresses(route), _of_tables(read_all_routes())),
        has_ipv6=_has_ipv6(),
    )


def routing_of_defaults(route: RouteSocket, addresses: Iterable[AddressMessage], routes: Iterable[Route]) -> Routing:
    """Return the default routes in routing tables that only some packets use, with all rules and addresses of the
    namespace. `routes` are the namespace's routes, and `addresses` its addresses.

    If there is no such default route, the result is empty, and the kernel is not asked for rules. Raises KernelError if
    the kernel refuses that query, and WireError for a malformed message.
    """
    own = [it for it in routes if it.default_links and it.table_number not in SHARED_TABLES and not it.is_cached]
    return _routing(route, addresses, own) if own else Routing()


def _routing(route: RouteSocket, messages: Iterable[AddressMessage], found: Iterable[Route]) -> Routing:
    addresses: dict[int, list[IpInterface]] = {}
    for message in messages:
        if len(message.own) in _IP_BYTES:
            addresses.setdefault(message.ifindex, []).append(carried_interface(message))
    routes: dict[int, list[RouteConfig]] = {}
    for it in found:
        for link in (it.paths | {it.link}) - {0}:
            routes.setdefault(link, []).append(_config(it))
    return Routing(
        rules=read_rules(route),
        addresses={link: tuple(own) for link, own in addresses.items()},
        routes={link: tuple(own) for link, own in routes.items()},
    )


def _of_tables(routes: Iterable[Route]) -> Iterable[Route]:
    return (it for it in routes if it.table_number != LOCAL_TABLE and not it.is_cached)


def _config(route: Route) -> RouteConfig:
    return RouteConfig(
        destination=ip_network(route.destination, strict=False),
        gateway=_address(route.gateway),
        table=route.table_number,
        metric=route.metric,
    )


def _address(packed: bytes) -> IpAddress | None:
    return ip_address(packed) if len(packed) in _IP_BYTES else None


def _has_ipv6() -> bool:
    try:
        return read_text(_DISABLE_IPV6) == "0"
    except FileNotFoundError:
        return False  # a kernel without IPv6
    except OSError as error:
        raise KernelError(f"read {_DISABLE_IPV6}", error.errno or 0) from error

"""The real kernel behind attach.port.Kernel.

Netdev moves hold RTNL with two synchronize_net and an rcu_barrier each (15 ms a device and more): they never run
side by side here, because they would only queue in the kernel and stall every CNI plugin meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface
from typing import Any, TypeVar  # Any: pyroute2's keyword arguments

from nri_rdma.attach.port import Captured, KernelError, LinkState, Namespace
from nri_rdma.netlink.namespace import HeldNamespace, HostNamespace, in_namespace, read_boot_id
from nri_rdma.netlink.rtnl import (
    IPRoute,
    NetlinkError,
    Replayer,
    captured_address,
    captured_neighbour,
    captured_route,
    default_route_targets,
    link_state,
    route_link,
)

T = TypeVar("T")


class LinuxKernel:
    """Links of this machine. Safe for use by several threads; all calls block."""

    def __init__(self) -> None:
        self._boot_id = read_boot_id()
        self._host = HostNamespace(boot_id=self._boot_id)
        self._moves = threading.Lock()

    @property
    def host(self) -> HeldNamespace:
        return self._host

    def open_namespace(self, path: str) -> HeldNamespace:
        namespace = HeldNamespace(path, boot_id=self._boot_id)
        namespace.is_host = namespace.identity.cookie == self._host.identity.cookie
        return namespace

    def links(self, namespace: Namespace) -> tuple[LinkState, ...]:
        return self._in(namespace, "list links", lambda ip: tuple(link_state(message) for message in ip.get_links()))

    def default_route_links(self) -> frozenset[int]:
        return self._in(
            self._host,
            "list routes",
            lambda ip: frozenset().union(*(default_route_targets(route) for route in ip.get_routes())),
        )

    def capture(self, namespace: Namespace, ifindex: int) -> LinkState:
        return self._in(namespace, f"read link {ifindex}", lambda ip: _capture(ip, ifindex))

    def move_link(self, source: Namespace, ifindex: int, target: Namespace, name: str) -> None:
        fd = _held(target).fd
        with self._moves:
            self._in(
                source,
                f"move link {ifindex} to {target.identity.path} as {name}",
                lambda ip: ip.link("set", index=ifindex, net_ns_fd=fd, ifname=name),
            )

    def set_link(
        self,
        namespace: Namespace,
        ifindex: int,
        *,
        name: str | None = None,
        mtu: int | None = None,
        mac: str | None = None,
        txqlen: int | None = None,
        alias: str | None = None,
        up: bool | None = None,
    ) -> None:
        wanted: dict[str, Any] = {
            "ifname": name,
            "mtu": mtu,
            "address": mac,
            "txqlen": txqlen,
            "ifalias": alias,
            "state": None if up is None else ("up" if up else "down"),
        }
        changes = {key: value for key, value in wanted.items() if value is not None}
        what = ", ".join(f"{key} {value}" for key, value in changes.items())
        self._in(namespace, f"set link {ifindex}: {what}", lambda ip: ip.link("set", index=ifindex, **changes))

    def set_alt_names(
        self, namespace: Namespace, ifindex: int, *, add: tuple[str, ...], remove: tuple[str, ...]
    ) -> None:
        if not add and not remove:
            return

        def change(ip: IPRoute) -> None:
            for name in remove:
                ip.link("property_del", index=ifindex, altname=name)
            for name in add:
                ip.link("property_add", index=ifindex, altname=name)

        self._in(namespace, f"set alternative names of link {ifindex}", change)

    def add_address(self, namespace: Namespace, ifindex: int, address: IPv4Interface | IPv6Interface) -> None:
        self._in(
            namespace,
            f"add address {address} to link {ifindex}",
            lambda ip: ip.addr("add", index=ifindex, address=str(address.ip), prefixlen=address.network.prefixlen),
        )

    def replay(self, namespace: Namespace, ifindex: int, thing: Captured) -> None:
        def send() -> None:
            with Replayer() as replayer:
                replayer.restore(thing, ifindex)

        _visit(namespace, f"restore {thing.text}", send)

    def remove(self, namespace: Namespace, ifindex: int, thing: Captured) -> None:
        def send() -> None:
            with Replayer() as replayer:
                replayer.remove(thing, ifindex)

        _visit(namespace, f"remove {thing.text}", send)

    def _in(self, namespace: Namespace, operation: str, work: Callable[[IPRoute], T]) -> T:
        def with_socket() -> T:
            with IPRoute() as ip:
                return work(ip)

        return _visit(namespace, operation, with_socket)


def _visit(namespace: Namespace, operation: str, work: Callable[[], T]) -> T:
    try:
        return in_namespace(_held(namespace).fd, work)
    except NetlinkError as error:
        raise KernelError(operation, error.code, str(error.args[-1])) from error
    except OSError as error:
        raise KernelError(operation, error.errno or 0, error.strerror or "") from error


def _held(namespace: Namespace) -> HeldNamespace:
    if not isinstance(namespace, HeldNamespace):
        raise TypeError("a namespace of another kernel")
    return namespace


def _capture(ip: IPRoute, ifindex: int) -> LinkState:
    (message,) = tuple(ip.get_links(ifindex))
    link = link_state(message)
    addresses = tuple(
        captured for address in ip.get_addr(index=ifindex) if (captured := captured_address(address)) is not None
    )
    routes = [
        captured
        for route in ip.get_routes()
        if route_link(route) == ifindex and (captured := captured_route(route)) is not None
    ]
    # What the kernel made comes first: the routes of people lead through connected ones.
    routes.sort(key=lambda route: (not route.kernel_made, _has_gateway(route)))
    neighbours = tuple(
        captured
        for neighbour in ip.get_neighbours(ifindex=ifindex)
        if neighbour["ifindex"] == ifindex and (captured := captured_neighbour(neighbour)) is not None
    )
    return replace(link, addresses=addresses, routes=tuple(routes), neighbours=neighbours)


def _has_gateway(route: Captured) -> bool:
    return " gateway " in f" {route.text} "

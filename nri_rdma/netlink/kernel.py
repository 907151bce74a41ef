"""The real kernel behind attach.port.Kernel.

Netdev moves hold RTNL with two synchronize_net and an rcu_barrier each (15 ms a device and more): they never run
side by side here, because they would only queue in the kernel and stall every CNI plugin meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface
from typing import Any, TypeVar  # Any: pyroute2's keyword arguments

from nri_rdma.attach.port import KernelError, Namespace, Survey
from nri_rdma.model.device import CharKind, RdmaNetns
from nri_rdma.model.link import Captured, LinkState
from nri_rdma.model.nldev import CharNumber, RdmaDeviceState, RdmaNetdevs, RdmaObject, RdmaPortState
from nri_rdma.model.usage import HostUse, Lifelines
from nri_rdma.netlink.holders import holders_of, read_holders
from nri_rdma.netlink.hostuse import host_use, read_host_use
from nri_rdma.netlink.namespace import HeldNamespace, in_namespace, read_boot_id
from nri_rdma.netlink.rdma import RdmaSocket, can_move, read_netdevs, visit
from nri_rdma.netlink.replay import Replayer
from nri_rdma.netlink.routes import Route, captured_routes, read_routes, unreturnable
from nri_rdma.netlink.rtnl import (
    IPRoute,
    Message,
    NetlinkError,
    captured_address,
    captured_neighbour,
    link_state,
    own_address,
)

T = TypeVar("T")
_NO_LIFELINES = Lifelines()


class LinuxKernel:
    """Links and RDMA devices of this machine. Safe for use by several threads; all calls block."""

    def __init__(self, host_path: str = "/proc/self/ns/net", lifelines: Lifelines = _NO_LIFELINES) -> None:
        """`host_path` names the namespace that counts as the host's; by default the one this process started in."""
        self._boot_id = read_boot_id()
        self._host = HeldNamespace(host_path, boot_id=self._boot_id)
        self._host.is_host = True
        self._moves = threading.Lock()
        self._lifelines = lifelines

    @property
    def host(self) -> HeldNamespace:
        return self._host

    def open_namespace(self, path: str) -> HeldNamespace:
        namespace = HeldNamespace(path, boot_id=self._boot_id)
        namespace.is_host = namespace.identity.cookie == self._host.identity.cookie
        return namespace

    def links(self, namespace: Namespace) -> tuple[LinkState, ...]:
        return self._in(namespace, "list links", lambda ip: tuple(link_state(message) for message in ip.get_links()))

    def host_use(self) -> HostUse:
        return _visit(self._host, "read the host's links", lambda: read_host_use(self._lifelines))

    def survey(self, ifindexes: Collection[int]) -> Survey:
        return self._in(self._host, "read the host's links", lambda ip: _survey(ip, ifindexes, self._lifelines))

    def capture(self, namespace: Namespace, ifindex: int) -> LinkState:
        def read(ip: IPRoute) -> LinkState:
            (message,) = tuple(ip.get_links(ifindex))
            (link,), _ = _capture(ip, (link_state(message),))
            return link

        return self._in(namespace, f"read link {ifindex}", read)

    def move_link(self, source: Namespace, ifindex: int, target: Namespace, name: str, *, as_ifindex: int = 0) -> None:
        number = {"new_ifindex": as_ifindex} if as_ifindex else {}
        fd = _held(target).fd
        with self._moves:
            self._in(
                source,
                f"move link {ifindex} to {target.identity.path} as {name}",
                lambda ip: ip.link("set", index=ifindex, net_ns_fd=fd, ifname=name, **number),
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

    def set_settings(self, namespace: Namespace, ifindex: int, settings: tuple[tuple[str, int], ...]) -> None:
        def send() -> None:
            with Replayer() as replayer:
                replayer.set_settings(ifindex, settings)

        what = ", ".join(f"{name} {value}" for name, value in settings)
        _visit(namespace, f"set link {ifindex}: {what}", send)

    def detach_xdp(self, namespace: Namespace, ifindex: int) -> None:
        def send() -> None:
            with Replayer() as replayer:
                replayer.detach_xdp(ifindex)

        _visit(namespace, f"detach XDP from link {ifindex}", send)

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

    def rdma_netns(self) -> RdmaNetns:
        return visit(self._host.fd, "read rdmaNetns", RdmaSocket.netns_mode)

    def rdma_devices(self, namespace: Namespace) -> tuple[RdmaDeviceState, ...]:
        return visit(_held(namespace).fd, "list RDMA devices", RdmaSocket.devices)

    def rdma_netdevs(self) -> tuple[RdmaNetdevs, ...]:
        """The host's RDMA devices with the netdevs that they have on the host."""
        return visit(self._host.fd, "list the netdevs of RDMA devices", read_netdevs)

    def rdma_ports(self, namespace: Namespace, index: int) -> tuple[RdmaPortState, ...]:
        return visit(_held(namespace).fd, f"list ports of RDMA device {index}", lambda rdma: rdma.ports(index))

    def rdma_objects(self, index: int) -> tuple[RdmaObject, ...]:
        return visit(self._host.fd, f"list the objects of RDMA device {index}", lambda rdma: holders_of(rdma, index))

    def rdma_holders(self) -> Mapping[int, tuple[RdmaObject, ...]]:
        """`rdma_objects` of all RDMA devices of the host, by index."""
        return visit(self._host.fd, "list the objects of RDMA devices", read_holders)

    def can_move_rdma(self, index: int, target: Namespace) -> bool:
        return can_move(self._host.fd, index, _held(target).fd)

    def move_rdma(self, source: Namespace, index: int, target: Namespace) -> None:
        fd = _held(target).fd
        visit(_held(source).fd, f"move RDMA device {index}", lambda rdma: rdma.move(index, fd))

    def rename_rdma(self, namespace: Namespace, index: int, name: str) -> None:
        visit(_held(namespace).fd, f"rename RDMA device {index}", lambda rdma: rdma.rename(index, name))

    def char_device(
        self, namespace: Namespace, index: int | None, kind: CharKind, port: int | None
    ) -> CharNumber | None:
        return visit(_held(namespace).fd, f"find {kind}", lambda rdma: rdma.char_device(index, kind, port))

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


def _survey(ip: IPRoute, ifindexes: Collection[int], lifelines: Lifelines) -> Survey:
    links = tuple(link_state(message) for message in ip.get_links())
    captured, routes = _capture(ip, [link for link in links if link.ifindex in ifindexes])
    return Survey(use=host_use(links, routes, lifelines), captured={link.ifindex: link for link in captured})


def _capture(ip: IPRoute, links: Collection[LinkState]) -> tuple[tuple[LinkState, ...], tuple[Route, ...]]:
    """The links with what they carry, and the routes that were read for it, default ones among them."""
    indexes = {link.ifindex for link in links}
    addresses = [message for message in ip.get_addr() if message["index"] in indexes] if indexes else []
    routes = read_routes(indexes, {own_address(message) for message in addresses})
    return tuple(_whole(ip, link, addresses, routes) for link in links), routes


def _whole(ip: IPRoute, link: LinkState, addresses: Collection[Message], routes: Collection[Route]) -> LinkState:
    ifindex = link.ifindex
    own = [message for message in addresses if message["index"] == ifindex]
    neighbours = tuple(
        captured
        for neighbour in ip.get_neighbours(ifindex=ifindex)
        if neighbour["ifindex"] == ifindex and (captured := captured_neighbour(neighbour)) is not None
    )
    return replace(
        link,
        addresses=tuple(captured for address in own if (captured := captured_address(address)) is not None),
        routes=captured_routes(routes, ifindex),
        neighbours=neighbours,
        unreturnable=unreturnable(ifindex, {own_address(message) for message in own}, routes),
    )

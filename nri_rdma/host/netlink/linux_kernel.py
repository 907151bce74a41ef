"""The implementation of attach.port.Kernel for the real Linux kernel.

rtnetlink requests go through a socket that was opened in the namespace; for other requests the calling thread enters
the namespace for a moment (module namespace). Each move of a netdev holds the kernel's RTNL lock for 15 ms and more
(two synchronize_net and an rcu_barrier). Moves therefore never run in parallel here: they would only queue in the
kernel, and stall every CNI plugin meanwhile.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from nri_rdma.attach.ops import Op
from nri_rdma.attach.port import KernelError, Namespace, Refused, Survey
from nri_rdma.host.netlink import codec
from nri_rdma.host.netlink.hostuse import HostReader, read_programs, with_sockets
from nri_rdma.host.netlink.links.ethtool import EthtoolSocket
from nri_rdma.host.netlink.links.link_state import (
    empty_request,
    move_request,
    parse_link,
    parse_readable,
    read_link,
    read_links,
)
from nri_rdma.host.netlink.links.lost_by_move import Carried, read_carried
from nri_rdma.host.netlink.links.sysctls import (
    costs_of_return,
    forwarding_of,
    read_sysctls,
)
from nri_rdma.host.netlink.links.tcx import read_tcx
from nri_rdma.host.netlink.links.ties import hangs_on
from nri_rdma.host.netlink.namespaces.handed import HandedNamespaces
from nri_rdma.host.netlink.namespaces.namespace import (
    HeldNamespace,
    OpenCounts,
    OpenNamespaces,
    asked,
    held,
    inside,
    read_boot_id,
)
from nri_rdma.host.netlink.namespaces.proc_sys import mount_unseen
from nri_rdma.host.netlink.qos.dcb import read_dcb
from nri_rdma.host.netlink.qos.disciplines import read_queues
from nri_rdma.host.netlink.rdma.holders import holders_of, read_holders
from nri_rdma.host.netlink.rdma.subsystem import RdmaSocket, can_move, read_netdevs, visit
from nri_rdma.host.netlink.restore.link_contents import (
    AddressMessage,
    captured_addresses,
    read_addresses,
    read_neighbours,
)
from nri_rdma.host.netlink.routes.pod_routing import read_routing
from nri_rdma.host.netlink.routes.routes import Route, captured_routes, read_routes, read_routes_of, unreturnable
from nri_rdma.host.netlink.routes.rules import read_rules
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.host.sysfs.gids import read_gids
from nri_rdma.model.device import CharKind, EbpfPrograms, RdmaNetns
from nri_rdma.model.gid import Gid
from nri_rdma.model.link import LinkState
from nri_rdma.model.nldev import CharNumber, RdmaDeviceState, RdmaNetdevs, RdmaObject, RdmaPortState
from nri_rdma.model.routing import KnownRule, Routing
from nri_rdma.model.usage import HostUse, Lifelines

T = TypeVar("T")
_NO_LIFELINES = Lifelines()


class LinuxKernel:
    """Reads and changes the links and RDMA devices of this machine. Safe for use by several threads; all calls
    block."""

    def __init__(
        self,
        host_path: str = "/proc/self/ns/net",
        lifelines: Lifelines = _NO_LIFELINES,
        *,
        is_as_read: Callable[[], bool] = lambda: False,
        sysfs: Path = Path("/sys"),
    ) -> None:
        """Open the host's network namespace. Raises KernelError if it cannot be opened.

        `host_path` names the namespace that counts as the host's, by default the one in which this process started.
        `is_as_read` returns whether the host's links are unchanged since `host_use` last read them.
        """
        self._boot_id = read_boot_id()
        self._open = OpenNamespaces()
        self.handed = HandedNamespaces()
        """Maps paths of namespaces to descriptors that another process has sent. A namespace with a descriptor here is
        opened by it, because the daemon may lack the right to open the path."""
        self._host = self._hold(host_path, are_sockets_kept=False)
        self._host.is_host = True
        self._moves = threading.Lock()
        self._is_as_read = is_as_read
        self._sysfs = sysfs
        self._host_reader = HostReader(lifelines)
        self._may_change_links: bool | None = None

    @property
    def host(self) -> HeldNamespace:
        return self._host

    def held(self) -> OpenCounts:
        """Return the numbers of open namespaces and of sockets in them, the host's namespace included."""
        return self._open.count()

    def open_namespace(self, path: str) -> HeldNamespace:
        namespace = self._hold(path)
        try:
            namespace.is_host = namespace.is_at(self._host)
        except BaseException:
            namespace.close()
            raise
        return namespace

    def _hold(self, path: str, *, are_sockets_kept: bool = True) -> HeldNamespace:
        return HeldNamespace(
            path,
            boot_id=self._boot_id,
            open_namespaces=self._open,
            handed=self.handed,
            are_sockets_kept=are_sockets_kept,
        )

    def links(self, namespace: Namespace) -> tuple[LinkState, ...]:
        parse = self._host_reader.readable if namespace is self._host else parse_readable
        return asked(namespace, "list links", lambda route: parse(read_links(route)))

    def link(self, namespace: Namespace, ifindex: int) -> LinkState | None:
        def read(route: RouteSocket) -> LinkState | None:
            message = _message(route, ifindex)
            return parse_link(message) if message is not None else None

        return asked(namespace, f"read link {ifindex}", read)

    def hangs_on(self, namespace: Namespace, ifindex: int, link: LinkState) -> bool:
        return hangs_on(self._host, held(namespace), ifindex, link)

    def has_bus_device(self, parent: str) -> bool:
        bus, _, name = parent.partition("/")
        return (self._sysfs / "bus" / bus / "devices" / name).exists()

    def host_use(self, netdevs: Collection[str] = ()) -> HostUse:
        return inside(self._host, "read the host's links", lambda route: self._host_reader.read(route, netdevs))

    def programs(self, ifindexes: Collection[int]) -> Mapping[int, EbpfPrograms]:
        """Return the eBPF programs on these links of the host, by ifindex; links without programs are left out. Raises
        KernelError if the kernel refuses a query."""
        return inside(self._host, "list eBPF programs", lambda route: read_programs(read_queues(route, ifindexes)))

    def survey(self, ifindexes: Collection[int], *, sockets: bool = False) -> Survey:
        def look(route: RouteSocket) -> Survey:
            remembered = self._host_reader.remembered(route, ifindexes) if self._is_as_read() else None
            survey = remembered or self._host_reader.survey(route, ifindexes)
            return replace(survey, use=with_sockets(survey.use)) if sockets else survey

        return inside(self._host, "read the host's links", look)

    def capture(
        self, namespace: Namespace, ifindexes: Collection[int], *, unreturnable: bool = False
    ) -> Mapping[int, LinkState]:
        wanted = frozenset(ifindexes)
        read = _capture_returnable if unreturnable else _capture
        return inside(namespace, f"read links {sorted(wanted)}", lambda route: read(route, wanted))

    def rules(self, namespace: Namespace) -> tuple[KnownRule, ...]:
        return asked(namespace, "list rules", read_rules)

    def routing(self, namespace: Namespace) -> Routing:
        return inside(namespace, "read how the pod routes", read_routing)

    def may_change_links(self) -> bool:
        if self._may_change_links is None:  # asked once: the process's rights do not grow
            self._may_change_links = self._ask_for_links()
        return self._may_change_links

    def _ask_for_links(self) -> bool:
        request = empty_request()
        try:
            asked(self._host, request.operation, lambda route: route.do(request))
        except KernelError as error:  # ENODEV means permitted: the kernel checks rights first (rtnetlink_rcv_msg)
            return error.errno != errno.EPERM
        return True

    def move_link(self, source: Namespace, ifindex: int, target: Namespace, name: str, *, as_ifindex: int = 0) -> None:
        operation = f"move link {ifindex} to {target.identity.path} as {name}"
        with self._moves, held(target).descriptor() as fd:
            request = move_request(ifindex, fd, name, as_ifindex, operation)
            asked(source, operation, lambda route: route.do(request))

    def apply(self, namespace: Namespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
        return codec.apply(held(namespace), index, ops)

    def rdma_netns(self) -> RdmaNetns:
        return visit(self._host, "read the RDMA netns mode", RdmaSocket.netns_mode)

    def rdma_devices(self, namespace: Namespace) -> tuple[RdmaDeviceState, ...]:
        return visit(held(namespace), "list RDMA devices", RdmaSocket.devices)

    def rdma_netdevs(self) -> tuple[RdmaNetdevs, ...] | None:
        """Return the host's RDMA devices, each with its netdevs that are on the host now; None if the kernel has no
        RDMA subsystem."""
        return visit(self._host, "list the netdevs of RDMA devices", read_netdevs)

    def rdma_ports(self, namespace: Namespace, index: int) -> tuple[RdmaPortState, ...]:
        return visit(held(namespace), f"list ports of RDMA device {index}", lambda rdma: rdma.ports(index))

    def gid_tables(
        self, namespace: Namespace, ports: Collection[tuple[str, int]], gap: int
    ) -> Mapping[tuple[str, int], tuple[Gid, ...]]:
        if namespace is self._host:
            return _gid_tables(str(self._sysfs), ports, gap)
        try:
            mounted = held(namespace).run(partial(mount_unseen, b"sysfs"))
        except OSError as error:
            raise KernelError("mount a sysfs of the pod", error.errno or 0, error.strerror or "") from error
        try:
            return _gid_tables(f"/proc/self/fd/{mounted}", ports, gap)
        finally:
            os.close(mounted)

    def rdma_objects(self, index: int) -> tuple[RdmaObject, ...]:
        return visit(self._host, f"list the objects of RDMA device {index}", lambda rdma: holders_of(rdma, index))

    def rdma_holders(self) -> Mapping[int, tuple[RdmaObject, ...]]:
        """Return the RDMA objects that show who uses each RDMA device of the host, by the device's index. Raises
        KernelError if the kernel does not list the devices."""
        return visit(self._host, "list the objects of RDMA devices", read_holders)

    def can_move_rdma(self, index: int, target: Namespace) -> bool:
        return can_move(self._host, index, held(target))

    def move_rdma(self, source: Namespace, index: int, target: Namespace) -> None:
        with held(target).descriptor() as fd:
            visit(held(source), f"move RDMA device {index}", lambda rdma: rdma.move(index, fd))

    def char_device(
        self, namespace: Namespace, index: int | None, kind: CharKind, port: int | None
    ) -> CharNumber | None:
        return visit(held(namespace), f"find {kind}", lambda rdma: rdma.char_device(index, kind, port))


def _gid_tables(
    sysfs_root: str, ports: Collection[tuple[str, int]], gap: int
) -> Mapping[tuple[str, int], tuple[Gid, ...]]:
    tables = {(device, port): read_gids(sysfs_root, device, port, gap) for device, port in ports}
    return {place: table for place, table in tables.items() if table is not None}


def _capture(route: RouteSocket, wanted: Collection[int]) -> Mapping[int, LinkState]:
    """Return these links, by ifindex, with everything that a move to another namespace takes from a link: addresses,
    routes, neighbours, settings and so on."""
    return _wholes(route, _messages(route, wanted), lambda ifindex: read_addresses(route, ifindex), read_routes_of)


def _messages(route: RouteSocket, wanted: Collection[int]) -> Mapping[int, bytes]:
    """Return the kernel's message of each link, by ifindex, without links that do not exist. Each link is queried on
    its own, because a busy host has hundreds of links."""
    return {ifindex: message for ifindex in wanted if (message := _message(route, ifindex)) is not None}


def _message(route: RouteSocket, ifindex: int) -> bytes | None:
    try:
        return read_link(route, ifindex)
    except KernelError as error:
        if error.errno == errno.ENODEV:
            return None
        raise


def _capture_returnable(route: RouteSocket, wanted: Collection[int]) -> Mapping[int, LinkState]:
    """Return these links, by ifindex, with everything that a move to another namespace takes from a link, and with the
    reasons why the host could not restore it fully."""
    messages = _messages(route, wanted)
    addresses = {ifindex: read_addresses(route, ifindex) for ifindex in messages}
    routes = read_routes(messages.keys(), {address.own for found in addresses.values() for address in found})
    return _wholes(route, messages, lambda ifindex: addresses[ifindex], lambda _ifindex: routes)


def _wholes(
    route: RouteSocket,
    messages: Mapping[int, bytes],
    addresses_of: Callable[[int], Collection[AddressMessage]],
    routes_of: Callable[[int], Collection[Route]],
) -> Mapping[int, LinkState]:
    """Return the links of `messages` (the kernel's messages by ifindex), with everything that a move to another
    namespace takes from a link. `addresses_of` and `routes_of` return the addresses and routes of the link with an
    ifindex.

    What the kernel can report for all links in one answer, such as qdiscs, is read only once.
    """
    if not messages:
        return {}
    carried = read_carried(route, messages.keys())
    with EthtoolSocket() as ethtool:
        return {
            ifindex: _whole(route, ethtool, message, addresses_of(ifindex), routes_of(ifindex), carried[ifindex])
            for ifindex, message in messages.items()
        }


def _whole(
    route: RouteSocket,
    ethtool: EthtoolSocket,
    message: bytes,
    addresses: Collection[AddressMessage],
    routes: Collection[Route],
    carried: Carried,
) -> LinkState:
    link = parse_link(message)
    sysctls = read_sysctls(message, link.name, carried.neighbour_table)
    own = {address.own for address in addresses}
    shown = ethtool.show(link.ifindex)
    return replace(
        link,
        addresses=captured_addresses(addresses),
        routes=captured_routes(routes, link.ifindex),
        neighbours=read_neighbours(route, link.ifindex),
        queues=carried.queues.captured,
        forwarding=carried.forwarding,
        sysctls=sysctls,
        features=shown.features,
        fixed_features=shown.fixed_features,
        tuning=shown.tuning,
        private_flags=shown.private_flags,
        dcb=read_dcb(route, link.name),
        tcx=read_tcx(link.ifindex),
        unreturnable=(
            *unreturnable(link.ifindex, own, routes),
            *carried.next_hops,
            *costs_of_return(forwarding_of(message), routes),
            *carried.queues.unreturnable,
        ),
    )

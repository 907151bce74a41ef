"""A kernel that keeps state and can fail: links, addresses, routes and RDMA devices of the host and of namespaces.

`World` is the machine, `FakeKernel` one process's view of it (its descriptors close when it dies), `FaultyKernel` a
view of any kernel that fails at its n-th operation. tests/contract holds FakeKernel to what Linux does; where kernels
differ it is the strictest: no renaming and no new MAC while a link is up.
"""

import errno
import pickle
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any, Self, TypeVar

from nri_rdma.attach.ops import (
    AddAddress,
    AddAltName,
    AddNeighbour,
    AddRejectRoute,
    AddRoute,
    AddRule,
    DetachTcx,
    DetachXdp,
    DropAltName,
    DropVrf,
    Inherit,
    JoinVrf,
    Op,
    Remove,
    RemoveRejectRoute,
    RemoveRule,
    RenameRdma,
    Restore,
    SetFeatures,
    SetLink,
    SetPrivateFlags,
    SetSettings,
    SetSysctl,
    SetTuning,
)
from nri_rdma.attach.port import Kernel, KernelError, Namespace, NamespaceError, NamespaceIdentity, Refused, Survey
from nri_rdma.model.device import CharKind, RdmaNetns
from nri_rdma.model.gid import Gid
from nri_rdma.model.link import STABLE_SECRET, Captured, LinkState, features_text, sysctls_text
from nri_rdma.model.network import RouteConfig, RoutingRule
from nri_rdma.model.nldev import CharNumber, RdmaDeviceState, RdmaObject, RdmaPortState
from nri_rdma.model.routing import KnownRule, Routing
from nri_rdma.model.usage import HostSocket, HostUse, Lifelines

T = TypeVar("T")
LINK_LOCAL = IPv6Network("fe80::/64")
_DEFAULT_SETTINGS = {
    "flags": 0x1000,
    "linkmode": 0,
    "broadcast": 0xFFFFFFFFFFFF,
    "group": 0,
    "gso_max_size": 65536,
    "gro_max_size": 65536,
    "gso_ipv4_max_size": 65536,
    "gro_ipv4_max_size": 65536,
    "addr_gen_mode": 0,
}


_DEFAULT_SYSCTLS = {
    "ipv4/conf/arp_announce": "0",
    "ipv4/conf/arp_ignore": "0",
    "ipv4/conf/forwarding": "0",
    "ipv4/conf/rp_filter": "0",
    "ipv4/neigh/base_reachable_time_ms": "30000",
    "ipv6/conf/accept_ra": "1",
    "ipv6/conf/disable_ipv6": "0",
    "ipv6/conf/forwarding": "0",
    "ipv6/conf/mtu": "1500",
}
"""Some; the last one follows the link's MTU."""

_KERNELS_RULES = tuple(
    RoutingRule(version=version, priority=priority, table=table)
    for version, priority, table in ((4, 0, 255), (4, 32766, 254), (4, 32767, 253), (6, 0, 255), (6, 32766, 254))
)

_DEFAULT_FEATURES = {"tx-checksum-ip-generic": True, "tx-gso-partial": False, "tx-tcp-segmentation": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """An address of a link; `secondary` is the kernel's doing."""

    interface: IPv4Interface | IPv6Interface
    label: str = ""
    no_prefix_route: bool = False
    secondary: bool = False
    kernel_made: bool = False

    @property
    def text(self) -> str:
        """In the grammar of the real kernel's text (nri_rdma.model.carried)."""
        flags = 0x200 * self.no_prefix_route | 0x01 * self.secondary
        words = [str(self.interface), f"peer {self.interface.ip}", f"flags {flags:#x}"]
        words += [f"label {self.label}"] if self.label else []
        return " ".join([*words, *(["proto 3"] if self.kernel_made else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of the link that holds it; a connected one is the kernel's."""

    to: IPv4Network | IPv6Network
    via: IPv4Address | IPv6Address | None = None
    src: IPv4Address | IPv6Address | None = None
    metric: int = 0
    table: int = 254
    onlink: bool = False
    connected: bool = False
    more: str = ""
    """What else it says, in words."""

    @property
    def text(self) -> str:
        """In the grammar of the real kernel's text (nri_rdma.model.carried)."""
        words = [str(self.to), f"proto {2 if self.connected else 3}", "onlink" if self.onlink else ""]
        words += [f"via {self.via}" if self.via else "", f"src {self.src}" if self.src else ""]
        words += [f"metric {self.metric}", f"table {self.table}", self.more]
        return " ".join(filter(None, words))


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A permanent neighbour."""

    address: IPv4Address | IPv6Address
    mac: str

    @property
    def text(self) -> str:
        return f"neighbour {self.address} lladdr {self.mac}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queueing discipline, or a class: one with a minor number."""

    kind: str
    handle: str
    parent: str = "root"
    options: str = ""

    @property
    def is_class(self) -> bool:
        return not self.handle.endswith(":")

    @property
    def qdisc(self) -> str:
        """The handle of the discipline that it is, or is a class of."""
        return self.handle.partition(":")[0] + ":"

    @property
    def text(self) -> str:
        return f"{self.kind} {self.handle} parent {self.parent} {self.options}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarding:
    """A hardware address that somebody had the link listen to."""

    mac: str

    @property
    def text(self) -> str:
        return f"forwarding {self.mac}"


@dataclass(slots=True, kw_only=True)
class Link:
    """A link in some namespace."""

    ifindex: int
    name: str
    mac: str
    kind: str = "veth"
    parent: str = ""
    permanent_mac: str = ""
    mtu: int = 1500
    txqlen: int = 1000
    alias: str = ""
    alt_names: list[str] = field(default_factory=list)
    up: bool = False
    master: int = 0
    lower: int = 0
    xdp: bool = False
    tcx: tuple[int, ...] = ()
    """Ids of the programs that are attached by TCX."""
    vrf_table: int = 0
    peer: int = 0
    """What a virtual link hangs on, by a number that nothing else has."""
    settings: dict[str, int] = field(default_factory=lambda: dict(_DEFAULT_SETTINGS))
    sysctls: dict[str, str] = field(default_factory=lambda: dict(_DEFAULT_SYSCTLS))
    features: dict[str, bool] = field(default_factory=lambda: dict(_DEFAULT_FEATURES))
    tuning: dict[str, int] = field(default_factory=lambda: {"ring rx": 1024, "channels combined": 8})
    private_flags: dict[str, bool] = field(default_factory=lambda: {"rx cqe moderation": False, "legacy-rx": True})
    dcb: str = ""
    queues: list[Queue] = field(default_factory=list)
    forwarding: list[Forwarding] = field(default_factory=list)
    addresses: list[Address] = field(default_factory=list)
    routes: list[Route] = field(default_factory=list)
    neighbours: list[Neighbour] = field(default_factory=list)
    unreturnable: tuple[str, ...] = ()

    @property
    def names(self) -> set[str]:
        """What nobody else in its namespace may be called."""
        return {self.name, *self.alt_names}

    def lose_sysctls(self) -> None:
        """As a link that is new in its namespace has them."""
        self.sysctls = _DEFAULT_SYSCTLS | {"ipv6/conf/mtu": str(self.mtu)}

    def raise_up(self) -> None:
        """What happens by itself then: connected routes, a link-local address."""
        if self.up:
            return
        self.up = True
        self.sysctls["ipv6/conf/mtu"] = str(self.mtu)
        if self.settings["addr_gen_mode"] == 0:
            self.add_address(Address(interface=_link_local(self.mac), kernel_made=True))
        for address in self.addresses:
            self._connect(address)

    def take_down(self) -> None:
        """IPv4 addresses stay."""
        self.up = False
        self.routes.clear()
        self.addresses = [address for address in self.addresses if address.interface.version == 4]

    def add_address(self, address: Address) -> None:
        """Add it unless it is there."""
        if any(it.interface == address.interface for it in self.addresses):
            raise KernelError("add address", errno.EEXIST)
        siblings = [it for it in self.addresses if it.interface.network == address.interface.network]
        secondary = address.interface.version == 4 and bool(siblings)
        label = address.label or (self.name if address.interface.version == 4 else "")
        self.addresses.append(replace(address, secondary=secondary, label=label))
        if self.up:
            self._connect(self.addresses[-1])

    def remove_address(self, address: Address) -> None:
        """A primary IPv4 address takes its secondary ones along; routes from it and to its network go too."""
        network = address.interface.network
        gone = [it for it in self.addresses if it.interface == address.interface]
        if not address.secondary and address.interface.version == 4:
            gone += [it for it in self.addresses if it.secondary and it.interface.network == network]
        self.addresses = [it for it in self.addresses if it not in gone]
        sources = {it.interface.ip for it in gone}
        left = {it.interface.network for it in self.addresses}
        self.routes = [
            route
            for route in self.routes
            if route.src not in sources and not (route.connected and route.to == network and network not in left)
        ]

    def add_route(self, route: Route) -> None:
        """Refused when the link is down, the gateway not reached, the source not ours."""
        if not self.up:
            raise KernelError("add route", errno.ENETDOWN)
        if route in self.routes:
            raise KernelError("add route", errno.EEXIST)
        self.refuse_unreached(route)
        if route.src is not None and route.src not in {it.interface.ip for it in self.addresses}:
            raise KernelError("add route", errno.EINVAL)
        self.routes.append(route)

    def refuse_unreached(self, route: Route) -> None:
        """A gateway is reached over a route without one."""
        if not self.up:
            raise KernelError("add route", errno.ENETDOWN)
        direct = (it for it in self.routes if it.via is None and not it.more.startswith("nexthop"))
        if route.via and not route.onlink and not any(route.via in it.to for it in direct):
            raise KernelError("add route", errno.ENETUNREACH)

    def add_queue(self, queue: Queue) -> None:
        """Refused without what it stands in, and where one of its handle or in its place is."""
        handles, places = {it.handle for it in self.queues}, {it.parent for it in self.queues if not it.is_class}
        if queue.handle in handles or (not queue.is_class and queue.parent in places):
            raise KernelError("add queue", errno.EEXIST)
        needed = {queue.parent, *([queue.qdisc] if queue.is_class else [])} - {"root", "ingress"}
        if not needed <= handles:
            raise KernelError("add queue", errno.ENOENT)
        self.queues.append(queue)

    def remove_queue(self, queue: Queue) -> None:
        """With all that stands in it."""
        gone = {queue.handle}
        for it in self.queues:  # parents come first
            if it.parent in gone or (it.is_class and it.qdisc in gone):
                gone.add(it.handle)
        self.queues = [it for it in self.queues if it.handle not in gone]

    def _connect(self, address: Address) -> None:
        network = address.interface.network
        if address.no_prefix_route or address.secondary or network.prefixlen == network.max_prefixlen:
            return
        source = address.interface.ip if address.interface.version == 4 else None
        metric = 256 if address.interface.version == 6 else 0
        route = Route(to=network, src=source, metric=metric, connected=True)
        if route not in self.routes:
            self.routes.append(route)


@dataclass(slots=True, kw_only=True)
class Rdma:
    """An RDMA device; without a parent it is a soft one, which dies with its namespace."""

    index: int
    name: str
    netns: "Netns"
    minor: int
    node_guid: str = ""
    parent: str = ""
    movable: bool = True
    netdev: "Link | None" = None
    objects: tuple[RdmaObject, ...] = ()
    gids: tuple[Gid, ...] | None = None
    """The GIDs of its port; None: it shows no table."""


@dataclass(slots=True, kw_only=True)
class Netns:
    """A network namespace; it lives while it has a path or an open descriptor."""

    cookie: int
    links: dict[int, Link] = field(default_factory=dict)
    paths: set[str] = field(default_factory=set)
    descriptors: int = 0
    last_ifindex: int = 1
    rules: list[RoutingRule] = field(default_factory=list)
    rejects: list[RouteConfig] = field(default_factory=list)
    has_ipv6: bool = True

    def new_ifindex(self) -> int:
        """The next number that is free."""
        self.last_ifindex += 1
        while self.last_ifindex in self.links:
            self.last_ifindex += 1
        return self.last_ifindex

    def refuse_double(self, route: RouteConfig) -> None:
        """The kernel has a destination once in a table, with one metric, wherever it leads."""
        metric = _metric(route)
        over_links = {(it.to, it.table, it.metric) for link in self.links.values() for it in link.routes}
        nowhere = {(it.destination, it.table, _metric(it)) for it in self.rejects}
        if (route.destination, route.table, metric) in over_links | nowhere:
            raise KernelError("add route", errno.EEXIST)

    def taken_names(self) -> set[str]:
        """All names and alternative names."""
        return {name for link in self.links.values() for name in link.names}


class World:
    """The machine."""

    def __init__(self, boot_id: str = "boot-1") -> None:
        self.boot_id = boot_id
        self.host = Netns(cookie=1, paths={"/proc/self/ns/net"})
        self._namespaces = [self.host]
        self._last_cookie = 1
        self.rdma_netns = RdmaNetns.NONE
        self.rdma: list[Rdma] = []
        self._last_minor = 191
        self._last_peer = 0
        self.bus_devices: set[str] = set()
        self.sockets: list[HostSocket] = []
        self.lifelines = Lifelines()
        self.may_change_links = True

    def namespace(self, path: str) -> Netns | None:
        """The namespace at a path."""
        return next((netns for netns in self._namespaces if path in netns.paths), None)

    def add_namespace(self, path: str) -> Netns:
        """A new one."""
        self._last_cookie += 1
        self._namespaces.append(Netns(cookie=self._last_cookie, paths={path}))
        return self._namespaces[-1]

    def remove_namespace(self, path: str) -> None:
        """The path goes; the namespace with it, unless somebody holds it open."""
        netns = self.namespace(path)
        assert netns is not None
        netns.paths.discard(path)
        self.bury(netns)

    def add_link(self, netns: Netns, name: str, **fields: Any) -> Link:
        """A new link; its MAC comes from its number."""
        ifindex = int(fields.pop("ifindex", 0)) or netns.new_ifindex()
        mac = fields.pop("mac", f"02:00:00:00:{netns.cookie:02x}:{ifindex:02x}")
        if fields.get("kind", "veth") and not fields.get("parent"):
            self._last_peer += 1
            fields.setdefault("peer", self._last_peer)
        self.bus_devices |= {fields.get("parent", "")} - {""}
        netns.links[ifindex] = Link(ifindex=ifindex, name=name, mac=mac, **fields)
        netns.links[ifindex].lose_sysctls()
        return netns.links[ifindex]

    def add_rdma(self, name: str, **fields: Any) -> Rdma:
        """A new RDMA device of the host."""
        device = Rdma(index=len(self.rdma) + 1, name=name, netns=self.host, minor=self.new_minor(), **fields)
        self.bus_devices |= {f"pci/{device.parent.removeprefix('pci/')}"} if device.parent else set()
        self.rdma.append(device)
        return device

    def unplug(self, parent: str) -> None:
        """A device of a bus is removed from the machine, with all that it has."""
        self.bus_devices.remove(parent)
        self.rdma = [it for it in self.rdma if f"pci/{it.parent.removeprefix('pci/')}" != parent]
        for netns in self._namespaces:
            for link in [it for it in netns.links.values() if it.parent == parent]:
                del netns.links[link.ifindex]

    def new_minor(self) -> int:
        """The number of a character device that nobody had before."""
        self._last_minor += 1
        return self._last_minor

    def bury(self, netns: Netns) -> None:
        """End a namespace that nothing refers to: virtual links die, physical ones go to the host."""
        if netns.paths or netns.descriptors or netns not in self._namespaces:
            return
        self._namespaces.remove(netns)
        self.rdma = [device for device in self.rdma if device.netns is not netns or device.parent]
        for device in self.rdma:
            if device.netns is netns:
                device.netns, device.minor = self.host, self.new_minor()
        for link in [link for link in netns.links.values() if link.parent]:
            taken = self.host.taken_names()
            link.name = f"dev{link.ifindex}" if link.name in taken else link.name
            link.alt_names = [name for name in link.alt_names if name not in taken]
            put(link, self.host, link.ifindex if link.ifindex not in self.host.links else self.host.new_ifindex())

    def snapshot(self) -> dict[int | str, tuple[object, ...]]:
        """All that the host has, to be compared; order counts for nothing. Links by number, RDMA devices by name; and
        the rules of every namespace."""
        links: dict[int | str, tuple[object, ...]] = {link.ifindex: _shown(link) for link in self.host.links.values()}
        devices = {it.name: (it.name, it.index, it.node_guid) for it in self.rdma if it.netns is self.host}
        return links | devices | {f"rules of {it.cookie}": tuple(it.rules) for it in self._namespaces if it.rules}

    @property
    def held(self) -> int:
        """Descriptors of namespaces other than the host's."""
        return sum(netns.descriptors for netns in self._namespaces if netns is not self.host)


def put(link: Link, target: Netns, ifindex: int) -> None:
    """What every move does: all configuration of the link in its namespace is lost."""
    link.take_down()
    link.addresses.clear()
    link.neighbours.clear()
    link.queues.clear()
    link.forwarding.clear()
    link.ifindex, link.master = ifindex, 0
    link.settings["addr_gen_mode"] = 0
    link.lose_sysctls()
    target.links[ifindex] = link


class FakeNamespace:
    """An open descriptor, and the socket in it from the first call until it rests."""

    def __init__(self, world: World, netns: Netns, path: str) -> None:
        self._world = world
        self.netns = netns
        self.is_open = True
        self.has_socket = True
        self.identity = NamespaceIdentity(boot_id=world.boot_id, cookie=netns.cookie, path=path)
        netns.descriptors += 1

    @property
    def is_host(self) -> bool:
        return self.netns is self._world.host

    @property
    def is_at_its_path(self) -> bool:
        return self.identity.path in self.netns.paths

    def keeping(self) -> AbstractContextManager[None]:
        return nullcontext()

    def rest(self) -> None:
        self.has_socket = False

    def close(self) -> None:
        if self.is_open:
            self.is_open = self.has_socket = False
            self.netns.descriptors -= 1
            self._world.bury(self.netns)


class FakeKernel:
    """One process's view of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._opened: list[FakeNamespace] = []
        self.host: Namespace = FakeNamespace(world, world.host, "/proc/self/ns/net")

    def die(self) -> None:
        """The process ends: what it had open closes."""
        for namespace in self._opened:
            namespace.close()

    @property
    def sockets(self) -> int:
        """The sockets that are open in namespaces of pods."""
        return sum(it.has_socket for it in self._opened)

    def open_namespace(self, path: str) -> Namespace:
        netns = self._world.namespace(path)
        if netns is None:
            raise NamespaceError(f"open the network namespace {path}", errno.ENOENT)
        self._opened.append(FakeNamespace(self._world, netns, path))
        return self._opened[-1]

    def link(self, namespace: Namespace, ifindex: int) -> LinkState | None:
        found = _netns(namespace).links.get(ifindex)
        return _state(found, whole=False) if found is not None else None

    def links(self, namespace: Namespace) -> tuple[LinkState, ...]:
        return tuple(_state(link, whole=False) for link in tuple(_netns(namespace).links.values()))

    def hangs_on(self, namespace: Namespace, ifindex: int, link: LinkState) -> bool:
        return not link.peer or _link(namespace, ifindex).peer == link.peer

    def has_bus_device(self, parent: str) -> bool:
        return parent in self._world.bus_devices

    def host_use(self, netdevs: Collection[str] = ()) -> HostUse:
        links = tuple(self._world.host.links.values())  # other threads move links meanwhile
        addresses = {link.ifindex: frozenset(it.interface.ip for it in link.addresses) for link in links}
        api_server = self._world.lifelines.api_server
        return HostUse(
            links=tuple(
                replace(_state(link, whole=False), unreturnable=link.unreturnable if link.name in netdevs else ())
                for link in links
            ),
            default_route_links=frozenset(link.ifindex for link in links if {254} & _default_tables(link)),
            routing=self._routing_of_defaults(),
            addresses={ifindex: own for ifindex, own in addresses.items() if own},
            networks={
                link.ifindex: tuple(str(it.interface) for it in link.addresses) for link in links if link.addresses
            },
            sockets=tuple(self._world.sockets),
            lifelines=self._world.lifelines,
            api_server_links=_links_to(links, api_server) if api_server is not None else frozenset(),
        )

    def _routing_of_defaults(self) -> Routing:
        links = tuple(self._world.host.links.values())
        if not any(_default_tables(link) - {254} for link in links):
            return Routing()
        whole = self.routing(self.host)
        own = {
            number: tuple(it for it in routes if not it.destination.prefixlen and it.table != 254)
            for number, routes in whole.routes.items()
        }
        return replace(whole, routes={number: routes for number, routes in own.items() if routes})

    def survey(self, ifindexes: Collection[int], *, sockets: bool = False) -> Survey:
        links, use = self._world.host.links, self.host_use()
        masters = {links[number].master for number in ifindexes if number in links}
        tied = tuple(
            link
            for link in use.links
            if link.ifindex in {*ifindexes, *masters} or link.master in ifindexes or link.lower in ifindexes
        )
        return Survey(
            use=replace(use, links=tied, sockets=use.sockets if sockets else ()),
            links={number: _bare(_state(links[number], whole=True)) for number in ifindexes if number in links},
        )

    def capture(
        self, namespace: Namespace, ifindexes: Collection[int], *, unreturnable: bool = False
    ) -> Mapping[int, LinkState]:
        links = _netns(namespace).links
        found = {number: _state(links[number], whole=True) for number in ifindexes if number in links}
        return found if unreturnable else {number: replace(it, unreturnable=()) for number, it in found.items()}

    def rules(self, namespace: Namespace) -> tuple[KnownRule, ...]:
        return tuple(KnownRule(rule=it) for it in (*_KERNELS_RULES, *_netns(namespace).rules))

    def routing(self, namespace: Namespace) -> Routing:
        netns = _netns(namespace)
        return Routing(
            rules=self.rules(namespace),
            addresses={
                link.ifindex: tuple(it.interface for it in link.addresses) for link in tuple(netns.links.values())
            },
            routes={
                link.ifindex: tuple(
                    RouteConfig(destination=it.to, gateway=it.via, table=it.table, metric=it.metric)
                    for it in link.routes
                )
                for link in tuple(netns.links.values())
            },
            has_ipv6=netns.has_ipv6,
        )

    def may_change_links(self) -> bool:
        return self._world.may_change_links

    def _refuse_powerless(self, operation: str) -> None:
        if not self._world.may_change_links:
            raise KernelError(operation, errno.EPERM)

    def move_link(self, source: Namespace, ifindex: int, target: Namespace, name: str, *, as_ifindex: int = 0) -> None:
        self._refuse_powerless("move link")
        link, there = _link(source, ifindex), _netns(target)
        taken = there.taken_names()
        if any(alt_name in taken for alt_name in link.alt_names) or (link.name in taken and name in taken):
            raise KernelError("move link", errno.EEXIST, name)
        if as_ifindex in there.links:
            raise KernelError("move link", errno.EBUSY, str(as_ifindex))
        here = _netns(source)
        here.links = {
            number: it for number, it in here.links.items() if number != ifindex and (it.lower != ifindex or it is link)
        }
        put(link, there, as_ifindex or (ifindex if ifindex not in there.links else there.new_ifindex()))
        if name in taken:  # Linux moves first
            raise KernelError("move link", errno.EEXIST, name)
        link.name = name

    def apply(self, namespace: Namespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
        refused = []
        for op in ops:
            try:
                self._refuse_powerless(op.describe())
                CHANGES[type(op)](self, namespace, index, op)
            except KernelError as error:
                refused.append(Refused(op=op, error=error))
        return tuple(refused)

    def rdma_netns(self) -> RdmaNetns:
        return self._world.rdma_netns

    def rdma_devices(self, namespace: Namespace) -> tuple[RdmaDeviceState, ...]:
        mode, netns = self._world.rdma_netns, _netns(namespace)
        if mode is RdmaNetns.NONE:
            return ()
        return tuple(_rdma_state(it) for it in self._world.rdma if mode is RdmaNetns.SHARED or it.netns is netns)

    def rdma_ports(self, namespace: Namespace, index: int) -> tuple[RdmaPortState, ...]:
        device, netns = self._rdma(namespace, index), _netns(namespace)
        name = device.netdev.name if device.netdev is not None else ""
        here = [link for link in netns.links.values() if link is device.netdev]
        return (
            RdmaPortState(
                netdev_index=here[0].ifindex if here else None,
                netdev_name=name if here else "",
            ),
        )

    def gid_tables(
        self, namespace: Namespace, ports: Collection[tuple[str, int]], gap: int
    ) -> Mapping[tuple[str, int], tuple[Gid, ...]]:
        mode, netns = self._world.rdma_netns, _netns(namespace)
        seen = {it.name: it.gids for it in self._world.rdma if mode is RdmaNetns.SHARED or it.netns is netns}
        return {(name, port): table for name, port in ports if (table := seen.get(name)) is not None}

    def rdma_objects(self, index: int) -> tuple[RdmaObject, ...]:
        return self._rdma(self.host, index).objects

    def can_move_rdma(self, index: int, target: Namespace) -> bool:
        if _netns(target) is self._world.host:
            raise KernelError("ask whether RDMA device can move", errno.EINVAL)
        return self._rdma(self.host, index).movable and self._world.rdma_netns is RdmaNetns.EXCLUSIVE

    def move_rdma(self, source: Namespace, index: int, target: Namespace) -> None:
        self._refuse_powerless("move RDMA device")
        device, there = self._rdma(source, index), _netns(target)
        if not device.movable or self._world.rdma_netns is not RdmaNetns.EXCLUSIVE:
            raise KernelError("move RDMA device", errno.EOPNOTSUPP)
        device.netns, device.minor = there, self._world.new_minor()

    def rename_rdma(self, namespace: Namespace, index: int, name: str) -> None:
        """What RenameRdma does."""
        device = self._rdma(namespace, index)
        if any(other.name == name for other in self._world.rdma if other is not device):
            raise KernelError("rename RDMA device", errno.EEXIST, name)
        device.name = name

    def char_device(
        self, namespace: Namespace, index: int | None, kind: CharKind, port: int | None
    ) -> CharNumber | None:
        if index is None:
            return CharNumber(name="rdma_cm", major=10, minor=120)
        minor = self._rdma(namespace, index).minor
        if kind is CharKind.ISSM:
            return None  # which the kernel says of every device, also of those that have one
        first = {CharKind.UVERBS: 192, CharKind.UMAD: 0}[kind]
        return CharNumber(name=f"{kind}{minor - 192}", major=231, minor=minor - 192 + first)

    def _rdma(self, namespace: Namespace, index: int) -> Rdma:
        if self._world.rdma_netns is RdmaNetns.NONE:
            raise KernelError("find RDMA device", errno.EPROTONOSUPPORT)
        netns, shared = _netns(namespace), self._world.rdma_netns is RdmaNetns.SHARED
        for device in self._world.rdma:
            if device.index == index and (shared or device.netns is netns):
                return device
        raise KernelError("find RDMA device", errno.EINVAL)


class CrashError(BaseException):
    """The process was killed here. Nothing of it runs any more: every later operation raises it again."""


class FaultyKernel:
    """Fails at its n-th operation, before or after it took effect; with `crash`, for ever."""

    def __init__(
        self, kernel: Kernel, *, fail_at: int = 0, after: bool = False, error: int = errno.ENOBUFS, crash: bool = False
    ) -> None:
        self._kernel = kernel
        self.fail_at = fail_at
        self._after = after
        self._error = error
        self._crash = crash
        self._dead = False
        self.operations = 0

    @classmethod
    def counting(cls, kernel: Kernel) -> Self:
        """One that does not fail."""
        return cls(kernel)

    @contextmanager
    def operation(self, name: str) -> Iterator[None]:
        """Anything that counts; the journal's operations may, too."""
        self.operations += 1
        now = self.operations == self.fail_at
        if self._dead or (now and not self._after):
            self._fail(name)
        yield
        if now and self._after:
            self._fail(name)

    def _fail(self, name: str) -> None:
        if self._crash:
            self._dead = True
            raise CrashError(name)
        raise KernelError(name, self._error, "injected")

    def _do(self, name: str, work: Callable[[], T]) -> T:
        with self.operation(name):
            return work()

    @property
    def host(self) -> Namespace:
        return self._kernel.host

    def open_namespace(self, path: str) -> Namespace:
        return self._kernel.open_namespace(path)  # not counted: a descriptor that nobody got would never be closed

    def links(self, namespace: Namespace) -> tuple[LinkState, ...]:
        return self._do("links", lambda: self._kernel.links(namespace))

    def link(self, namespace: Namespace, ifindex: int) -> LinkState | None:
        return self._do("link", lambda: self._kernel.link(namespace, ifindex))

    def hangs_on(self, namespace: Namespace, ifindex: int, link: LinkState) -> bool:
        return self._do("hangs_on", lambda: self._kernel.hangs_on(namespace, ifindex, link))

    def has_bus_device(self, parent: str) -> bool:
        return self._do("has_bus_device", lambda: self._kernel.has_bus_device(parent))

    def survey(self, ifindexes: Collection[int], *, sockets: bool = False) -> Survey:
        return self._do("survey", lambda: self._kernel.survey(ifindexes, sockets=sockets))

    def capture(
        self, namespace: Namespace, ifindexes: Collection[int], *, unreturnable: bool = False
    ) -> Mapping[int, LinkState]:
        return self._do("capture", lambda: self._kernel.capture(namespace, ifindexes, unreturnable=unreturnable))

    def rules(self, namespace: Namespace) -> tuple[KnownRule, ...]:
        return self._do("rules", lambda: self._kernel.rules(namespace))

    def routing(self, namespace: Namespace) -> Routing:
        return self._do("routing", lambda: self._kernel.routing(namespace))

    def may_change_links(self) -> bool:
        return self._do("may_change_links", self._kernel.may_change_links)

    def move_link(self, source: Namespace, ifindex: int, target: Namespace, name: str, *, as_ifindex: int = 0) -> None:
        self._do("move_link", lambda: self._kernel.move_link(source, ifindex, target, name, as_ifindex=as_ifindex))

    def apply(self, namespace: Namespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
        """Every operation counts for itself, and goes to the kernel by itself."""
        return tuple(refused for op in ops for refused in self._apply_one(namespace, index, op))

    def _apply_one(self, namespace: Namespace, index: int, op: Op) -> tuple[Refused, ...]:
        refused: tuple[Refused, ...] = ()
        try:
            with self.operation(op.describe()):
                refused = self._kernel.apply(namespace, index, (op,))
        except KernelError as error:
            return (*refused, Refused(op=op, error=error))
        return refused

    def rdma_netns(self) -> RdmaNetns:
        return self._do("rdma_netns", self._kernel.rdma_netns)

    def rdma_devices(self, namespace: Namespace) -> tuple[RdmaDeviceState, ...]:
        return self._do("rdma_devices", lambda: self._kernel.rdma_devices(namespace))

    def rdma_ports(self, namespace: Namespace, index: int) -> tuple[RdmaPortState, ...]:
        return self._do("rdma_ports", lambda: self._kernel.rdma_ports(namespace, index))

    def gid_tables(
        self, namespace: Namespace, ports: Collection[tuple[str, int]], gap: int
    ) -> Mapping[tuple[str, int], tuple[Gid, ...]]:
        return self._do("gid_tables", lambda: self._kernel.gid_tables(namespace, ports, gap))

    def rdma_objects(self, index: int) -> tuple[RdmaObject, ...]:
        return self._do("rdma_objects", lambda: self._kernel.rdma_objects(index))

    def can_move_rdma(self, index: int, target: Namespace) -> bool:
        return self._do("can_move_rdma", lambda: self._kernel.can_move_rdma(index, target))

    def move_rdma(self, source: Namespace, index: int, target: Namespace) -> None:
        self._do("move_rdma", lambda: self._kernel.move_rdma(source, index, target))

    def char_device(
        self, namespace: Namespace, index: int | None, kind: CharKind, port: int | None
    ) -> CharNumber | None:
        return self._do("char_device", lambda: self._kernel.char_device(namespace, index, kind, port))


def _on_link(change: Callable[[Netns, Link, Any], None]) -> Callable[[FakeKernel, Namespace, int, Any], None]:
    return lambda _kernel, namespace, ifindex, op: change(_netns(namespace), _link(namespace, ifindex), op)


def _set_link(netns: Netns, link: Link, op: SetLink) -> None:
    if link.up and (op.mac or op.name):
        raise KernelError("set link", errno.EBUSY)
    if op.mtu is not None and op.mtu < 68:
        raise KernelError("set link", errno.EINVAL, f"mtu {op.mtu}")
    link.mac = op.mac or link.mac
    if op.mtu is not None and op.mtu != link.mtu:
        link.mtu, link.sysctls["ipv6/conf/mtu"] = op.mtu, str(op.mtu)
    if op.name is not None and op.name != link.name:
        if op.name in netns.taken_names():
            raise KernelError("set link", errno.EEXIST, op.name)
        relabelled = [replace(it, label=op.name) if it.label == link.name else it for it in link.addresses]
        link.name, link.addresses = op.name, relabelled
    link.alias = op.alias if op.alias is not None else link.alias
    link.txqlen = op.txqlen if op.txqlen is not None else link.txqlen
    if op.up is not None:
        (link.raise_up if op.up else link.take_down)()


def _add_alt_name(netns: Netns, link: Link, op: AddAltName) -> None:
    if op.name in netns.taken_names():
        raise KernelError("add alternative name", errno.EEXIST, op.name)
    link.alt_names.append(op.name)


def _drop_alt_name(_netns: Netns, link: Link, op: DropAltName) -> None:
    if op.name not in link.alt_names:
        raise KernelError("remove alternative name", errno.ENOENT, op.name)
    link.alt_names.remove(op.name)


def _set_settings(_netns: Netns, link: Link, op: SetSettings) -> None:
    if dict(op.settings).get("addr_gen_mode") == 2 and STABLE_SECRET not in link.sysctls:
        raise KernelError("set link", errno.EINVAL, "no secret for stable addresses")
    link.settings.update(op.settings)


def _set_sysctl(_netns: Netns, link: Link, op: SetSysctl) -> None:
    if op.key not in _DEFAULT_SYSCTLS and op.key != STABLE_SECRET:
        raise KernelError("set sysctl", errno.ENOENT, op.key)
    link.sysctls[op.key] = op.value
    if op.key == STABLE_SECRET:
        link.settings["addr_gen_mode"] = 2


def _set_features(_netns: Netns, link: Link, op: SetFeatures) -> None:
    unknown = [name for name, _ in op.features if name not in link.features]
    if unknown:
        raise KernelError("set features", errno.EOPNOTSUPP, ", ".join(unknown))
    link.features.update(op.features)


def _set_private_flags(_netns: Netns, link: Link, op: SetPrivateFlags) -> None:
    unknown = [name for name, _ in op.flags if name not in link.private_flags]
    if unknown:
        raise KernelError("set private flags", errno.EOPNOTSUPP, ", ".join(unknown))
    link.private_flags.update(op.flags)


def _set_tuning(_netns: Netns, link: Link, op: SetTuning) -> None:
    unknown = [name for name, _ in op.sizes if name not in link.tuning]
    if unknown:
        raise KernelError("set tuning", errno.EOPNOTSUPP, ", ".join(unknown))
    link.tuning.update(op.sizes)


def _detach_xdp(_netns: Netns, link: Link, _op: DetachXdp) -> None:
    link.xdp = False


def _detach_tcx(_netns: Netns, link: Link, op: DetachTcx) -> None:
    link.tcx = tuple(it for it in link.tcx if it in op.keep)


def _join_vrf(netns: Netns, link: Link, op: JoinVrf) -> None:
    found = next((it for it in netns.links.values() if it.name == op.vrf.name), None)
    if found is None:
        number = op.vrf.ifindex or netns.new_ifindex()
        if number in netns.links:
            raise KernelError("make VRF", errno.EBUSY)
        found = Link(ifindex=number, name=op.vrf.name, mac="", kind="vrf", up=True, vrf_table=op.vrf.table, alias=_OURS)
        netns.links[number] = found
    if found.vrf_table != op.vrf.table:
        raise KernelError("join VRF", errno.EEXIST)
    link.master = found.ifindex


def _drop_vrf(netns: Netns, ifindex: int, op: DropVrf) -> None:
    found = next((it for it in netns.links.values() if (it.name, it.alias) == (op.vrf.name, _OURS)), None)
    inside = [it for it in netns.links.values() if found is not None and it.master == found.ifindex]
    if found is None or any(it.ifindex != ifindex for it in inside):
        return
    for link in inside:
        link.master = 0
    del netns.links[found.ifindex]


_OURS = "made by nri-rdma"


def _add_address(_netns: Netns, link: Link, op: AddAddress) -> None:
    link.add_address(Address(interface=op.address))


def _inherit(_netns: Netns, link: Link, op: Inherit) -> None:
    item = pickle.loads(op.brought.thing.raw)
    match item:
        case Address():
            alone = item.no_prefix_route or op.brought.is_alone
            link.add_address(Address(interface=item.interface, no_prefix_route=alone))
        case Route():
            source = None if op.brought.is_sourceless else item.src
            link.add_route(replace(item, src=source, table=op.brought.table or item.table))
        case Neighbour():
            if item in link.neighbours:
                raise KernelError("add neighbour", errno.EEXIST)
            link.neighbours.append(item)


def _restore(_netns: Netns, link: Link, op: Restore) -> None:
    item = pickle.loads(op.thing.raw)
    try:
        match item:
            case Address():
                link.add_address(item)
            case Route():
                link.add_route(item)
            case Neighbour() if item not in link.neighbours:
                link.neighbours.append(item)
            case Queue():
                link.add_queue(item)
            case Forwarding() if item not in link.forwarding:
                link.forwarding.append(item)
    except KernelError as error:
        if error.errno != errno.EEXIST:
            raise


def _remove(_netns: Netns, link: Link, op: Remove) -> None:
    item = pickle.loads(op.thing.raw)
    match item:
        case Address():
            link.remove_address(item)
        case Route() if item in link.routes:
            link.routes.remove(item)
        case Neighbour() if item in link.neighbours:
            link.neighbours.remove(item)
        case Queue() if item in link.queues:
            link.remove_queue(item)
        case Forwarding() if item in link.forwarding:
            link.forwarding.remove(item)


def _metric(route: RouteConfig) -> int:
    return route.metric or (1024 if route.destination.version == 6 else 0)


def _add_route(netns: Netns, link: Link, op: AddRoute) -> None:
    route = op.route
    if link.up:
        netns.refuse_double(route)
    more = [f"mtu {route.mtu}" if route.mtu else "", f"advmss {route.advmss}" if route.advmss else ""]
    more += (f"nexthop {hop.gateway} weight {hop.weight}" for hop in route.multipath)
    whole = Route(
        to=route.destination,
        via=route.gateway,
        src=route.source,
        metric=_metric(route),
        table=route.table,
        onlink=route.onlink,
        more=" ".join(filter(None, more)),
    )
    for gateway in route.gateways:
        link.refuse_unreached(replace(whole, via=gateway))
    link.add_route(whole)


def _add_neighbour(_netns: Netns, link: Link, op: AddNeighbour) -> None:
    others = [it for it in link.neighbours if it.address != op.neighbour.destination]
    link.neighbours = [*others, Neighbour(address=op.neighbour.destination, mac=op.neighbour.mac)]


def _add_reject(netns: Netns, op: AddRejectRoute) -> None:
    netns.refuse_double(op.route)
    netns.rejects.append(op.route)


def _remove_reject(netns: Netns, op: RemoveRejectRoute) -> None:
    netns.rejects = [it for it in netns.rejects if it != op.route]


def _add_rule(netns: Netns, op: AddRule) -> None:
    if op.rule in netns.rules:
        raise KernelError("add rule", errno.EEXIST)
    netns.rules.append(op.rule)


def _remove_rule(netns: Netns, op: RemoveRule) -> None:
    """The first that fits: a condition that the request does not name is any."""
    fitting = (it for it in netns.rules if _fits(it, op.rule))
    if (found := next(fitting, None)) is not None:
        netns.rules.remove(found)


def _fits(rule: RoutingRule, wanted: RoutingRule) -> bool:
    named = ("source", "destination", "fwmark", "iif", "oif")
    same = all(getattr(wanted, it) in {None, "", getattr(rule, it)} for it in named)
    return same and (rule.version, rule.priority, rule.table) == (wanted.version, wanted.priority, wanted.table)


def _of_namespace(change: Callable[[Netns, Any], None]) -> Callable[[FakeKernel, Namespace, int, Any], None]:
    return lambda _kernel, namespace, _ifindex, op: change(_netns(namespace), op)


CHANGES: Mapping[type[Op], Callable[[FakeKernel, Namespace, int, Any], None]] = {
    SetLink: _on_link(_set_link),
    AddAltName: _on_link(_add_alt_name),
    DropAltName: _on_link(_drop_alt_name),
    SetSettings: _on_link(_set_settings),
    SetSysctl: _on_link(_set_sysctl),
    SetFeatures: _on_link(_set_features),
    SetPrivateFlags: _on_link(_set_private_flags),
    SetTuning: _on_link(_set_tuning),
    DetachXdp: _on_link(_detach_xdp),
    DetachTcx: _on_link(_detach_tcx),
    JoinVrf: _on_link(_join_vrf),
    DropVrf: lambda _kernel, namespace, ifindex, op: _drop_vrf(_netns(namespace), ifindex, op),
    AddAddress: _on_link(_add_address),
    Inherit: _on_link(_inherit),
    Restore: _on_link(_restore),
    Remove: _on_link(_remove),
    AddRoute: _on_link(_add_route),
    AddNeighbour: _on_link(_add_neighbour),
    AddRejectRoute: _of_namespace(_add_reject),
    RemoveRejectRoute: _of_namespace(_remove_reject),
    AddRule: _of_namespace(_add_rule),
    RemoveRule: _of_namespace(_remove_rule),
    RenameRdma: lambda kernel, namespace, index, op: kernel.rename_rdma(namespace, index, op.name),
}
"""What each operation does to a link, or to an RDMA device."""


def _netns(namespace: Namespace) -> Netns:
    assert isinstance(namespace, FakeNamespace)
    if not namespace.is_open:
        raise KernelError("enter the network namespace", errno.EBADF)
    namespace.has_socket = True
    return namespace.netns


def _link(namespace: Namespace, ifindex: int) -> Link:
    link = _netns(namespace).links.get(ifindex)
    if link is None:
        raise KernelError("find the link", errno.ENODEV)
    return link


def _default_tables(link: Link) -> set[int]:
    return {it.table for it in link.routes if not it.to.prefixlen}


def _links_to(links: Collection[Link], address: IPv4Address | IPv6Address) -> frozenset[int]:
    """Where the narrowest of the main table's routes to an address leads."""
    fitting = [(route.to.prefixlen, link.ifindex) for link in links for route in link.routes if address in route.to]
    longest = max((prefix for prefix, _ in fitting), default=0)
    return frozenset(ifindex for prefix, ifindex in fitting if prefix == longest)


def _rdma_state(device: Rdma) -> RdmaDeviceState:
    return RdmaDeviceState(index=device.index, name=device.name, node_guid=device.node_guid)


def _link_local(mac: str) -> IPv6Interface:
    octets = bytes.fromhex(mac.replace(":", ""))
    eui64 = bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]
    return IPv6Interface((LINK_LOCAL.network_address.packed[:8] + eui64, 64))


@cache
def _captured(item: Address | Route | Neighbour | Queue | Forwarding, *, kernel_made: bool) -> Captured:
    return Captured(text=item.text, raw=pickle.dumps(item), kernel_made=kernel_made)


def _bare(state: LinkState) -> LinkState:
    nothing: tuple[Captured, ...] = ()
    return replace(
        state,
        addresses=nothing,
        routes=nothing,
        neighbours=nothing,
        queues=nothing,
        forwarding=nothing,
        sysctls="",
        features="",
        fixed_features="",
        tuning="",
        private_flags="",
        dcb="",
        tcx=None,
    )


def _state(link: Link, *, whole: bool) -> LinkState:
    bare = LinkState(
        ifindex=link.ifindex,
        name=link.name,
        kind=link.kind,
        parent=link.parent,
        permanent_mac=link.permanent_mac,
        mac=link.mac,
        mtu=link.mtu,
        txqlen=link.txqlen,
        alias=link.alias,
        alt_names=tuple(link.alt_names),
        up=link.up,
        master=link.master,
        lower=link.lower,
        xdp=link.xdp,
        peer=link.peer,
        settings=tuple(link.settings.items()),
    )
    if not whole:
        return bare
    routes = sorted(link.routes, key=lambda route: not route.connected)
    return replace(
        bare,
        addresses=tuple(_captured(it, kernel_made=it.kernel_made) for it in link.addresses),
        routes=tuple(_captured(it, kernel_made=it.connected and it.to == LINK_LOCAL) for it in routes),
        neighbours=tuple(_captured(it, kernel_made=False) for it in link.neighbours),
        queues=tuple(_captured(it, kernel_made=False) for it in link.queues),
        forwarding=tuple(_captured(it, kernel_made=False) for it in link.forwarding),
        private_flags=features_text(link.private_flags.items()),
        dcb=link.dcb,
        tcx=link.tcx,
        sysctls=sysctls_text(link.sysctls),
        features=features_text(link.features.items()),
        fixed_features="rx-lro off",
        tuning="\n".join(f"{name} {value}" for name, value in link.tuning.items()),
        unreturnable=link.unreturnable,
    )


def _shown(link: Link) -> tuple[object, ...]:
    return (
        (
            link.name,
            link.kind,
            link.parent,
            link.mac,
            link.mtu,
            link.txqlen,
            link.alias,
            link.up,
            link.master,
            link.xdp,
        ),
        tuple(link.alt_names),
        frozenset(link.settings.items()),
        frozenset(link.sysctls.items()),
        frozenset(link.features.items()),
        frozenset(link.private_flags.items()),
        frozenset(link.tuning.items()),
        link.dcb,
        frozenset(link.tcx),
        frozenset(link.queues),
        frozenset(link.forwarding),
        frozenset(link.addresses),
        frozenset(link.routes),
        frozenset(link.neighbours),
    )

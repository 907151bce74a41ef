"""Generated worlds: a host whose devices are configured this way and that, a pod, and what the pod does to them."""

import errno
import pickle
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_network

from hypothesis import strategies as st

from nri_rdma.attach.port import Kernel, KernelError, Namespace
from nri_rdma.decide.placement import Placed
from nri_rdma.model.device import RdmaDevice, RdmaNetns
from nri_rdma.model.link import STABLE_SECRET, LinkState
from nri_rdma.model.network import RoutingRule
from nri_rdma.model.pci import parse_pci_address
from tests.fakes.kernel import Address, FakeKernel, Forwarding, Link, Neighbour, Queue, Route, World
from tests.rig.linkops import capture
from tests.unit.attach.builders import POD_PATH, make_device, make_placed
from tests.unit.attach.grammar import Abilities, Choices, generated, keys_of, read
from tests.unit.attach.meddlings import MEDDLINGS, Meddling

_CHOICES = 600  # more than any scenario needs

ABILITIES = Abilities(
    features=("tx-tcp-segmentation", "tx-gso-partial"), private_flags=("legacy-rx", "rx cqe moderation")
)
"""Of the fake kernel and its links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A world before the attach, what is asked, and what the pod does after it, by the number of the device."""

    world: bytes
    placed: Placed
    meddling: tuple[tuple[int, Meddling], ...]
    keys: frozenset[str]
    """The keys of what is asked."""

    def start(self) -> World:
        """A fresh copy of the world."""
        world: World = pickle.loads(self.world)
        return world


def meddle(scenario: Scenario, kernel: Kernel, namespace: Namespace, ifindexes: tuple[int, ...]) -> None:
    """Do what the pod does; a name that another of its links has already it does not get."""
    for number, act in scenario.meddling:
        try:
            act(kernel, namespace, ifindexes[number % len(ifindexes)])
        except KernelError as error:
            assert error.errno == errno.EEXIST


def scenarios() -> st.SearchStrategy[Scenario]:
    """Any scenario. Bytes shrink towards zero, and so towards the first choice of each list: the simplest."""
    return st.binary(min_size=_CHOICES, max_size=_CHOICES).map(lambda choices: _scenario(Choices(choices)))


def _scenario(choices: Choices) -> Scenario:
    world = World()
    world.add_link(world.host, "lo", ifindex=1, kind="")
    world.add_link(world.host, "uplink", kind="veth").raise_up()
    pod = world.add_namespace(POD_PATH)
    world.add_link(pod, "lo", ifindex=1, kind="")
    world.add_link(pod, "eth0", ifindex=choices.one(range(2, 9)), kind="veth").raise_up()
    links = [_link(choices, world, number) for number in range(choices.one((1, 2, 3)))]
    pod.has_ipv6 = choices.one([True, True, False])
    world.host.rules += choices.some(_RULES, 4)
    pod.rules += choices.some(_RULES, 1)
    world.rdma_netns = choices.one([RdmaNetns.NONE, RdmaNetns.EXCLUSIVE, RdmaNetns.EXCLUSIVE])
    for number, link in enumerate(links):
        world.add_rdma(f"mlx5_{number}", parent=link.parent, node_guid=f"0000:0000:0000:000{number}")
    kernel = FakeKernel(world)
    states = [capture(kernel, kernel.host, link.ifindex) for link in links]
    devices = tuple(_device(number, state) for number, state in enumerate(states))
    asked = generated(choices, len(links), ABILITIES) if choices.one([False, True, True, True]) else {}
    network = read(asked) if asked else None
    placed = make_placed(devices, mtu=choices.one([None, 9000]) if network is None else None, network=network)
    acts = choices.some([(number, act) for act in MEDDLINGS for number in range(3)], 4)
    return Scenario(world=pickle.dumps(world), placed=placed, meddling=tuple(acts), keys=frozenset(keys_of(asked)))


def _device(number: int, state: LinkState) -> RdmaDevice:
    pci = parse_pci_address(state.parent.removeprefix("pci/")) if state.parent else None
    return replace(make_device(f"mlx5_{number}", [state]), pci=pci, node_guid=f"0000:0000:0000:000{number}")


def _link(choices: Choices, world: World, number: int) -> Link:
    kind, parent, permanent = choices.one(
        [("veth", False, False), ("macvlan", False, False), ("", True, True), ("", True, False), ("ipoib", True, True)]
    )
    link = world.add_link(
        world.host,
        f"rail{number}",
        kind=kind,
        parent=f"pci/0000:{number:02x}:00.0" if parent else "",
        permanent_mac=f"02:99:00:00:00:{number:02x}" if permanent else "",
        mtu=choices.one([1500, 9000]),
        txqlen=choices.one([1000, 0]),
        alias=choices.one(["", "rail of the left"]),
        alt_names=[f"enp{number}{letter}" for letter in choices.one(["", "a", "ab"])],
    )
    link.settings |= {"addr_gen_mode": choices.one([0, 1]), "group": choices.one([0, 4])}
    link.sysctls |= dict(choices.some(_SYSCTLS, 4))
    link.features |= {"tx-tcp-segmentation": choices.one([False, True])}
    if STABLE_SECRET in link.sysctls:
        link.settings["addr_gen_mode"] = choices.one([2, 0])
    for address in choices.some(_ADDRESSES[number], 4):
        link.add_address(address)
    if choices.one([False, True]):
        link.raise_up()
        for route in choices.some(_routes(link), 3):
            link.add_route(route)
    link.private_flags |= {"legacy-rx": choices.one([True, False])}
    link.tuning |= {"ring rx": choices.one([1024, 512])}
    for queue in choices.one(_QUEUES):
        link.add_queue(queue)
    link.forwarding += choices.some(_FORWARDING, 2)
    if choices.one([False, True]):
        link.neighbours.append(Neighbour(address=ip_address(f"10.{number}.0.99"), mac="02:00:00:00:00:99"))
    return link


_SYSCTLS = (
    ("ipv4/conf/rp_filter", "2"),
    ("ipv4/conf/arp_ignore", "1"),
    ("ipv4/neigh/base_reachable_time_ms", "40000"),
    ("ipv6/conf/accept_ra", "0"),
    ("ipv6/conf/mtu", "1400"),
    (STABLE_SECRET, "fd00::1:2:3"),
)


_HTB = Queue(kind="htb", handle="1:", options="default 10")
_SHAPED = (
    _HTB,
    Queue(kind="htb", handle="1:1", parent="root", options="rate 100mbit"),
    Queue(kind="htb", handle="1:10", parent="1:1", options="rate 50mbit"),
    Queue(kind="tbf", handle="10:", parent="1:10", options="rate 1mbit"),
)
_CLSACT = Queue(kind="clsact", handle="ffff:", parent="ingress")
_QUEUES: tuple[tuple[Queue, ...], ...] = (
    (),
    (Queue(kind="fq", handle="8001:"),),
    (_CLSACT,),
    _SHAPED,
    (*_SHAPED, _CLSACT),
)
_FORWARDING = tuple(Forwarding(mac=mac) for mac in ("02:11:22:33:44:55", "01:1b:19:00:00:00"))
_RULES = (
    RoutingRule(version=4, priority=90, table=100),
    RoutingRule(version=4, priority=91, table=100, source=ip_network("10.0.0.1/32")),
    RoutingRule(version=4, priority=91, table=100, source=ip_network("10.0.0.1/32"), iif="lo"),
    RoutingRule(version=4, priority=92, table=101, iif="rail0"),
    RoutingRule(version=4, priority=93, table=101, oif="rail1", invert=True),
    RoutingRule(version=4, priority=94, table=7, source=ip_network("10.1.0.0/24")),
    RoutingRule(version=6, priority=95, table=7, source=ip_network("fd00::1/128")),
)


def _addresses_of(number: int) -> tuple[Address, ...]:
    v4, v6 = IPv4Interface, IPv6Interface
    return (
        Address(interface=v4(f"10.{number}.0.1/24")),
        Address(interface=v4(f"10.{number}.0.2/24")),
        Address(interface=v4(f"10.{number}.1.1/24"), label=f"rail{number}:1"),
        Address(interface=v4(f"10.{number}.2.1/24"), no_prefix_route=True),
        Address(interface=v6(f"fd00:{number}::1/64")),
    )


_ADDRESSES = tuple(_addresses_of(number) for number in range(3))


def _routes(link: Link) -> list[Route]:
    """Routes that may be added to it as it is."""
    routes = [
        Route(to=ip_network("10.200.0.0/16"), table=100),
        Route(to=ip_network("10.201.0.0/16"), via=ip_address("172.16.0.1"), onlink=True),
    ]
    for address in link.addresses:
        net = address.interface.network
        if any(route.connected and route.to == net for route in link.routes):
            routes.append(Route(to=ip_network("10.202.0.0/16"), via=net[77], metric=5))
        routes.append(Route(to=ip_network("10.203.0.0/16"), src=address.interface.ip, table=101))
    fitting = (route for route in routes if route.src is None or route.src.version == route.to.version)
    return list(dict.fromkeys(fitting))

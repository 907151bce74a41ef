"""What attach.port.Kernel promises of rules, of how a pod routes, and of what is brought into it: held by the fake
kernel and by Linux."""

import errno
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from nri_rdma.attach.ops import AddRule, Inherit, SetLink, inverses_of
from nri_rdma.attach.port import KernelError, Namespace
from nri_rdma.model.carried import carried_address, carried_route
from nri_rdma.model.inherited import Brought
from nri_rdma.model.link import LinkState
from nri_rdma.model.network import RouteConfig, RoutingRule
from tests.contract.machines import POD, Machine
from tests.rig.deadline import wait_until
from tests.rig.linkops import apply, capture, configure

MAC, OTHER_MAC = "02:11:00:00:00:01", "02:11:00:00:00:02"
ROUTES = (
    "10.5.0.0/16 via 10.0.0.9 metric 5",
    "10.6.0.0/16 src 10.0.0.1 table 100",
    "10.7.0.0/16 via 172.16.0.1 onlink",
    "fd05::/64 via fd00::9 metric 7",
)
RULES = (
    RoutingRule(version=4, priority=90, table=100, source=ip_network("10.0.0.1/32")),
    RoutingRule(version=4, priority=91, table=100, iif="rdma0"),
    RoutingRule(version=6, priority=92, table=4711, destination=ip_network("fd05::/64"), fwmark=1, fwmask=0xFF),
)


@pytest.fixture
def rail(machine: Machine) -> int:
    """A link of the host that carries something of each kind."""
    ifindex = machine.add_link("rail0", MAC)
    machine.set("rail0", up=True)
    for address in ("10.0.0.1/24", "10.0.0.2/24", "fd00::1/64"):
        machine.add_address("rail0", address)
    for route in ROUTES:
        machine.add_route("rail0", route)
    machine.add_neighbour("rail0", "10.0.0.9", OTHER_MAC)
    wait_until(lambda: "fe80::/64 metric 256" in machine.see()[ifindex].routes, "the link-local route")
    return ifindex


@pytest.fixture
def link(machine: Machine, rail: int) -> LinkState:
    """The same, captured."""
    return capture(machine.kernel, machine.kernel.host, rail)


@pytest.fixture
def pod(machine: Machine, link: LinkState) -> Namespace:
    """The pod, with the link in it, down and bare."""
    pod = machine.kernel.open_namespace(machine.pod_path)
    machine.kernel.move_link(machine.kernel.host, link.ifindex, pod, "rdma0", as_ifindex=link.ifindex)
    return pod


def test_what_a_link_carries_is_said_in_words(link: LinkState) -> None:
    addresses = [carried_address(it) for it in link.addresses if not it.kernel_made]
    assert {(str(it.own), str(it.network), it.has_no_route) for it in addresses if it is not None} == {
        ("10.0.0.1/24", "10.0.0.0/24", False),
        ("10.0.0.2/24", "10.0.0.0/24", False),
        ("fd00::1/64", "fd00::/64", False),
    }
    said = [it for it in map(carried_route, link.routes) if it is not None]
    assert {str(it.route) for it in said if it.is_kernels} == {
        "10.0.0.0/24 src 10.0.0.1",
        "fd00::/64 metric 256",
        "fe80::/64 metric 256",
    }
    assert {str(it.route) + " onlink" * it.is_onlink for it in said if not it.is_kernels} == {
        "10.5.0.0/16 via 10.0.0.9 metric 5",
        "10.6.0.0/16 src 10.0.0.1 table 100",
        "10.7.0.0/16 via 172.16.0.1 onlink",
        "fd05::/64 via fd00::9 metric 7",
    }


def _brought(link: LinkState) -> tuple[Inherit | SetLink, ...]:
    """All of it, in the order that it needs."""
    things = (*(it for it in link.routes if " proto 2 " not in it.text), *link.neighbours)
    return (
        *(Inherit(brought=Brought(thing=it)) for it in link.addresses if not it.kernel_made),
        SetLink(up=True),
        *(Inherit(brought=Brought(thing=it)) for it in things),
    )


def test_what_a_link_carries_is_made_anew_in_a_pod(machine: Machine, link: LinkState, pod: Namespace) -> None:
    apply(machine.kernel, pod, link.ifindex, *_brought(link))
    wait_until(lambda: "fe80::/64 metric 256" in machine.see(POD)[link.ifindex].routes, "the link-local route")
    seen = machine.see(POD)[link.ifindex]
    assert seen.addresses == {"10.0.0.1/24", "10.0.0.2/24 secondary", "fd00::1/64", "fe80::11:ff:fe00:1/64"}
    assert seen.routes == {*ROUTES, "10.0.0.0/24 src 10.0.0.1", "fd00::/64 metric 256", "fe80::/64 metric 256"}
    assert seen.neighbours == {f"10.0.0.9 {OTHER_MAC}"}


def test_what_is_there_already_is_no_success(machine: Machine, link: LinkState, pod: Namespace) -> None:
    ops = _brought(link)
    apply(machine.kernel, pod, link.ifindex, *ops)
    refused = machine.kernel.apply(pod, link.ifindex, ops)
    assert {it.error.errno for it in refused} == {errno.EEXIST}
    assert [it.op for it in refused] == [op for op in ops if isinstance(op, Inherit)]


def test_what_is_brought_may_differ_from_what_the_host_has(machine: Machine, link: LinkState, pod: Namespace) -> None:
    (first,) = (it for it in link.addresses if it.text.startswith("10.0.0.1/24"))
    (six,) = (it for it in link.addresses if it.text.startswith("fd00::1/64"))
    (sourced,) = (it for it in link.routes if it.text.startswith("10.6.0.0/16"))
    apply(
        machine.kernel,
        pod,
        link.ifindex,
        Inherit(brought=Brought(thing=first, is_alone=True)),
        Inherit(brought=Brought(thing=six, is_alone=True)),
        SetLink(up=True),
        Inherit(brought=Brought(thing=sourced, is_sourceless=True)),
        Inherit(brought=Brought(thing=sourced, table=4711)),
    )
    wait_until(lambda: "fe80::/64 metric 256" in machine.see(POD)[link.ifindex].routes, "the link-local route")
    seen = machine.see(POD)[link.ifindex]
    assert seen.addresses >= {"10.0.0.1/24", "fd00::1/64"}
    assert seen.routes == {
        "10.6.0.0/16 table 100",
        "10.6.0.0/16 src 10.0.0.1 table 4711",
        "fe80::/64 metric 256",
    }


def test_a_route_whose_gateway_or_source_is_not_there_is_refused(
    machine: Machine, link: LinkState, pod: Namespace
) -> None:
    configure(machine.kernel, pod, link.ifindex, mtu=None, addresses=[ip_interface("172.20.0.1/24")])
    routes = {it.text.split()[0]: Inherit(brought=Brought(thing=it)) for it in link.routes}
    wanted = {"10.5.0.0/16": errno.ENETUNREACH, "10.6.0.0/16": errno.EINVAL}
    for to, number in wanted.items():
        with pytest.raises(KernelError) as caught:
            apply(machine.kernel, pod, link.ifindex, routes[to])
        assert caught.value.errno == number


def test_the_rules_of_a_namespace_are_read(machine: Machine, link: LinkState, pod: Namespace) -> None:
    kernel = machine.kernel
    before = kernel.rules(pod)
    assert {(it.rule.version, it.rule.priority, it.rule.table) for it in before} >= {(4, 0, 255), (4, 32766, 254)}
    assert {it.foreign for it in before} == {""}
    ops = [AddRule(rule=it) for it in RULES]
    apply(kernel, pod, link.ifindex, *ops)
    assert {it.rule for it in kernel.rules(pod)} == {it.rule for it in before} | set(RULES)
    apply(kernel, pod, link.ifindex, *inverses_of(ops))
    assert kernel.rules(pod) == before


def test_how_a_pod_routes_is_read(machine: Machine, link: LinkState, pod: Namespace) -> None:
    kernel = machine.kernel
    assert kernel.routing(pod).routes.get(link.ifindex, ()) == ()
    apply(kernel, pod, link.ifindex, *_brought(link), AddRule(rule=RULES[0]))
    wait_until(lambda: "fe80::/64 metric 256" in machine.see(POD)[link.ifindex].routes, "the link-local route")
    routing = kernel.routing(pod)
    assert set(routing.addresses[link.ifindex]) >= set(map(ip_interface, ("10.0.0.1/24", "10.0.0.2/24", "fd00::1/64")))
    assert set(routing.routes[link.ifindex]) >= {
        RouteConfig(destination=ip_network("10.0.0.0/24")),
        RouteConfig(destination=ip_network("10.5.0.0/16"), gateway=ip_address("10.0.0.9"), metric=5),
        RouteConfig(destination=ip_network("10.6.0.0/16"), table=100),
        RouteConfig(destination=ip_network("fd05::/64"), gateway=ip_address("fd00::9"), metric=7),
        RouteConfig(destination=ip_network("fe80::/64"), metric=256),
    }
    assert RULES[0] in {it.rule for it in routing.rules}
    assert routing.has_ipv6

"""Every change of a link is counted, and so fails once in the tests of the central property."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from nri_rdma.attach.journal import decode_record, encode_record
from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.transaction import do_steps, undo_steps
from nri_rdma.model.device import RdmaNetns
from nri_rdma.model.network import RouteConfig
from nri_rdma.model.request import DeviceRequest
from nri_rdma.observe.spans import Recorder
from tests.fakes.kernel import Address, FakeKernel, FaultyKernel, Neighbour, Route, World
from tests.unit.attach.builders import POD_PATH, make_device, make_placed, record_of
from tests.unit.attach.meddlings import MEDDLINGS

SPANS = Recorder(capacity=1)
ATTACH_BEFORE_OPS, UNDO_BEFORE_OPS = 3, 27
"""When each change was a call of the port: MTU, addresses and the way up were one, and all sysctls."""


def _world() -> World:
    """A host with a link that has everything, a pod, and RDMA devices that move."""
    world = World()
    world.add_link(world.host, "uplink").raise_up()
    world.add_namespace(POD_PATH)
    link = world.add_link(world.host, "rail0", kind="", parent="pci/0000:11:00.0", permanent_mac="02:99:00:00:00:01")
    link.mtu, link.txqlen, link.alias, link.alt_names = 9000, 700, "rail of the left", ["enp1", "enp2"]
    link.settings |= {"group": 4}
    link.sysctls |= {"ipv4/conf/rp_filter": "2", "ipv4/conf/arp_ignore": "1", "ipv6/conf/mtu": "1400"}
    link.add_address(Address(interface=ip_interface("10.0.0.1/24")))
    link.add_address(Address(interface=ip_interface("10.0.0.2/24")))
    link.raise_up()
    link.add_route(Route(to=ip_network("10.202.0.0/16"), via=ip_address("10.0.0.9"), metric=5))
    link.neighbours.append(Neighbour(address=ip_address("10.0.0.99"), mac="02:00:00:00:00:99"))
    world.rdma_netns = RdmaNetns.EXCLUSIVE
    world.add_rdma("mlx5_0", parent=link.parent, node_guid="0000:0000:0000:0001")
    return world


def test_an_attach_and_its_undo_have_as_many_places_to_fail_as_ever() -> None:
    world = _world()
    before, kernel = world.snapshot(), FakeKernel(world)
    namespace = kernel.open_namespace(POD_PATH)
    rail = next(link for link in kernel.links(kernel.host) if link.name == "rail0")
    device = replace(make_device("mlx5_0", [rail]), node_guid="0000:0000:0000:0001")
    addresses = (ip_interface("10.9.0.1/24"), ip_interface("fd09::1/64"))
    record = record_of(kernel, namespace, make_placed((device,), mtu=1400, addresses=(addresses,)))
    steps = steps_of(record.plan)
    attaching, undoing = FaultyKernel.counting(kernel), FaultyKernel.counting(kernel)
    do_steps(attaching, namespace, steps, SPANS)
    for meddle in MEDDLINGS:
        meddle(kernel, namespace, record.plan.moves[0].pod_ifindex)
    assert undo_steps(undoing, namespace, steps, SPANS) == ()
    assert world.snapshot() == before
    assert (attaching.operations, undoing.operations) == (7, 31)
    assert attaching.operations >= ATTACH_BEFORE_OPS
    assert undoing.operations >= UNDO_BEFORE_OPS


def test_a_route_of_the_request_that_covers_the_pods_address_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It is a right, and done; it is reported by the step, and in the log."""
    world = _world()
    pod = world.namespace(POD_PATH)
    assert pod is not None
    eth0 = world.add_link(pod, "eth0")
    eth0.raise_up()
    eth0.add_address(Address(interface=ip_interface("10.20.0.7/24")))
    kernel = FakeKernel(world)
    namespace = kernel.open_namespace(POD_PATH)
    rail = next(link for link in kernel.links(kernel.host) if link.name == "rail0")
    device = replace(make_device("mlx5_0", [rail]), node_guid="0000:0000:0000:0001")
    network = DeviceRequest(
        name="0",
        where="here",
        routes=(
            RouteConfig(destination=ip_network("10.20.0.0/16"), gateway=ip_address("172.16.0.1"), onlink=True),
            RouteConfig(destination=ip_network("10.21.0.0/16"), gateway=ip_address("172.16.0.1"), onlink=True),
        ),
    )
    record = record_of(kernel, namespace, make_placed((device,), network=network))
    _, configure, *_ = steps = steps_of(record.plan)
    told = "the route 10.20.0.0/16 via 172.16.0.1 onlink covers the pod's address 10.20.0.7"
    assert configure.describe().endswith(f"; as asked, {told}")
    do_steps(kernel, namespace, steps, SPANS)
    message = "routes of the request lead the pod's cluster network over the netdev"
    (logged,) = (it for it in caplog.records if it.message == message)
    assert logged.__dict__["what"] == (told,)
    assert decode_record(encode_record(record), where="memory").plan.moves[0].leads_away == ()


def test_what_stays_on_the_host_is_told_by_the_step_and_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    world, pod_network = _world(), Address(interface=ip_interface("10.202.0.7/24"))
    pod = world.namespace(POD_PATH)
    assert pod is not None
    eth0 = world.add_link(pod, "eth0")
    eth0.raise_up()
    eth0.add_address(pod_network)
    kernel = FakeKernel(world)
    namespace = kernel.open_namespace(POD_PATH)
    rail = next(link for link in kernel.links(kernel.host) if link.name == "rail0")
    device = replace(make_device("mlx5_0", [rail]), node_guid="0000:0000:0000:0001")
    _, configure, *_ = steps = steps_of(record_of(kernel, namespace, make_placed((device,))).plan)
    told = "the route 10.202.0.0/16 via 10.0.0.9 metric 5: it covers the pod's address 10.202.0.7"
    assert configure.describe().endswith(f"; left on the host: {told}")
    do_steps(kernel, namespace, steps, SPANS)
    (record,) = (it for it in caplog.records if it.message == "left on the host, it does not fit the pod")
    assert record.__dict__["what"] == (told,)


def test_a_description_of_much_is_short() -> None:
    world = _world()
    rail = next(link for link in world.host.links.values() if link.name == "rail0")
    for number in range(60):
        rail.add_route(Route(to=ip_network(f"10.203.{number}.0/24"), via=ip_address("10.0.0.9")))
    kernel = FakeKernel(world)
    namespace = kernel.open_namespace(POD_PATH)
    state = next(link for link in kernel.links(kernel.host) if link.name == "rail0")
    device = replace(make_device("mlx5_0", [state]), node_guid="0000:0000:0000:0001")
    _, configure, *_ = steps_of(record_of(kernel, namespace, make_placed((device,))).plan)
    assert configure.describe().endswith(", and 15 more")

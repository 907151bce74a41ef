"""Every change of a link is counted, and so fails once in the tests of the central property."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.transaction import do_steps, undo_steps
from nri_rdma.model.device import RdmaNetns
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
    assert (attaching.operations, undoing.operations) == (7, 29)
    assert attaching.operations >= ATTACH_BEFORE_OPS
    assert undoing.operations >= UNDO_BEFORE_OPS

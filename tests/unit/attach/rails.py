"""A host with a rail for tests of operations on links."""

from ipaddress import ip_address, ip_interface, ip_network

from nri_rdma.model.device import RdmaNetns
from tests.fakes.kernel import Address, Forwarding, Link, Neighbour, Queue, Route, World
from tests.unit.attach.builders import POD_PATH

GUID = "0000:0000:0000:0001"


def rail(world: World) -> Link:
    return next(link for link in world.host.links.values() if link.name.startswith("rail0"))


def rail_world() -> World:
    """A host with a link that has everything, and a pod."""
    world = World()
    world.add_namespace(POD_PATH)
    link = world.add_link(world.host, "rail0", kind="", parent="pci/0000:11:00.0", permanent_mac="02:99:00:00:00:01")
    link.mtu, link.txqlen, link.alias, link.alt_names = 9000, 700, "of the left", ["enp1", "enp2"]
    link.settings |= {"group": 4}
    link.sysctls |= {"ipv4/conf/rp_filter": "2"}
    link.add_address(Address(interface=ip_interface("10.0.0.1/24")))
    link.raise_up()
    link.add_route(Route(to=ip_network("10.202.0.0/16"), via=ip_address("10.0.0.9"), metric=5))
    link.add_queue(Queue(kind="htb", handle="1:"))
    link.add_queue(Queue(kind="htb", handle="1:10", options="rate 50mbit"))
    link.forwarding.append(Forwarding(mac="02:11:22:33:44:55"))
    link.neighbours.append(Neighbour(address=ip_address("10.0.0.99"), mac="02:00:00:00:00:99"))
    world.rdma_netns = RdmaNetns.EXCLUSIVE
    world.add_rdma("mlx5_0", parent=link.parent, node_guid=GUID)
    return world

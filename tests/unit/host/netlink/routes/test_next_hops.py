"""Next hop objects as the kernel lists them: whose they are."""

import struct

from nri_rdma.host.netlink.routes.next_hops import read_next_hops
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from tests.unit.host.netlink.made_messages import Scripted, attribute, message, u32

ID, GROUP, OIF = 1, 2, 5  # NHA_*, include/uapi/linux/nexthop.h


def next_hop(*attributes: bytes) -> bytes:
    """RTM_NEWNEXTHOP: struct nhmsg (family, scope, protocol, reserved, flags), then attributes."""
    return message(104, struct.pack("=BBBBI", 2, 0, 0, 0, 0) + b"".join(attributes))


def test_the_next_hop_objects_of_several_links_cost_one_list() -> None:
    group = next_hop(u32(ID, 10), attribute(GROUP, struct.pack("=IBBH", 7, 0, 0, 0)))
    blackhole = next_hop(u32(ID, 11), attribute(4, b""))
    several = [next_hop(u32(ID, number), u32(OIF, ifindex)) for number, ifindex in ((7, 5), (8, 9), (9, 5))]
    kernel = Scripted({106: [*several, group, blackhole]})
    assert read_next_hops(kernel, (5, 6)) == {
        5: ("has the next hop object 7 (`ip nexthop`)", "has the next hop object 9 (`ip nexthop`)"),
        6: (),
    }
    assert kernel.asked == [(106, bytes(8))]


def test_this_kernel_lists_next_hop_objects() -> None:
    with RouteSocket() as route:
        assert read_next_hops(route, (1,)) == {1: ()}

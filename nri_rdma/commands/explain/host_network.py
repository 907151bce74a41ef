"""Reads the configuration of this host's netdevs that a pod may take along: addresses, routes and neighbours. Needs no
root."""

from __future__ import annotations

from dataclasses import replace

from nri_rdma.commands.explain.explanation import HostNetwork
from nri_rdma.model.device import Node


def read_host_network(node: Node) -> HostNetwork | None:
    """Return the configuration of the node's netdevs, and the host's routing rules. None if this host has none of these
    netdevs, or if they cannot be read."""
    from nri_rdma.attach.port import KernelError
    from nri_rdma.host.netlink.links.link_state import parse_readable, read_links
    from nri_rdma.host.netlink.restore.link_contents import captured_addresses, read_addresses, read_neighbours
    from nri_rdma.host.netlink.routes.routes import captured_routes, read_routes_of
    from nri_rdma.host.netlink.routes.rules import read_rules
    from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
    from nri_rdma.wire import WireError

    of_node = {(it.ifindex, it.mac) for device in node.devices for it in device.netdevs}
    try:
        with RouteSocket() as route:
            links = [it for it in parse_readable(read_links(route)) if (it.ifindex, it.mac) in of_node]
            carried = {
                it.ifindex: replace(
                    it,
                    addresses=captured_addresses(read_addresses(route, it.ifindex)),
                    routes=captured_routes(read_routes_of(it.ifindex), it.ifindex),
                    neighbours=read_neighbours(route, it.ifindex),
                )
                for it in links
            }
            return HostNetwork(carried=carried, rules=read_rules(route)) if links else None
    except (OSError, WireError, KernelError):
        return None

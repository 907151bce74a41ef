"""Creates VRFs in a pod's namespace, each for the first netdev that a request puts into it, and removes each with its
last netdev.

The VRFs of nri-rdma are recognised by their alias. Two things stay in the namespace and have no effect without a VRF:
the kernel's rule 1000 for VRFs, and the sysctls that let sockets outside a VRF accept connections from it.

pyroute2 encodes the requests here (docs/adr/0066). Objects that are restored later must be sent back as the kernel's
own bytes, but a VRF is never restored. pyroute2 is imported for the first VRF, which takes a tenth of a second.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, Final

from nri_rdma.attach.ops import DropVrf, JoinVrf
from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links.link_state import parse_readable, read_links
from nri_rdma.host.netlink.namespaces.proc_sys import NET, writable_net
from nri_rdma.host.netlink.sockets.route_socket import Request, RouteSocket
from nri_rdma.model.link import LinkState
from nri_rdma.wire.netlink import HEADER, read_messages

ALIAS: Final = "made by nri-rdma"
KIND: Final = "vrf"
_ACCEPT = ("ipv4/tcp_l3mdev_accept", "ipv4/udp_l3mdev_accept")


def join_vrf(route: RouteSocket, ifindex: int, change: JoinVrf) -> None:
    """Put a link into a VRF, and create the VRF if it does not exist. The calling thread must be in the namespace.
    Raises KernelError: EEXIST if the VRF's name belongs to another kind of link, or to a VRF with another routing
    table."""
    name, table = change.vrf.name, change.vrf.table
    messages = {link.name: (link, message) for message in read_links(route) for link in parse_readable([message])}
    if name not in messages:
        numbers = [link.ifindex for link, _ in messages.values()]
        route.do(*make_requests(name, table, change.vrf.ifindex or max(numbers) + 1))
        messages = {link.name: (link, message) for message in read_links(route) for link in parse_readable([message])}
        _accept_from_vrfs()
    link, message = messages[name]
    if link.kind != KIND:
        raise KernelError(change.describe(), errno.EEXIST, f"{name} is a link of kind {link.kind or 'none'}")
    if table_of(message) != table:
        raise KernelError(change.describe(), errno.EEXIST, f"{name} has table {table_of(message)}")
    route.do(*_requests(change.describe(), ("set", {"index": ifindex, "master": link.ifindex})))


def drop_vrf(route: RouteSocket, ifindex: int, change: DropVrf) -> None:
    """Remove a VRF that `join_vrf` created, unless it still contains a link other than `ifindex`. Raises KernelError if
    the kernel refuses."""
    links = parse_readable(read_links(route))
    vrf = next((link for link in links if _is_ours(link, change.vrf.name)), None)
    if vrf is None or any(link.master == vrf.ifindex and link.ifindex != ifindex for link in links):
        return
    gone = frozenset({errno.ENODEV})
    route.do(*_requests(change.describe(), ("del", {"index": vrf.ifindex}), tolerate=gone))


def _is_ours(link: LinkState, name: str) -> bool:
    return (link.name, link.kind, link.alias) == (name, KIND, ALIAS)


def make_requests(name: str, table: int, ifindex: int) -> list[Request]:
    """Return the requests that create a VRF, with the alias by which nri-rdma recognises its VRFs. `ifindex` is the
    number of the new link.

    The kernel ignores an alias in the request that creates a link, so a second request in the datagram sets it. A
    daemon that is killed between two datagrams would leave a VRF without the alias.
    """
    made = {"ifname": name, "kind": KIND, "vrf_table": table, "index": ifindex, "state": "up"}
    marked = {"ifname": name, "ifalias": ALIAS}  # by its name, which no link had: the number may be taken
    return _requests(f"make VRF {name}", ("add", made), ("set", marked))


def _requests(
    operation: str, *links: tuple[str, Mapping[str, Any]], tolerate: frozenset[int] = frozenset()
) -> list[Request]:
    """Return the requests for commands of `pyroute2.IPRoute.link`; each of `links` is a command with its arguments.
    `tolerate` has the errors of the kernel that count as success."""
    with _pyroute2(operation).IPBatch() as batch:
        for command, words in links:
            batch.link(command, **words)
        encoded = bytes(batch.batch)
    return [
        Request(kind=it.kind, flags=it.flags, body=it.whole[HEADER.size :], operation=operation, tolerate=tolerate)
        for it in read_messages(encoded)
    ]


def table_of(message: bytes) -> int:
    """Return the number of a VRF's routing table, from the kernel's message of its link."""
    link = _pyroute2("read the table of a VRF").netlink.rtnl.ifinfmsg.ifinfmsg(message)
    link.decode()
    return int(link.get(("linkinfo", "data", "vrf_table"), 0))


def _pyroute2(operation: str) -> Any:
    """Import and return pyroute2; late, because most daemons never see a VRF. Raises KernelError (ENOPKG) if it is not
    installed."""
    try:
        import pyroute2
    except ImportError as error:
        raise KernelError(operation, errno.ENOPKG, f"pyroute2 cannot be imported: {error}") from error
    return pyroute2


def _accept_from_vrfs() -> None:
    """Let sockets that are bound to no VRF accept connections from all VRFs of the namespace. Raises KernelError if the
    sysctls cannot be written."""
    for key in _ACCEPT:
        path = (writable_net() or NET) / key
        try:
            path.write_text("1")
        except FileNotFoundError:
            continue  # a kernel without VRFs has refused the VRF before
        except OSError as error:
            raise KernelError(f"write {path}", error.errno or 0, error.strerror or "") from error

"""VRFs in a pod's namespace: created for the first netdev that a request puts into a VRF, and removed with the last
one.

The VRFs of nri-rdma are recognised by their alias. Two things stay in the namespace and have no effect without a VRF:
the kernel's rule 1000 for VRFs, and the sysctls that let sockets outside a VRF accept connections from it.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import replace
from typing import Final

from nri_rdma.attach.ops import DropVrf, JoinVrf
from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links import NEWLINK, parse_readable, read_links
from nri_rdma.host.netlink.proc_sys import NET, writable_net
from nri_rdma.host.netlink.route_socket import Request, RouteSocket
from nri_rdma.model.link import LinkState
from nri_rdma.model.network import VrfConfig
from nri_rdma.wire.netlink import CREATE, EXCL, NESTED, encode_attribute, encode_u32, read_attributes

ALIAS: Final = "made by nri-rdma"
KIND: Final = "vrf"
_DELLINK = 17
_IFINFOMSG = struct.Struct("=BxHiII")
_IFF_UP = 0x1
_IFNAME, _MASTER, _LINKINFO, _IFALIAS = 3, 10, 18, 20  # IFLA_*, include/uapi/linux/if_link.h
_INFO_KIND, _INFO_DATA, _VRF_TABLE = 1, 2, 1
_FIRST_ATTRIBUTE = 32
_ACCEPT = ("ipv4/tcp_l3mdev_accept", "ipv4/udp_l3mdev_accept")


def join_vrf(route: RouteSocket, ifindex: int, change: JoinVrf) -> None:
    """Put a link into a VRF, and create the VRF if it does not exist. The calling thread must be in the namespace.
    Raises KernelError."""
    name, table = change.vrf.name, change.vrf.table
    messages = {link.name: (link, message) for message in read_links(route) for link in parse_readable([message])}
    if name not in messages:
        numbers = [link.ifindex for link, _ in messages.values()]
        _make(route, replace(change.vrf, ifindex=change.vrf.ifindex or max(numbers) + 1))
        messages = {link.name: (link, message) for message in read_links(route) for link in parse_readable([message])}
        _accept_from_vrfs()
    link, message = messages[name]
    if link.kind != KIND:
        raise KernelError(change.describe(), errno.EEXIST, f"{name} is a link of kind {link.kind or 'none'}")
    if _table_of(message) != table:
        raise KernelError(change.describe(), errno.EEXIST, f"{name} has table {_table_of(message)}")
    body = _IFINFOMSG.pack(0, 0, ifindex, 0, 0) + encode_u32(_MASTER, link.ifindex)
    route.do(Request(kind=NEWLINK, body=body, operation=change.describe()))


def drop_vrf(route: RouteSocket, ifindex: int, change: DropVrf) -> None:
    """Remove a VRF that `join_vrf` created, unless it still contains a link other than this one. Raises KernelError."""
    links = parse_readable(read_links(route))
    vrf = next((link for link in links if _is_ours(link, change.vrf.name)), None)
    if vrf is None or any(link.master == vrf.ifindex and link.ifindex != ifindex for link in links):
        return
    gone = frozenset({errno.ENODEV})
    body = _IFINFOMSG.pack(0, 0, vrf.ifindex, 0, 0)
    route.do(Request(kind=_DELLINK, body=body, operation=change.describe(), tolerate=gone))


def _is_ours(link: LinkState, name: str) -> bool:
    return (link.name, link.kind, link.alias) == (name, KIND, ALIAS)


def _make(route: RouteSocket, vrf: VrfConfig) -> None:
    """Create a VRF with our alias.

    The kernel ignores an alias in the request that creates a link. A second request in the same datagram sets it, so
    that a daemon that is killed cannot leave a VRF without the alias.
    """
    name = encode_attribute(_IFNAME, vrf.name.encode() + b"\0")  # by name: no link had it, but the ifindex may be taken
    body = _IFINFOMSG.pack(0, 0, 0, 0, 0) + name + encode_attribute(_IFALIAS, ALIAS.encode())
    alias = Request(kind=NEWLINK, body=body, operation=f"mark VRF {vrf.name}")
    errors = route.try_all([_make_request(vrf), alias])
    if errors:
        raise errors[min(errors)]


def _make_request(vrf: VrfConfig) -> Request:
    data = encode_attribute(_INFO_DATA | NESTED, encode_u32(_VRF_TABLE, vrf.table))
    info = encode_attribute(_INFO_KIND, KIND.encode()) + data
    return Request(
        kind=NEWLINK,
        flags=CREATE | EXCL,
        body=_IFINFOMSG.pack(0, 0, vrf.ifindex, _IFF_UP, _IFF_UP)
        + encode_attribute(_IFNAME, vrf.name.encode() + b"\0")
        + encode_attribute(_LINKINFO | NESTED, info),
        operation=f"make VRF {vrf.name}",
    )


def _table_of(message: bytes) -> int:
    info = dict(read_attributes(dict(read_attributes(message[_FIRST_ATTRIBUTE:])).get(_LINKINFO, b"")))
    table = dict(read_attributes(info.get(_INFO_DATA, b""))).get(_VRF_TABLE, bytes(4))
    return int(struct.unpack("=I", table)[0])


def _accept_from_vrfs() -> None:
    """Let sockets that are bound to no VRF accept connections from all VRFs, as DRANET does."""
    for key in _ACCEPT:
        path = (writable_net() or NET) / key
        try:
            path.write_text("1")
        except FileNotFoundError:
            continue  # a kernel without VRFs has refused the VRF before
        except OSError as error:
            raise KernelError(f"write {path}", error.errno or 0, error.strerror or "") from error

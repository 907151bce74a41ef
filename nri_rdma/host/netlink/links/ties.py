"""Verifies that a virtual link is still attached to the link to which it was attached before: a veth to its peer, a
macvlan or VLAN to its lower link.

A pod with CAP_NET_ADMIN can delete its link and create another one with the old kind and ifindex. It cannot attach the
new link to the host's end, which disappeared together with the deleted link.
"""

from __future__ import annotations

import errno
import struct

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links.link_state import parse_link, read_link
from nri_rdma.host.netlink.namespaces.namespace import HeldNamespace, asked, held
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.model.link import LinkState
from nri_rdma.wire.netlink import encode_u32, read_attributes

_GETNSID, _NSID, _FD = 90, 1, 3  # RTM_GETNSID, NETNSA_*, include/uapi/linux/net_namespace.h
_RTGENMSG = struct.Struct("=Bxxx")
_FIRST_ATTRIBUTE = 20  # after nlmsghdr and rtgenmsg
_I32 = struct.Struct("=i")
_GONE = frozenset({errno.ENODEV, errno.EINVAL})
"""The kernel's errors for a link that does not exist, and for a namespace id that is no longer assigned."""


def hangs_on(host: HeldNamespace, namespace: HeldNamespace, ifindex: int, link: LinkState) -> bool:
    """Return whether the link `ifindex` in a namespace is attached to the link to which `link` was attached on the
    host: the peer of a veth, the lower link of a macvlan or VLAN. True if `link` is not virtual or was attached to
    none. Raises KernelError if there is no link `ifindex`."""
    if link.parent or not link.peer:
        return True
    operation = f"see what link {ifindex} hangs on"
    here = asked(namespace, operation, lambda route: parse_link(read_link(route, ifindex)))
    if here.peer != link.peer:
        return False
    if link.kind == "veth":
        return _leads_back(host, namespace, ifindex, link)
    if link.peer_netns >= 0:  # the other link is in a third namespace: only its ifindex can be compared
        return True
    return here.peer_netns == _number_of(namespace, host)


def _leads_back(host: HeldNamespace, namespace: HeldNamespace, ifindex: int, link: LinkState) -> bool:
    """Return whether the other end of the veth `link` has the link `ifindex` of `namespace` as its peer. The other end
    is read from the host's namespace. False if it no longer exists."""
    operation = f"see the other end of {link.name}"
    try:
        end = asked(host, operation, lambda route: parse_link(read_link(route, link.peer, netns=link.peer_netns)))
    except KernelError as error:
        if error.errno in _GONE:
            return False
        raise
    # An end without a namespace id is in the same namespace as its peer.
    place = end.peer_netns if end.peer_netns >= 0 else link.peer_netns
    return end.peer == ifindex and place >= 0 and place == _number_of(host, namespace)


def _number_of(viewer: HeldNamespace, namespace: HeldNamespace) -> int:
    """Return the id by which the namespace `viewer` knows the other namespace; -1 if it has no id for it."""
    operation = "ask for the number of a network namespace"
    with held(namespace).descriptor() as fd:
        body = _RTGENMSG.pack(0) + encode_u32(_FD, fd)
        answer = asked(viewer, operation, lambda route: _ask(route, body, operation))
    return int(_I32.unpack(dict(read_attributes(answer[_FIRST_ATTRIBUTE:]))[_NSID])[0])


def _ask(route: RouteSocket, body: bytes, operation: str) -> bytes:
    return route.ask(_GETNSID, body, operation)

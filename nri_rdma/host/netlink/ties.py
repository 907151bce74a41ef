"""What a virtual link hangs on: the other end of a veth, the lower link of a macvlan or a VLAN.

A pod with CAP_NET_ADMIN can delete its link and make another one of the same kind and number. What it cannot make is
another end in the place of the host's end, which ended with the deleted link.
"""

from __future__ import annotations

import errno
import struct

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.links import parse_link, read_link
from nri_rdma.host.netlink.namespace import HeldNamespace, asked, held
from nri_rdma.host.netlink.route_socket import RouteSocket
from nri_rdma.model.link import LinkState
from nri_rdma.wire.netlink import encode_u32, read_attributes

_GETNSID, _NSID, _FD = 90, 1, 3  # RTM_GETNSID, NETNSA_*, include/uapi/linux/net_namespace.h
_RTGENMSG = struct.Struct("=Bxxx")
_FIRST_ATTRIBUTE = 20  # after nlmsghdr and rtgenmsg
_I32 = struct.Struct("=i")
_GONE = frozenset({errno.ENODEV, errno.EINVAL})
"""The kernel's words for a link that does not exist, and for a namespace that has no such number any more."""


def hangs_on(host: HeldNamespace, namespace: HeldNamespace, ifindex: int, link: LinkState) -> bool:
    """Return whether a virtual link of a namespace hangs on what `link`, as the host had it, hung on. Raises
    KernelError."""
    if link.parent or not link.peer:
        return True
    operation = f"see what link {ifindex} hangs on"
    here = asked(namespace, operation, lambda route: parse_link(read_link(route, ifindex)))
    if here.peer != link.peer:
        return False
    if link.kind == "veth":
        return _leads_back(host, namespace, ifindex, link)
    if link.peer_netns >= 0:  # of a namespace that is neither: its number there is all that can be compared
        return True
    return here.peer_netns == _number_of(namespace, host)


def _leads_back(host: HeldNamespace, namespace: HeldNamespace, ifindex: int, link: LinkState) -> bool:
    """Return whether the other end, as the host knows it, names this link as its own other end."""
    operation = f"see the other end of {link.name}"
    try:
        end = asked(host, operation, lambda route: parse_link(read_link(route, link.peer, netns=link.peer_netns)))
    except KernelError as error:
        if error.errno in _GONE:
            return False
        raise
    # One without the number of a namespace is in the same namespace as its other end.
    place = end.peer_netns if end.peer_netns >= 0 else link.peer_netns
    return end.peer == ifindex and place >= 0 and place == _number_of(host, namespace)


def _number_of(viewer: HeldNamespace, namespace: HeldNamespace) -> int:
    """Return the number by which one namespace knows another one; -1: by none."""
    operation = "ask for the number of a network namespace"
    with held(namespace).descriptor() as fd:
        body = _RTGENMSG.pack(0) + encode_u32(_FD, fd)
        answer = asked(viewer, operation, lambda route: _ask(route, body, operation))
    return int(_I32.unpack(dict(read_attributes(answer[_FIRST_ATTRIBUTE:]))[_NSID])[0])


def _ask(route: RouteSocket, body: bytes, operation: str) -> bytes:
    return route.ask(_GETNSID, body, operation)

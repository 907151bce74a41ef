"""Encodes requests that restore or remove an object (an address, route, neighbour or queueing discipline), from the
message in which the kernel reported the object earlier.

The message is sent back whole, so that attributes unknown to this program survive. Only attributes that the kernel
would not accept are left out.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Mapping

from nri_rdma.attach.ops import Inherit, Remove, Restore, SetSettings
from nri_rdma.host.netlink.qos import disciplines
from nri_rdma.host.netlink.sockets.route_socket import Request
from nri_rdma.model.inherited import Brought
from nri_rdma.model.link import Captured
from nri_rdma.wire.netlink import APPEND, CREATE, EXCL, HEADER, NESTED, encode_attribute, encode_u32, read_attributes

RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH = 20, 24, 28  # include/uapi/linux/rtnetlink.h; each DEL is one more
_RTM_SETLINK = 19

_IFA_LABEL, _IFA_CACHEINFO, _IFA_FLAGS, _IFA_PROTO = 3, 6, 8, 11
_IFA_F_NODAD, _IFA_F_NOPREFIXROUTE, _FOREVER = 0x02, 0x200, 0xFFFFFFFF
_KEPT_ADDRESS_FLAGS = 0x10 | 0x200 | 0x400
"""The flags of an address that a pod takes over from the host: IFA_F_HOMEADDRESS, NOPREFIXROUTE and MCAUTOJOIN. The
kernel or autoconfiguration sets the other flags."""
_RTA_OIF, _RTA_PREFSRC, RTA_CACHEINFO, _RTA_TABLE, RTA_EXPIRES = 4, 7, 12, 15, 23
_RTNH_F_ONLINK = 4
_USER_HZ = 100  # the unit of rta_expires
_NDA_CACHEINFO, _NDA_PROBES = 3, 4

_SETTING_ATTRIBUTES = {
    "group": 27,
    "gso_max_segs": 40,
    "gso_max_size": 41,
    "gro_max_size": 58,
    "gso_ipv4_max_size": 63,
    "gro_ipv4_max_size": 64,
}
"""Link settings that are u32 attributes (IFLA_*, include/uapi/linux/if_link.h), in the order in which they must be set:
setting a GSO size also sets the GSO size of IPv4."""
_SETTABLE_FLAGS = 0x4 | 0x20 | 0x80 | 0x100 | 0x200 | 0x1000 | 0x2000 | 0x4000 | 0x8000
"""The interface flags that a request can set: IFF_DEBUG, NOTRAILERS, NOARP, PROMISC, ALLMULTI, MULTICAST, PORTSEL,
AUTOMEDIA, DYNAMIC."""
_IFLA_BROADCAST, _IFLA_LINKMODE, _IFLA_AF_SPEC, _IFLA_INET6_ADDR_GEN_MODE = 2, 17, 26, 8
_MAX_ADDR_LEN = 32  # include/linux/netdevice.h
_IFLA_XDP, _IFLA_XDP_FD, _IFLA_XDP_FLAGS = 43, 1, 3
_XDP_MODES = (0x2, 0x4, 0x8)  # XDP_FLAGS_SKB_MODE, DRV_MODE, HW_MODE: a link may have a program in each
_AF_INET6 = 10
_SETTINGS = ("flags", "linkmode", "broadcast", *_SETTING_ATTRIBUTES, "addr_gen_mode")


def link_settings(flags: int, told: Mapping[int, bytes]) -> tuple[tuple[str, int], ...]:
    """Return the value of LinkState.settings for a link. `flags` are the link's interface flags, and `told` its netlink
    attributes by number.

    The setting `broadcast` is the hardware broadcast address as a number, whose lowest byte is the address's first.
    """
    found = {"flags": flags & _SETTABLE_FLAGS}
    for name, number in _SETTING_ATTRIBUTES.items():
        if number in told:
            (found[name],) = struct.unpack("=I", told[number])
    if _IFLA_LINKMODE in told:
        found["linkmode"] = told[_IFLA_LINKMODE][0]
    if _IFLA_BROADCAST in told:
        found["broadcast"] = int.from_bytes(told[_IFLA_BROADCAST], "little")
    inet6 = dict(read_attributes(dict(read_attributes(told.get(_IFLA_AF_SPEC, b""))).get(_AF_INET6, b"")))
    if mode := inet6.get(_IFLA_INET6_ADDR_GEN_MODE):
        found["addr_gen_mode"] = mode[0]
    return tuple((name, found[name]) for name in _SETTINGS if name in found)


def restore_request(ifindex: int, restoration: Restore) -> Request:
    """Return the request that adds an object (an address, route, neighbour or qdisc) again, from the kernel's earlier
    message about it. If the object exists already, the request counts as successful."""
    thing = restoration.thing
    kind = _kind(thing)
    return Request(
        kind=kind,
        # Not EXCL for routes: it refuses a second route of the same metric, even over another link.
        flags=CREATE | (APPEND if kind == RTM_NEWROUTE else EXCL),
        body=_PAYLOADS[kind](thing, ifindex),
        operation=restoration.describe(),
        tolerate=frozenset({errno.EEXIST}),
    )


def inherit_request(ifindex: int, inheritance: Inherit) -> Request:
    """Return the request that creates, in a pod, an object that was captured on the host: an address, a route or a
    neighbour.

    The request fails with EEXIST if the pod has the object already; the caller has left out such objects.
    """
    brought = inheritance.brought
    kind = _kind(brought.thing)
    if kind == RTM_NEWADDR:
        body = _inherited_address(brought, ifindex)
    elif kind == RTM_NEWROUTE:
        body = _inherited_route(brought, ifindex)
    else:
        body = _neighbour_payload(brought.thing, ifindex)
    # Not EXCL for routes: IPv4 then refuses a second route of the same metric, even over another link.
    flags = CREATE | (APPEND if kind == RTM_NEWROUTE else EXCL)
    return Request(kind=kind, flags=flags, body=body, operation=inheritance.describe())


def remove_request(ifindex: int, removal: Remove) -> Request:
    """Return the request that deletes an object (an address, route, neighbour or qdisc), from the kernel's earlier
    message about it. If the object is missing, the request counts as successful."""
    thing = removal.thing
    kind = _kind(thing)
    return Request(
        kind=kind + 1,
        body=_PAYLOADS[kind](thing, ifindex),
        operation=removal.describe(),
        tolerate=_ABSENT[kind],
    )


def settings_request(ifindex: int, change: SetSettings) -> Request:
    """Return the request that sets the settings in `change` and leaves all other settings of the link."""
    return Request(
        kind=_RTM_SETLINK,
        body=_settings_payload(ifindex, dict(change.settings)),
        operation=f"set link {ifindex}: {change.describe()}",
    )


def detach_xdp_requests(ifindex: int) -> tuple[Request, ...]:
    """Return the requests that remove the XDP programs of a link, one for each mode of XDP. A request counts as
    successful if there is no program of its mode or the driver does not support the mode."""
    return tuple(_detach_xdp_request(ifindex, mode) for mode in _XDP_MODES)


def _detach_xdp_request(ifindex: int, mode: int) -> Request:
    nothing = encode_attribute(_IFLA_XDP_FD, struct.pack("=i", -1)) + encode_u32(_IFLA_XDP_FLAGS, mode)
    return Request(
        kind=_RTM_SETLINK,
        body=struct.pack("=BxHiII", 0, 0, ifindex, 0, 0) + encode_attribute(_IFLA_XDP | NESTED, nothing),
        operation=f"detach XDP (mode {mode}) from link {ifindex}",
        tolerate=frozenset({errno.EOPNOTSUPP}),
    )


def _kind(thing: Captured) -> int:
    return int(HEADER.unpack_from(thing.raw)[1])


def _address_payload(thing: Captured, ifindex: int) -> bytes:
    """Return the body of a request for a captured address: struct ifaddrmsg with the link's present ifindex, and
    attributes. A lifetime that has expired becomes one second."""
    family, prefix, flags, scope, _index = struct.unpack_from("=BBBBI", thing.raw, 16)
    payload = [struct.pack("=BBBBI", family, prefix, flags, scope, ifindex)]
    for kind, data in read_attributes(thing.raw[24:]):
        value = data
        if kind == _IFA_CACHEINFO:
            preferred, valid = struct.unpack_from("=II", data)
            value = struct.pack("=II", min(preferred, max(valid, 1)), max(valid, 1)) + data[8:]
        payload.append(encode_attribute(kind, value))
    return b"".join(payload)


def _inherited_address(brought: Brought, ifindex: int) -> bytes:
    """Return the body of a request for an address that the pod takes over from the host: struct ifaddrmsg and
    attributes. The address gets an unlimited lifetime and no duplicate address detection. Its label becomes the link's
    name in the pod."""
    family, prefix, short_flags, scope, _index = struct.unpack_from("=BBBBI", brought.thing.raw, 16)
    told = dict(read_attributes(brought.thing.raw[24:]))
    (flags,) = struct.unpack("=I", told[_IFA_FLAGS]) if _IFA_FLAGS in told else (short_flags,)
    flags &= _KEPT_ADDRESS_FLAGS
    flags |= (_IFA_F_NODAD if family == _AF_INET6 else 0) | (_IFA_F_NOPREFIXROUTE if brought.is_alone else 0)
    preferred = struct.unpack_from("=I", told.get(_IFA_CACHEINFO, bytes([1] * 4)))[0]
    lifetimes = struct.pack("=IIII", _FOREVER if preferred else 0, _FOREVER, 0, 0)
    kept = {
        kind: data for kind, data in told.items() if kind not in {_IFA_LABEL, _IFA_CACHEINFO, _IFA_FLAGS, _IFA_PROTO}
    }
    attributes = kept | {_IFA_FLAGS: struct.pack("=I", flags), _IFA_CACHEINFO: lifetimes}
    header = struct.pack("=BBBBI", family, prefix, flags & 0xFF, scope, ifindex)
    return header + b"".join(encode_attribute(*item) for item in attributes.items())


def _inherited_route(brought: Brought, ifindex: int) -> bytes:
    """Return the body of a request for a route that the pod takes over from the host: struct rtmsg and attributes. The
    route gets no expiry time. It gets another table if `brought` names one."""
    payload = _route_payload(brought.thing, ifindex)
    fields = list(struct.unpack_from("=BBBBBBBBI", payload))
    left_out = {RTA_EXPIRES, *({_RTA_PREFSRC} if brought.is_sourceless else ())}
    attributes = {kind: data for kind, data in read_attributes(payload[12:]) if kind not in left_out}
    if brought.table:
        fields[4] = 0  # RT_TABLE_UNSPEC: the attribute has the table's number
        attributes[_RTA_TABLE] = struct.pack("=I", brought.table)
    return struct.pack("=BBBBBBBBI", *fields) + b"".join(encode_attribute(*item) for item in attributes.items())


def _route_payload(thing: Captured, ifindex: int) -> bytes:
    """Return the body of a request for a captured route: struct rtmsg with the link's present ifindex, and attributes.
    Flags that only the kernel may set are left out. The remaining lifetime replaces the cache information."""
    fields = list(struct.unpack_from("=BBBBBBBBI", thing.raw, 16))
    fields[8] &= _RTNH_F_ONLINK
    payload = [struct.pack("=BBBBBBBBI", *fields)]
    for kind, data in read_attributes(thing.raw[28:]):
        if kind == RTA_CACHEINFO:
            (expires,) = struct.unpack_from("=i", data, 8)
            if expires > 0:
                payload.append(encode_attribute(RTA_EXPIRES, struct.pack("=I", max(1, expires // _USER_HZ))))
        elif kind != RTA_EXPIRES:
            payload.append(encode_attribute(kind, struct.pack("=I", ifindex) if kind == _RTA_OIF else data))
    return b"".join(payload)


def _neighbour_payload(thing: Captured, ifindex: int) -> bytes:
    """Return the body of a request for a captured neighbour: struct ndmsg with the link's present ifindex, and
    attributes without cache information."""
    family, state, flags, kind = struct.unpack_from("=BxxxxxxxHBB", thing.raw, 16)
    left_out = {_NDA_CACHEINFO, _NDA_PROBES}
    kept = (encode_attribute(*item) for item in read_attributes(thing.raw[28:]) if item[0] not in left_out)
    return struct.pack("=BxxxiHBB", family, ifindex, state, flags, kind) + b"".join(kept)


def _settings_payload(ifindex: int, settings: dict[str, int]) -> bytes:
    """Return the body of a request that sets these settings: struct ifinfomsg and attributes. Interface flags change
    only if "flags" is among the settings."""
    change = _SETTABLE_FLAGS if "flags" in settings else 0
    payload = [struct.pack("=BxHiII", 0, 0, ifindex, settings.get("flags", 0), change)]
    for name, number in _SETTING_ATTRIBUTES.items():
        if name in settings:
            payload.append(encode_u32(number, settings[name]))
    if "linkmode" in settings:
        payload.append(encode_attribute(_IFLA_LINKMODE, bytes([settings["linkmode"]])))
    if "broadcast" in settings:  # the kernel uses the first bytes, as many as the link's address has
        payload.append(encode_attribute(_IFLA_BROADCAST, settings["broadcast"].to_bytes(_MAX_ADDR_LEN, "little")))
    if "addr_gen_mode" in settings:
        mode = encode_attribute(_IFLA_INET6_ADDR_GEN_MODE, bytes([settings["addr_gen_mode"]]))
        payload.append(encode_attribute(_IFLA_AF_SPEC, encode_attribute(_AF_INET6, mode)))
    return b"".join(payload)


_PAYLOADS = {
    RTM_NEWADDR: _address_payload,
    RTM_NEWROUTE: _route_payload,
    RTM_NEWNEIGH: _neighbour_payload,
    disciplines.NEWQDISC: disciplines.payload_of,
    disciplines.NEWTCLASS: disciplines.payload_of,
}
_ABSENT = {
    RTM_NEWADDR: frozenset({errno.EADDRNOTAVAIL}),
    RTM_NEWROUTE: frozenset({errno.ESRCH}),
    RTM_NEWNEIGH: frozenset({errno.ENOENT}),
    disciplines.NEWQDISC: frozenset({errno.ENOENT, errno.EINVAL}),  # EINVAL: another qdisc is in its place
    disciplines.NEWTCLASS: frozenset({errno.ENOENT, errno.EINVAL}),  # EINVAL: the class's qdisc is gone
}
"""The errors of the kernel if the object to delete does not exist, by the kind of message."""

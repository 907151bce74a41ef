"""Requests on a plain rtnetlink socket, made of bytes that the kernel told us earlier.

What was captured is sent again whole, so that attributes which neither pyroute2 nor we know survive. Only what the
kernel does not take back is left out.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator

from nri_rdma.attach.port import KernelError
from nri_rdma.model.link import Captured

RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH = 20, 24, 28  # include/uapi/linux/rtnetlink.h; each DEL is one more
_RTM_SETLINK = 19
_REQUEST, _ACK, _EXCL, _CREATE, _APPEND = 0x1, 0x4, 0x200, 0x400, 0x800
_NLMSG_ERROR = 2
_NESTED = 0x8000  # NLA_F_NESTED
_HEADER = struct.Struct("=IHHII")

_IFA_CACHEINFO = 6
_RTA_OIF, RTA_CACHEINFO, RTA_EXPIRES = 4, 12, 23
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
"""Settings that are a u32 attribute of a link (IFLA_*, include/uapi/linux/if_link.h), in the order that they need:
a GSO size sets the one of IPv4 with it."""
_SETTABLE_FLAGS = 0x4 | 0x20 | 0x80 | 0x100 | 0x200 | 0x1000 | 0x2000 | 0x4000 | 0x8000
"""IFF_DEBUG, NOTRAILERS, NOARP, PROMISC, ALLMULTI, MULTICAST, PORTSEL, AUTOMEDIA, DYNAMIC."""
_IFLA_BROADCAST, _IFLA_LINKMODE, _IFLA_AF_SPEC, _IFLA_INET6_ADDR_GEN_MODE = 2, 17, 26, 8
_MAX_ADDR_LEN = 32  # include/linux/netdevice.h
_IFLA_XDP, _IFLA_XDP_FD, _IFLA_XDP_FLAGS = 43, 1, 3
_XDP_MODES = (0x2, 0x4, 0x8)  # XDP_FLAGS_SKB_MODE, DRV_MODE, HW_MODE: a link may have a program in each
_AF_INET6 = 10


def link_settings(message: bytes) -> tuple[tuple[str, int], ...]:
    """LinkState.settings of a link message. `broadcast` is the hardware address, its first byte the lowest one."""
    (flags,) = struct.unpack_from("=I", message, 24)
    found = {"flags": flags & _SETTABLE_FLAGS}
    names = {number: name for name, number in _SETTING_ATTRIBUTES.items()}
    for kind, data in attributes(message[32:]):
        if kind in names:
            (found[names[kind]],) = struct.unpack("=I", data)
        elif kind == _IFLA_LINKMODE:
            found["linkmode"] = data[0]
        elif kind == _IFLA_BROADCAST:
            found["broadcast"] = int.from_bytes(data, "little")
        elif kind == _IFLA_AF_SPEC:
            inet6 = dict(attributes(dict(attributes(data)).get(_AF_INET6, b"")))
            if mode := inet6.get(_IFLA_INET6_ADDR_GEN_MODE):
                found["addr_gen_mode"] = mode[0]
    order = ("flags", "linkmode", "broadcast", *_SETTING_ATTRIBUTES, "addr_gen_mode")
    return tuple((name, found[name]) for name in order if name in found)


class Replayer:
    """Sends requests from the namespace of the thread that made it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> Replayer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def restore(self, thing: Captured, ifindex: int) -> None:
        """Add it; that it exists already is no error."""
        kind = _kind(thing)
        # Not EXCL for routes: it refuses a second route of the same metric, though it leads to another link.
        flags = _CREATE | (_APPEND if kind == RTM_NEWROUTE else _EXCL)
        self._request("restore", kind, flags, _PAYLOADS[kind](thing, ifindex), thing.text, tolerate={errno.EEXIST})

    def remove(self, thing: Captured, ifindex: int) -> None:
        """Delete it; that it does not exist is no error."""
        kind = _kind(thing)
        self._request("remove", kind + 1, 0, _PAYLOADS[kind](thing, ifindex), thing.text, tolerate=_ABSENT[kind])

    def set_settings(self, ifindex: int, settings: tuple[tuple[str, int], ...]) -> None:
        """Set those of a link's settings that are named."""
        payload = _settings_payload(ifindex, dict(settings))
        self._request("set", _RTM_SETLINK, 0, payload, str(settings), tolerate=set())

    def detach_xdp(self, ifindex: int) -> None:
        """Take the program of every mode off; a mode without one, or that the driver does not have, is no error."""
        for mode in _XDP_MODES:
            nothing = _attribute(_IFLA_XDP_FD, struct.pack("=i", -1)) + _attribute(_IFLA_XDP_FLAGS, _u32(mode))
            payload = struct.pack("=BxHiII", 0, 0, ifindex, 0, 0) + _attribute(_IFLA_XDP | _NESTED, nothing)
            self._request("detach", _RTM_SETLINK, 0, payload, f"XDP mode {mode}", tolerate={errno.EOPNOTSUPP})

    def _request(self, what: str, kind: int, flags: int, payload: bytes, detail: str, *, tolerate: set[int]) -> None:
        self._sequence += 1
        header = _HEADER.pack(16 + len(payload), kind, flags | _REQUEST | _ACK, self._sequence, 0)
        self._socket.send(header + payload)
        answer = self._socket.recv(65536)
        _, answer_kind, _, _, _ = _HEADER.unpack_from(answer)
        if answer_kind != _NLMSG_ERROR:
            raise KernelError(what, errno.EPROTO, f"answer of type {answer_kind}")
        error = -struct.unpack_from("=i", answer, 16)[0]
        if error not in {0, *tolerate}:
            raise KernelError(what, error, detail)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number and value of each attribute; the flags for nesting and byte order are left out of the number."""
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _u32(value: int) -> bytes:
    return struct.pack("=I", value)


def _kind(thing: Captured) -> int:
    return int(_HEADER.unpack_from(thing.raw)[1])


def _address_payload(thing: Captured, ifindex: int) -> bytes:
    """struct ifaddrmsg with the index of today; a lifetime that had run out gets its last second back."""
    family, prefix, flags, scope, _index = struct.unpack_from("=BBBBI", thing.raw, 16)
    payload = [struct.pack("=BBBBI", family, prefix, flags, scope, ifindex)]
    for kind, data in attributes(thing.raw[24:]):
        value = data
        if kind == _IFA_CACHEINFO:
            preferred, valid = struct.unpack_from("=II", data)
            value = struct.pack("=II", min(preferred, max(valid, 1)), max(valid, 1)) + data[8:]
        payload.append(_attribute(kind, value))
    return b"".join(payload)


def _route_payload(thing: Captured, ifindex: int) -> bytes:
    """struct rtmsg without flags that only the kernel may set, RTA_OIF of today, a lifetime instead of its age."""
    fields = list(struct.unpack_from("=BBBBBBBBI", thing.raw, 16))
    fields[8] &= _RTNH_F_ONLINK
    payload = [struct.pack("=BBBBBBBBI", *fields)]
    for kind, data in attributes(thing.raw[28:]):
        if kind == RTA_CACHEINFO:
            (expires,) = struct.unpack_from("=i", data, 8)
            if expires > 0:
                payload.append(_attribute(RTA_EXPIRES, struct.pack("=I", max(1, expires // _USER_HZ))))
        elif kind != RTA_EXPIRES:
            payload.append(_attribute(kind, struct.pack("=I", ifindex) if kind == _RTA_OIF else data))
    return b"".join(payload)


def _neighbour_payload(thing: Captured, ifindex: int) -> bytes:
    """struct ndmsg with the index of today, no cache information."""
    family, state, flags, kind = struct.unpack_from("=BxxxxxxxHBB", thing.raw, 16)
    kept = [_attribute(*item) for item in attributes(thing.raw[28:]) if item[0] not in {_NDA_CACHEINFO, _NDA_PROBES}]
    return struct.pack("=BxxxiHBB", family, ifindex, state, flags, kind) + b"".join(kept)


def _settings_payload(ifindex: int, settings: dict[str, int]) -> bytes:
    """struct ifinfomsg and attributes; flags change only where `change` says so."""
    change = _SETTABLE_FLAGS if "flags" in settings else 0
    payload = [struct.pack("=BxHiII", 0, 0, ifindex, settings.get("flags", 0), change)]
    for name, number in _SETTING_ATTRIBUTES.items():
        if name in settings:
            payload.append(_attribute(number, _u32(settings[name])))
    if "linkmode" in settings:
        payload.append(_attribute(_IFLA_LINKMODE, bytes([settings["linkmode"]])))
    if "broadcast" in settings:  # the kernel takes as many bytes as an address of this link has
        payload.append(_attribute(_IFLA_BROADCAST, settings["broadcast"].to_bytes(_MAX_ADDR_LEN, "little")))
    if "addr_gen_mode" in settings:
        mode = _attribute(_IFLA_INET6_ADDR_GEN_MODE, bytes([settings["addr_gen_mode"]]))
        payload.append(_attribute(_IFLA_AF_SPEC, _attribute(_AF_INET6, mode)))
    return b"".join(payload)


_PAYLOADS = {RTM_NEWADDR: _address_payload, RTM_NEWROUTE: _route_payload, RTM_NEWNEIGH: _neighbour_payload}
_ABSENT = {RTM_NEWADDR: {errno.EADDRNOTAVAIL}, RTM_NEWROUTE: {errno.ESRCH}, RTM_NEWNEIGH: {errno.ENOENT}}
"""How the kernel says that there is nothing to delete."""

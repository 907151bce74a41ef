"""Reads the data center bridging (DCB) settings of a link: priority flow control, bandwidth of traffic classes, and
priorities of applications.

The settings are read if the link's driver supports DCB, and are compared after the link's return to the host. They are
never set (IEEE 802.1Qaz, include/uapi/linux/dcbnl.h).
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.wire.netlink import encode_attribute, read_attributes

_GETDCB = 78  # RTM_GETDCB, include/uapi/linux/rtnetlink.h
_DCBMSG = struct.Struct("=BBH")
_FIRST_ATTRIBUTE = 16 + _DCBMSG.size
_CMD_IEEE_GET = 21
_ATTR_IFNAME, _ATTR_IEEE = 1, 13
_IEEE_ETS, _IEEE_PFC, _IEEE_APP_TABLE = 1, 2, 3
_ETS = struct.Struct("=BBB8s8s8s8s8s8s8s")
"""struct ieee_ets: willing, capacity, credit-based shaping; then send bandwidth, receive bandwidth, algorithm and class
per priority; then the recommended values of bandwidth, algorithm and class."""
_PFC = struct.Struct("=BBBxH")
"""The start of struct ieee_pfc: capacity, enabled priorities, MACsec bypass, delay. Counters follow."""
_APP = struct.Struct("=BBH")  # struct dcb_app: selector, priority, protocol
_NONE = frozenset({errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.EPERM})
"""The kernel's errors if the kernel or the driver does not support DCB, or if the namespace may not see the
settings."""


def read_dcb(route: RouteSocket, name: str) -> str:
    """Return the value of LinkState.dcb for the link with this name; "" if the kernel or driver does not support DCB.
    Raises KernelError if the kernel refuses the query, and WireError for a malformed message."""
    body = _DCBMSG.pack(0, _CMD_IEEE_GET, 0) + encode_attribute(_ATTR_IFNAME, os.fsencode(name) + b"\0")
    try:
        answer = route.ask(_GETDCB, body, f"read the data center bridging of {name}")
    except KernelError as error:
        if error.errno in _NONE:
            return ""
        raise
    return dcb_text(answer)


def dcb_text(answer: bytes) -> str:
    """Return the DCB settings in the kernel's answer as lines of text. Raises WireError for a malformed answer."""
    told = dict(read_attributes(answer[_FIRST_ATTRIBUTE:]))
    ieee = dict(read_attributes(told.get(_ATTR_IEEE, b"")))
    return "\n".join((*_ets(ieee.get(_IEEE_ETS, b"")), *_pfc(ieee.get(_IEEE_PFC, b"")), *_apps(ieee)))


def _ets(data: bytes) -> Iterator[str]:
    if len(data) >= _ETS.size:
        willing, _, _, bandwidth, _, algorithm, classes, *_ = _ETS.unpack_from(data)
        yield f"ets willing {willing}"
        yield f"ets tx-bandwidth {_numbers(bandwidth)}"
        yield f"ets algorithm {_numbers(algorithm)}"
        yield f"ets class-of-priority {_numbers(classes)}"


def _pfc(data: bytes) -> Iterator[str]:
    if len(data) >= _PFC.size:
        _, enabled, bypass, delay = _PFC.unpack_from(data)
        yield f"pfc enabled {enabled:#04x}"
        yield f"pfc macsec-bypass {bypass}"
        yield f"pfc delay {delay}"


def _apps(ieee: dict[int, bytes]) -> Iterator[str]:
    """Yield one line for the whole table of application priorities. Its entries are sorted, because the kernel's table
    has no order."""
    entries = [
        _APP.unpack_from(data) for _, data in read_attributes(ieee.get(_IEEE_APP_TABLE, b"")) if len(data) >= _APP.size
    ]
    if entries:
        words = (f"{selector}:{protocol}={priority}" for selector, priority, protocol in sorted(entries))
        yield f"app table {','.join(words)}"


def _numbers(data: bytes) -> str:
    return ",".join(str(value) for value in data)

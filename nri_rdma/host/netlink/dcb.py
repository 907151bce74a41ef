"""The data center bridging of a link: priority flow control, bandwidth of traffic classes, applications' priorities.

It is read where the link's driver answers, and compared after a return; nothing sets it (IEEE 802.1Qaz,
include/uapi/linux/dcbnl.h).
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.route_socket import RouteSocket
from nri_rdma.wire.netlink import encode_attribute, read_attributes

_GETDCB = 78  # RTM_GETDCB, include/uapi/linux/rtnetlink.h
_DCBMSG = struct.Struct("=BBH")
_FIRST_ATTRIBUTE = 16 + _DCBMSG.size
_CMD_IEEE_GET = 21
_ATTR_IFNAME, _ATTR_IEEE = 1, 13
_IEEE_ETS, _IEEE_PFC, _IEEE_APP_TABLE = 1, 2, 3
_ETS = struct.Struct("=BBB8s8s8s8s8s8s8s")
"""struct ieee_ets: willing, capacity, credit-based shaping; bandwidth to send and to receive, algorithm and class per
priority, and the recommendations of the last three."""
_PFC = struct.Struct("=BBBxH")
"""The begin of struct ieee_pfc: capacity, enabled priorities, MACsec bypass, delay. Counters follow."""
_APP = struct.Struct("=BBH")  # struct dcb_app: selector, priority, protocol
_NONE = frozenset({errno.EOPNOTSUPP, errno.ENODEV, errno.EINVAL, errno.EPERM})
"""The kernel's words for a kernel without DCB, a driver without it, and a namespace in which nobody is told."""


def read_dcb(route: RouteSocket, name: str) -> str:
    """Return LinkState.dcb of a link; "" where nobody answers. Raises KernelError, WireError."""
    body = _DCBMSG.pack(0, _CMD_IEEE_GET, 0) + encode_attribute(_ATTR_IFNAME, os.fsencode(name) + b"\0")
    try:
        answer = route.ask(_GETDCB, body, f"read the data center bridging of {name}")
    except KernelError as error:
        if error.errno in _NONE:
            return ""
        raise
    return dcb_text(answer)


def dcb_text(answer: bytes) -> str:
    """Return the lines of an answer. Raises WireError."""
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
    """Yield one line for all: a table has no order."""
    entries = [
        _APP.unpack_from(data) for _, data in read_attributes(ieee.get(_IEEE_APP_TABLE, b"")) if len(data) >= _APP.size
    ]
    if entries:
        words = (f"{selector}:{protocol}={priority}" for selector, priority, protocol in sorted(entries))
        yield f"app table {','.join(words)}"


def _numbers(data: bytes) -> str:
    return ",".join(str(value) for value in data)

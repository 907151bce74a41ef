"""The attributes of a link's message, which several readers of it want. Without its header, which counts the requests,
the kernel tells of a link in the same bytes until something changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from nri_rdma.wire import WireError
from nri_rdma.wire.netlink import read_attributes

HEADER_BYTES: Final = 16
FIRST_ATTRIBUTE: Final = 32
"""Behind nlmsghdr and ifinfomsg."""
_AF_SPEC = 26  # IFLA_AF_SPEC, include/uapi/linux/if_link.h
_NESTED_MAX = 0xFFFF  # nla_len has 16 bits
KEPT: Final = 64
"""So many messages are kept with what was read of them."""


@lru_cache(KEPT)
def attributes_of_body(body: bytes) -> Mapping[int, bytes]:
    """Return the attributes by number; `body` is the message behind nlmsghdr. Raises WireError, also for a message in
    which a nested length has wrapped: what is nested then stands beside the link's own attributes."""
    every = list(read_attributes(body[FIRST_ATTRIBUTE - HEADER_BYTES :]))
    told = dict(every)
    length = HEADER_BYTES + len(body)
    if length > _NESTED_MAX and len(told) < len(every):
        raise WireError(f"an attribute is repeated in a link's message of {length} bytes")
    return MappingProxyType(told)


def families_of(message: bytes) -> Mapping[int, bytes]:
    """Return what a link has for each address family (IFLA_AF_SPEC). Raises WireError."""
    return dict(read_attributes(attributes_of_body(message[HEADER_BYTES:]).get(_AF_SPEC, b"")))

"""The attributes of a link's netlink message, parsed once for several readers.

Apart from the message's header, its bytes stay identical until the link changes, so parsed messages are remembered.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from nri_rdma.wire import WireError
from nri_rdma.wire.netlink import read_attributes

HEADER_BYTES: Final = 16
FIRST_ATTRIBUTE: Final = 32
"""The offset of the first attribute, after nlmsghdr and ifinfomsg."""
_AF_SPEC = 26  # IFLA_AF_SPEC, include/uapi/linux/if_link.h
_NESTED_MAX = 0xFFFF  # nla_len has 16 bits
KEPT: Final = 64
"""The number of messages whose parsed attributes are remembered."""


@lru_cache(KEPT)
def attributes_of_body(body: bytes) -> Mapping[int, bytes]:
    """Return the attributes of a link's message by number; `body` is the message after its nlmsghdr. Raises WireError
    for a malformed message.

    A message is also malformed if the 16-bit length of a nested attribute has overflowed, because nested attributes
    then appear among the link's own.
    """
    every = list(read_attributes(body[FIRST_ATTRIBUTE - HEADER_BYTES :]))
    told = dict(every)
    length = HEADER_BYTES + len(body)
    if length > _NESTED_MAX and len(told) < len(every):
        raise WireError(f"an attribute is repeated in a link's message of {length} bytes")
    return MappingProxyType(told)


def families_of(message: bytes) -> Mapping[int, bytes]:
    """Return a link's attributes for each address family (IFLA_AF_SPEC). Raises WireError for a malformed message."""
    return dict(read_attributes(attributes_of_body(message[HEADER_BYTES:]).get(_AF_SPEC, b"")))

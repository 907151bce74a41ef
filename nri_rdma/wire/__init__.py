"""Codecs of protocols: bytes to events and back, without I/O, clock or logging.

Every codec here promises: whatever the peer sends, the caller gets events or WireError, never another exception, and
each step consumes input. How the bytes were split into pieces does not change the result.
"""

from nri_rdma.wire.error import WireError

__all__ = ["WireError"]

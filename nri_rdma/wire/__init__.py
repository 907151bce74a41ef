"""Bytes to events and back, without I/O, clock or logging.

The promise of every codec here: whatever the peer sends, the caller gets events or WireError, never another
exception, and each step consumes input. Results do not depend on how the bytes were cut into pieces.
"""

from nri_rdma.wire.error import WireError

__all__ = ["WireError"]

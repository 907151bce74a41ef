"""Codecs of protocols: bytes to events and back, without I/O, clock or logging.

Every codec here promises: whatever the peer sends, the caller gets events or WireError, never another exception. The
result does not depend on how the bytes were split into pieces.
"""

from nri_rdma.wire.error import WireError

__all__ = ["WireError"]

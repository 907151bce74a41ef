"""The exception for violations of the protocol by this end."""

from __future__ import annotations


class ProtocolError(Exception):
    """Sending this message would violate the protocol, for example because the peer has ended the stream meanwhile.

    There is nothing to send, and the connection is unchanged.
    """

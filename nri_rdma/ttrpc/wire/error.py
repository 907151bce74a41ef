"""The exception for a message that this end of the connection must not send."""

from __future__ import annotations


class ProtocolError(Exception):
    """A message to be sent would violate the protocol, for example because the peer has ended the stream meanwhile.

    There is nothing to send, and the connection is unchanged.
    """

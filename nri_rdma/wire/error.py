"""The only exception that the codecs raise."""

from __future__ import annotations


class WireError(Exception):
    """The bytes from the peer, or a message to be sent, break the protocol. The connection must not be used any more.

    A subclass says so if the connection can still be used.
    """

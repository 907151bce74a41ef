"""The only exception that the codecs raise."""

from __future__ import annotations


class WireError(Exception):
    """Bytes from the peer, or a message to be sent, break the protocol. The connection must not be used any more,
    unless the docstring of a subclass says otherwise."""

"""The one exception of the protocol's code."""

from __future__ import annotations


class ProtocolError(Exception):
    """The peer, or a message of ours, breaks the protocol; the connection it happened on must not be used again.

    Subclasses say when the connection survives.
    """

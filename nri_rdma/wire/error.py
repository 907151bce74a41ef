"""The one exception of wire code."""

from __future__ import annotations


class WireError(Exception):
    """The peer, or a message of ours, breaks the protocol; the connection it happened on is not to be used again.

    Subclasses say when the connection survives.
    """

"""The one exception of the protocol's code."""

from __future__ import annotations


class ProtocolError(Exception):
    """A message of ours would break the protocol, also because the peer has ended or broken its stream meanwhile.

    Nothing may be sent, and the connection is as it was.
    """

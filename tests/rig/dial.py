"""The one way the tests dial a gRPC server on a Unix socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any  # Any: grpc has no types

import grpc

_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Without it all channels to one path share a connection, and with it the pause after a failure to connect: a call to a
server that has just started again would fail. Go's channels, such as the kubelet's, share nothing."""


def dial(socket: Path) -> Any:
    """Return a channel to the server on this socket; it connects with the first call. The caller closes it."""
    return grpc.insecure_channel(f"unix:{socket}", options=_OWN_CONNECTION)

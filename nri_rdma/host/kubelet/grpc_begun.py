"""Initialises grpc while the process still has free file descriptors: grpc aborts the process if it cannot get one."""

from __future__ import annotations

import os
from typing import Any  # Any: grpc has no types


def begin_grpc() -> Any:
    """Load grpc and return a channel that leads nowhere. While the channel is open, grpc keeps the descriptors that it
    needs for itself. The caller closes the channel."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # otherwise grpc writes to stderr when a peer ends
    import grpc

    return grpc.insecure_channel("unix:/nowhere")

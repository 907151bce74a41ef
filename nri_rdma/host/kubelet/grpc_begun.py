"""grpc, begun while the process has descriptors for it: one that finds none for itself ends the process."""

from __future__ import annotations

import os
from typing import Any  # Any: grpc has no types


def begin_grpc() -> Any:
    """Load grpc and return a channel to nowhere. As long as that is open, grpc has all that it needs for itself; the
    caller closes it."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it tells of a peer's end on our stderr, past our log
    import grpc

    return grpc.insecure_channel("unix:/nowhere")

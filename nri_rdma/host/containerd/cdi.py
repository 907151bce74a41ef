"""Whether containerd reads CDI specs: its setting enable_cdi, which is off by default before containerd 2.0 and gone
since 2.4, which always reads them.

containerd itself is asked: its configuration has several files and defaults, and may have changed since its start.
"""

from __future__ import annotations

from pathlib import Path

from nri_rdma.host.containerd.client import Containerd
from nri_rdma.host.containerd.handlers import ASK_S, listens


def reads_cdi_specs(socket: Path | None) -> bool | None:
    """Return whether the containerd at this socket reads CDI specs; None where nobody listens there, or its answer does
    not say. Raise ContainerdError where somebody listens and does not answer: it may still be starting. Blocks."""
    if socket is None or not listens(socket):
        return None
    with Containerd(socket, call_s=ASK_S) as containerd:
        told = containerd.configuration()
    if not isinstance(told, dict):
        return None
    is_on = told.get("enableCDI", "cdiSpecDirs" in told or None)
    return is_on if isinstance(is_on, bool) else None

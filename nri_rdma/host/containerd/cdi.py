"""Whether containerd reads CDI specs: its setting enable_cdi, which is off by default before containerd 2.0 and gone
since 2.4, which always reads them.

containerd itself is asked: its configuration has several files and defaults, and may have changed since its start.
"""

from __future__ import annotations

import socket as socketlib
from pathlib import Path

from nri_rdma.host.containerd.client import Containerd

ASK_S = 5.0
"""Time limit of the question; after it the question fails."""


def reads_cdi_specs(socket: Path | None) -> bool | None:
    """Return whether the containerd at this socket reads CDI specs; None where nobody listens there, or its answer does
    not say. Raise ContainerdError where somebody listens and does not answer: it may still be starting. Blocks."""
    if socket is None or not _listens(socket):
        return None
    with Containerd(socket, call_s=ASK_S) as containerd:
        told = containerd.configuration()
    if not isinstance(told, dict):
        return None
    is_on = told.get("enableCDI", "cdiSpecDirs" in told or None)
    return is_on if isinstance(is_on, bool) else None


def _listens(path: Path) -> bool:
    with socketlib.socket(socketlib.AF_UNIX, socketlib.SOCK_STREAM) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True

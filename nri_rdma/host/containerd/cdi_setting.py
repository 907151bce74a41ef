"""Asks the running containerd whether it reads CDI specs. containerd's setting enable_cdi is off by default before 2.0.
Since 2.4, containerd always reads CDI specs, and the setting no longer exists.

The running containerd is asked, because its configuration has several files and defaults, and may have changed since it
started.
"""

from __future__ import annotations

from pathlib import Path

from nri_rdma.host.containerd.containerd_api import Containerd
from nri_rdma.host.containerd.handlers import ASK_S, listens


def reads_cdi_specs(socket: Path | None) -> bool | None:
    """Return whether the containerd at this socket reads CDI specs; None if nothing listens there or the answer does
    not say it.

    Raises ContainerdError if a process listens there but does not answer: containerd may still be starting. Blocks.
    """
    if socket is None or not listens(socket):
        return None
    with Containerd(socket, call_s=ASK_S) as containerd:
        told = containerd.configuration()
    if not isinstance(told, dict):
        return None
    is_on = told.get("enableCDI", "cdiSpecDirs" in told or None)
    return is_on if isinstance(is_on, bool) else None

"""Whether containerd reads CDI specs: its setting enable_cdi, which is off by default before containerd 2.0.

containerd itself is asked: its configuration has several files and defaults, and may have changed since its start.
"""

from __future__ import annotations

import logging
from pathlib import Path

from nri_rdma.host.containerd.client import Containerd, ContainerdError

log = logging.getLogger(__name__)

ASK_S = 5.0
"""Time limit of the question; after it nothing is known."""


def reads_cdi_specs(socket: Path | None) -> bool | None:
    """Return whether the containerd at this socket reads CDI specs; None where that cannot be known: there is none, or
    it does not say. Blocks: for a worker."""
    if socket is None:
        return None
    try:
        with Containerd(socket, call_s=ASK_S) as containerd:
            told = containerd.configuration()
    except ContainerdError as error:
        if not error.is_absent:
            log.warning("containerd does not say whether it reads CDI specs", extra={"error": str(error)})
        return None
    is_on = told.get("enableCDI") if isinstance(told, dict) else None
    return is_on if isinstance(is_on, bool) else None

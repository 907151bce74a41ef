"""How much the kernel prefers the daemon to the node's other programs."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_AS_STARTED_BY_MOST = 0


def prefer(nice: int) -> None:
    """Give all threads that nice value, unless somebody chose one when the daemon was started. Later threads have that
    of the thread which starts them."""
    if nice == _AS_STARTED_BY_MOST or os.getpriority(os.PRIO_PROCESS, 0) != _AS_STARTED_BY_MOST:
        return
    try:
        for thread in [int(it.name) for it in Path("/proc/self/task").iterdir()]:
            with suppress(ProcessLookupError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, thread, nice)
    except OSError as error:  # no CAP_SYS_NICE, or a filter of system calls
        log.info("runs with the priority of other programs", extra={"nice": nice, "error": str(error)})

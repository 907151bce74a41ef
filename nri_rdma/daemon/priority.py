"""Sets the daemon's nice value."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_AS_STARTED_BY_MOST = 0


def prefer(nice: int) -> None:
    """Give all threads of the daemon this nice value, unless the daemon was started with a nice value of its own.
    Threads that are created later inherit it."""
    if nice == _AS_STARTED_BY_MOST or os.getpriority(os.PRIO_PROCESS, 0) != _AS_STARTED_BY_MOST:
        return
    try:
        for thread in [int(it.name) for it in Path("/proc/self/task").iterdir()]:
            with suppress(ProcessLookupError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, thread, nice)
    except OSError as error:  # no CAP_SYS_NICE, or a filter of system calls
        log.info("runs with the priority of other programs", extra={"nice": nice, "error": str(error)})

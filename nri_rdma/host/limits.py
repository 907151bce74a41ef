"""Sets the rdma cgroup limits of containers before they run, and removes the limits when a container's first process
ends.

Linux up to at least 6.12 keeps the limits of a removed cgroup in a list that then refers to freed memory, and crashes
when the RDMA device is removed later (docs/adr/0012). The daemon must therefore remove the limits before the runtime
removes the cgroup. The daemon and the runtime learn of the process's end at one moment, but the runtime has to start a
program first.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from nri_rdma.attach.port import Processes, ProcessIdentity
from nri_rdma.host.cgroup import (
    enable_rdma,
    kill_all,
    lift_rdma_max,
    outlived_by_limits,
    processes_of,
    runtime_enables_rdma,
    write_rdma_max,
)
from nri_rdma.host.watch.processes import start_of

log = logging.getLogger(__name__)

_GONE = (errno.ENOENT, errno.ENODEV)


class ContainerLimits:
    """Sets the rdma limits of containers and removes them when the containers end. Safe for use by several threads."""

    def __init__(self, cgroup_root: Path, processes: Processes) -> None:
        self._root = cgroup_root
        self._processes = processes
        self._lock = threading.Lock()  # held while a process is added: its end may be reported meanwhile
        self._limited: dict[ProcessIdentity, str] = {}

    def left_to_runtime(self, cgroups_path: str, container_id: str, sandbox_id: str) -> bool:
        """Return whether the OCI runtime of this pod can write the rdma limits of a container itself. If not, the
        daemon writes them."""
        return runtime_enables_rdma(self._root, cgroups_path, container_id, sandbox_id)

    def enable(self, cgroups_path: str, pid: int | None, where: str) -> None:
        """Enable the rdma controller for a container's cgroup. `pid` is the container's first process, or None if
        unknown.

        Raises LimitsError, which names the container as `where`, if that process is in another cgroup, the cgroup is
        empty, or the kernel refuses.
        """
        enable_rdma(self._root, cgroups_path, pid, where)

    def write(self, cgroups_path: str, lines: Sequence[str], where: str) -> None:
        """Write limits to rdma.max of a container's cgroup; each of `lines` limits one device. Raises LimitsError,
        which names the container as `where`, if the kernel refuses a line."""
        write_rdma_max(self._root, cgroups_path, lines, where)

    def kill(self, cgroups_path: str, where: str) -> None:
        """Kill the processes of a container that must not run. An error is only logged, because the caller refuses the
        container in any case."""
        try:
            kill_all(self._root, cgroups_path)
        except (OSError, ValueError) as error:
            log.warning(
                "cannot end a container without its rdma limits; if the runtime starts it, it runs without limits",
                extra={"container": where, "error": str(error), "next": "delete the pod"},
            )

    def lift_at_end(self, cgroups_path: str, where: str) -> None:
        """Arrange that the rdma limits of a running container are removed when it ends, even if the runtime wrote them.
        An error is only logged, because it would matter only after the container's end."""
        try:
            if outlived_by_limits(self._root, cgroups_path):
                self._watch(cgroups_path)
        except (OSError, ValueError) as error:
            log.warning(
                "cannot remove the rdma limits of a container at its end",
                extra={"container": where, "error": str(error)},
            )

    def process_gone(self, process: ProcessIdentity) -> None:
        """Remove the rdma limits of the container whose first process has ended. Other processes are ignored."""
        with self._lock:
            cgroups_path = self._limited.pop(process, None)
        if cgroups_path is not None:
            self._lift(cgroups_path)

    def _watch(self, cgroups_path: str) -> None:
        processes = processes_of(self._root, cgroups_path)
        if processes and not any(processes):
            raise ProcessLookupError(
                errno.ESRCH, "the daemon does not see its processes: it needs the host's pid namespace"
            )
        with self._lock:
            try:
                self._limited[self._processes.watch(_first(filter(None, processes)))] = cgroups_path
            except (ValueError, ProcessLookupError):  # it has ended
                self._lift(cgroups_path)

    def _lift(self, cgroups_path: str) -> None:
        try:
            lift_rdma_max(self._root, cgroups_path)
        except OSError as error:
            if error.errno not in _GONE:
                log.warning(
                    "cannot remove the rdma limits of a cgroup", extra={"cgroup": cgroups_path, "error": str(error)}
                )
            else:
                log.info("the cgroup went before its rdma limits", extra={"cgroup": cgroups_path})


def _first(pids: Iterable[int]) -> int:
    """Return the process that started first. Raise ValueError if all have ended."""
    started = []
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended since the cgroup was read, and others of the container run on
            started.append((start_of(pid), pid))
    return min(started)[1]

"""How the end of a sandbox is noticed when no event tells: its namespace's path is gone, or its process.

What cannot be watched is noticed by the next Synchronize, so a watch that fails is logged and costs no pod its devices.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from nri_rdma.attach.port import Kernel, KernelError, Namespace, Processes, ProcessIdentity
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.model.pod import Pod

log = logging.getLogger(__name__)

_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ESTALE})
"""What the kernel says of a path where no network namespace is (EINVAL: where something else is)."""


class Ends:
    """Has the namespace or the process of a sandbox watched, and tells whether they are still there."""

    def __init__(self, kernel: Kernel, on_held: Callable[[str], None], processes: Processes | None) -> None:
        """`on_held` has the path of a namespace watched."""
        self._kernel = kernel
        self._on_held = on_held
        self._processes = processes or NoProcesses()

    def watch(self, pod: Pod) -> None:
        """Watch the path of a pod's namespace, if that tells its end. Called before the namespace is opened: a removal
        after that is reported, one before it makes opening fail."""
        if not pod.netns_path or lives_by_process(pod):
            return
        try:
            self._on_held(pod.netns_path)
        except OSError as error:  # without the watch its end is noticed by the next Synchronize
            log.warning("namespace is not watched", extra={"path": pod.netns_path, "error": str(error)})

    def watch_process(self, pod: Pod) -> ProcessIdentity | None:
        """Watch and return the process whose end is the end of the pod, if no namespace tells it; None when the process
        cannot be seen."""
        if not lives_by_process(pod):
            return None
        try:
            return self._processes.watch(pod.pid)
        except OSError as error:  # perhaps we have PIDs of our own: without the watch the next Synchronize tells
            log.warning("process is not watched", extra={"pod": str(pod), "pid": pod.pid, "error": str(error)})
            return None

    def open_again(self, record: SandboxRecord) -> Namespace | None:
        """Open the namespace of a record that holds one, if it is still the same: paths are reused, cookies are not.

        Raises KernelError when that cannot be seen.
        """
        self.watch(record.pod)
        if record.namespace is None:
            return None
        try:
            namespace = self._kernel.open_namespace(record.namespace.path)
        except KernelError as error:
            if error.errno not in _GONE:
                raise
            log.info("namespace is gone", extra={"path": record.namespace.path, "error": str(error)})
            return None
        if namespace.identity != record.namespace:
            namespace.close()
            return None
        namespace.rest()
        return namespace

    def is_there(self, record: SandboxRecord, namespace: Namespace | None) -> bool:
        """Return whether the pod's namespace, as it was just opened, still exists; for a pod that lives by its process,
        whether that does. A namespace that nothing was moved into is not opened: its path tells."""
        if not self._process_is_there(record.process):
            return False
        if not record.pod.netns_path or (not record.pod.is_listed and record.namespace is None):
            return True
        if record.namespace is not None:
            return namespace is not None
        return self.can_be_opened(record.pod.netns_path)

    def can_be_opened(self, path: str) -> bool:
        """Return whether a network namespace is at a path. Raises KernelError when that cannot be seen."""
        try:
            self._kernel.open_namespace(path).close()
        except KernelError as error:
            if error.errno not in _GONE:
                raise
            return False
        return True

    def _process_is_there(self, process: ProcessIdentity | None) -> bool:
        """Return whether a process that was watched still runs; True where no process was watched."""
        if process is None:
            return True
        try:
            self._processes.watch_again(process)
        except ProcessLookupError:
            return False
        except OSError as error:  # as in watch_process
            log.warning("process is not watched", extra={"pid": process.pid, "error": str(error)})
        return True


class NoProcesses:
    """Watches nothing: sandboxes without a namespace then end by events only."""

    def watch(self, pid: int) -> ProcessIdentity:
        raise OSError(errno.EOPNOTSUPP, f"process {pid} cannot be watched")

    def watch_again(self, process: ProcessIdentity) -> None:
        self.watch(process.pid)


def lives_by_process(pod: Pod) -> bool:
    """Return whether a process tells the end of this pod: the pod is on the host's network, or it is a container that
    no runtime lists, whose namespace may be another container's."""
    return pod.pid != 0 and (not pod.netns_path or not pod.is_listed)

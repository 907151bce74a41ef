"""The detection of a sandbox's end without an event of the runtime: its namespace's path or its process is gone.

If neither can be watched, the runtime's next Synchronize reports the end. So a failed watch is only logged, and no pod
that a runtime lists is refused for it.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

from nri_rdma.attach.port import Kernel, KernelError, Namespace, Processes, ProcessIdentity
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.model.pod import Pod

log = logging.getLogger(__name__)

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC})
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ESTALE})
"""The errors for a path without a network namespace. EINVAL: the path leads to something else."""


class Ends:
    """Watches the namespaces and processes of sandboxes, and checks whether they still exist."""

    def __init__(self, kernel: Kernel, on_held: Callable[[str], None], processes: Processes | None) -> None:
        """`on_held` is a function that starts to watch the path of a network namespace. `processes` watches processes
        for their end; None: no process can be watched."""
        self._kernel = kernel
        self._on_held = on_held
        self._processes = processes or NoProcesses()

    def watch(self, pod: Pod) -> None:
        """Watch the path of the pod's namespace, unless the pod ends with its process (`lives_by_process`). Call it
        before the namespace is opened: an earlier removal makes opening fail, and a later one is reported."""
        if not pod.netns_path or lives_by_process(pod):
            return
        try:
            self._on_held(pod.netns_path)
        except OSError as error:  # then the next Synchronize reports the pod's end
            log.warning("namespace is not watched", extra={"path": pod.netns_path, "error": str(error)})

    def watch_process(self, pod: Pod) -> ProcessIdentity | None:
        """Watch the process whose end is the end of the pod, and return it. Return None if the pod has a namespace to
        watch instead, or if processes cannot be watched here. Raise KernelError if it cannot be watched for lack of
        descriptors or memory and no runtime lists the pod, because then nobody would report its end."""
        if not lives_by_process(pod):
            return None
        try:
            return self._processes.watch(pod.pid)
        except OSError as error:  # perhaps the daemon has its own PID namespace; the next Synchronize reports the end
            self._refuse_exhausted(error, pod.pid, is_listed=pod.is_listed)
            log.warning("process is not watched", extra={"pod": str(pod), "pid": pod.pid, "error": str(error)})
            return None

    def open_again(self, record: SandboxRecord) -> Namespace | None:
        """Open the namespace of a record. Return None if the record has none, or if its namespace no longer exists. A
        namespace with another cookie at the path is another namespace. Raises KernelError if the kernel does not let us
        find out."""
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
        """Return whether the pod of a record still exists: its watched process runs, and its network namespace exists.
        `namespace` is the result of `open_again` for this record. Raises KernelError if the kernel does not let us find
        out."""
        if not self._process_is_there(record.process, is_listed=record.pod.is_listed):
            return False
        if not record.pod.netns_path or (not record.pod.is_listed and record.namespace is None):
            return True
        if record.namespace is not None:
            return namespace is not None
        return self.can_be_opened(record.pod.netns_path)

    def can_be_opened(self, path: str) -> bool:
        """Return whether there is a network namespace at the path. Raises KernelError if the kernel does not let us
        find out."""
        try:
            self._kernel.open_namespace(path).close()
        except KernelError as error:
            if error.errno not in _GONE:
                raise
            return False
        return True

    def _refuse_exhausted(self, error: OSError, pid: int, *, is_listed: bool) -> None:
        """Raise KernelError if a process cannot be watched for lack of descriptors or memory, and no runtime lists its
        pod."""
        if not is_listed and error.errno in _EXHAUSTED:
            raise KernelError(f"watch process {pid}", error.errno) from error

    def _process_is_there(self, process: ProcessIdentity | None, *, is_listed: bool) -> bool:
        """Return whether the watched process still runs; True if none was watched. Raise KernelError if it cannot be
        watched for lack of descriptors or memory and no runtime lists its pod."""
        if process is None:
            return True
        try:
            self._processes.watch_again(process)
        except ProcessLookupError:
            return False
        except OSError as error:  # as in watch_process
            self._refuse_exhausted(error, process.pid, is_listed=is_listed)
            log.warning("process is not watched", extra={"pid": process.pid, "error": str(error)})
        return True


class NoProcesses:
    """Watches no process: every call raises OSError. The end of a sandbox without a namespace is then known from the
    runtime's events only."""

    def watch(self, pid: int) -> ProcessIdentity:
        raise OSError(errno.EOPNOTSUPP, f"process {pid} cannot be watched")

    def watch_again(self, process: ProcessIdentity) -> None:
        self.watch(process.pid)


def lives_by_process(pod: Pod) -> bool:
    """Return whether the pod ends when its process `pid` ends. That holds for a pod on the host's network, and for a
    container that no runtime lists, because such a container may use another container's namespace."""
    return pod.pid != 0 and (not pod.netns_path or not pod.is_listed)

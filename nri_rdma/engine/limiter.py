"""The rdma limits of containers that the runtime was not given, or may have mixed up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nri_rdma.attach.holdings import Holdings
from nri_rdma.decide.inject import rdma_max
from nri_rdma.errors import LimitsError
from nri_rdma.observe.spans import Recorder


class Limits(Protocol):
    """Writes the limits of containers; `where` names the container in errors and log lines."""

    def left_to_runtime(self, cgroups_path: str, container_id: str, sandbox_id: str) -> bool:
        """Return whether the OCI runtime can write the container's limits itself."""

    def enable(self, cgroups_path: str, pid: int | None, where: str) -> None:
        """Have the rdma controller in the cgroup of a container whose first process is `pid` (None: nobody knows).
        Raises LimitsError."""

    def write(self, cgroups_path: str, lines: Sequence[str], where: str) -> None:
        """Write lines of rdma.max to the container's cgroup. Raises LimitsError."""

    def kill(self, cgroups_path: str, where: str) -> None:
        """Kill the container's processes. Never raises."""

    def lift_at_end(self, cgroups_path: str, where: str) -> None:
        """Remove the container's limits when it ends. Never raises."""


class Limiter:
    """Limits the containers of attached sandboxes. Blocks on files. Safe for use by several threads."""

    def __init__(self, limits: Limits, spans: Recorder) -> None:
        self._limits = limits
        self._spans = spans

    def limit_all(self, holdings: Holdings, container: str, cgroups_path: str, *, also_one: bool = False) -> None:
        """Write every line of limits, also the first: a runtime that was given several may have mixed them up
        (docs/adr/0009). A single line was written by the runtime, except for a container that was created without us
        (`also_one`)."""
        lines = _lines(holdings, container)
        if not lines:
            return
        where = _where(holdings, container)
        try:
            if also_one or len(lines) > 1:
                with self._spans.span("limit"):
                    self._limits.write(cgroups_path, lines, where)
        finally:
            self._limits.lift_at_end(cgroups_path, where)  # also the runtime's lines, also of a refused start

    def has_limits(self, holdings: Holdings, container: str) -> bool:
        """Return whether a container is to be limited."""
        return bool(_lines(holdings, container))

    def left_to_runtime(self, cgroups_path: str, container_id: str, sandbox_id: str) -> bool:
        """Return whether the OCI runtime can write the limits of a container of this sandbox itself. One that cannot
        (crun) refuses a container for which it is told of any (docs/adr/0052)."""
        return self._limits.left_to_runtime(cgroups_path, container_id, sandbox_id)

    def limit_created(self, holdings: Holdings, container: str, cgroups_path: str, container_id: str) -> bool:
        """Write the limits of a container that was created and does not run yet, if the OCI runtime was told of none;
        return whether that was so. Raises LimitsError."""
        if not _lines(holdings, container) or self.left_to_runtime(cgroups_path, container_id, holdings.pod.sandbox_id):
            return False
        self.limit_alone(holdings, container, cgroups_path, None)
        return True

    def limit_starting(self, holdings: Holdings, container: str, cgroups_path: str, container_id: str) -> None:
        """Write the limits of a container that is about to start, as far as the OCI runtime was not told of them. Kill
        one that would have none: CRI-O starts it whatever we answer. Raises LimitsError."""
        try:
            if self.limit_created(holdings, container, cgroups_path, container_id):
                return
        except LimitsError:
            self.kill(holdings, container, cgroups_path)
            raise
        self.limit_all(holdings, container, cgroups_path)

    def kill(self, holdings: Holdings, container: str, cgroups_path: str) -> None:
        """Kill the processes of a container that must not run. Never raises."""
        self._limits.kill(cgroups_path, _where(holdings, container))

    def limit_alone(self, holdings: Holdings, container: str, cgroups_path: str, pid: int | None) -> None:
        """Write every line of limits of a container whose OCI runtime was told of none: it may not have enabled the
        controller either. `pid` is the container's first process, None where nobody knows. Raises LimitsError."""
        if _lines(holdings, container):
            self._limits.enable(cgroups_path, pid, _where(holdings, container))
        self.limit_all(holdings, container, cgroups_path, also_one=True)

    def lift_at_end(self, holdings: Holdings, container: str, cgroups_path: str) -> None:
        """Have the limits of a container that was limited by an earlier daemon removed at its end. Never raises."""
        if _lines(holdings, container):
            self._limits.lift_at_end(cgroups_path, _where(holdings, container))


def _lines(holdings: Holdings, container: str) -> tuple[str, ...]:
    return rdma_max(holdings.attached, container) if holdings else ()


def _where(holdings: Holdings, container: str) -> str:
    """Return the name of a container in errors; one that stands for its pod has that one's."""
    pod = holdings.pod
    return f"{pod}, container {container}" if pod.is_listed else str(pod)

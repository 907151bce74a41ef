"""Writes the rdma limits of containers that were not given to the runtime, or that the runtime may have mixed up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nri_rdma.attach.holdings import Holdings
from nri_rdma.decide.inject import rdma_max
from nri_rdma.errors import LimitsError
from nri_rdma.observe.spans import Recorder


class Limits(Protocol):
    """Writes limits to the cgroups of containers; `where` names the container in errors and log lines."""

    def left_to_runtime(self, cgroups_path: str, container_id: str, sandbox_id: str) -> bool:
        """Return whether the OCI runtime can write the container's limits itself."""

    def enable(self, cgroups_path: str, pid: int | None, where: str) -> None:
        """Enable the rdma controller in the cgroup of a container. `pid` is its first process; None: not known. Raise
        LimitsError if the controller cannot be enabled."""

    def write(self, cgroups_path: str, lines: Sequence[str], where: str) -> None:
        """Write lines to rdma.max in the container's cgroup. Raise LimitsError if a line cannot be written."""

    def kill(self, cgroups_path: str, where: str) -> None:
        """Kill the container's processes. Never raises."""

    def lift_at_end(self, cgroups_path: str, where: str) -> None:
        """Remove the container's limits when it ends. Never raises."""


class Limiter:
    """Limits the containers of attached sandboxes. Blocks on files. Thread-safe."""

    def __init__(self, limits: Limits, spans: Recorder) -> None:
        self._limits = limits
        self._spans = spans

    def limit_all(self, holdings: Holdings, container: str, cgroups_path: str, *, also_one: bool = False) -> None:
        """Write all lines of a container's rdma limits, because a runtime that was given several lines may have mixed
        them up (docs/adr/0009). A single line is written only with `also_one`, for a container whose runtime was given
        no limits; otherwise the runtime has written it."""
        lines = _lines(holdings, container)
        if not lines:
            return
        where = _where(holdings, container)
        try:
            if also_one or len(lines) > 1:
                with self._spans.span("limit"):
                    self._limits.write(cgroups_path, lines, where)
        finally:
            self._limits.lift_at_end(cgroups_path, where)  # also for lines that the runtime wrote, and after an error

    def has_limits(self, holdings: Holdings, container: str) -> bool:
        """Return whether the container's requests have rdma limits."""
        return bool(_lines(holdings, container))

    def left_to_runtime(self, cgroups_path: str, container_id: str, sandbox_id: str) -> bool:
        """Return whether the OCI runtime can write the limits of a container of this sandbox itself. An OCI runtime
        that cannot (crun) refuses a container for which it is given limits (docs/adr/0052)."""
        return self._limits.left_to_runtime(cgroups_path, container_id, sandbox_id)

    def limit_created(self, holdings: Holdings, container: str, cgroups_path: str, container_id: str) -> bool:
        """Write the limits of a container that was created and does not run yet, if they were not given to its OCI
        runtime. Return whether they were written. Raise LimitsError if a limit cannot be written."""
        if not _lines(holdings, container) or self.left_to_runtime(cgroups_path, container_id, holdings.pod.sandbox_id):
            return False
        self.limit_alone(holdings, container, cgroups_path, None)
        return True

    def limit_starting(self, holdings: Holdings, container: str, cgroups_path: str, container_id: str) -> None:
        """Write the limits that the OCI runtime of a starting container was not given, or may have mixed up. Raise
        LimitsError if a limit cannot be written. If the OCI runtime was given no limits, kill the container then,
        because CRI-O starts it in spite of an error."""
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
        """Write all limits of a container whose OCI runtime was given none; enable the rdma controller first, because
        the OCI runtime may not have done it. `pid` is the container's first process; None: not known. Raise LimitsError
        if a limit cannot be written."""
        if _lines(holdings, container):
            self._limits.enable(cgroups_path, pid, _where(holdings, container))
        self.limit_all(holdings, container, cgroups_path, also_one=True)

    def lift_at_end(self, holdings: Holdings, container: str, cgroups_path: str) -> None:
        """Have the limits that an earlier daemon wrote for a container removed when the container ends. Never
        raises."""
        if _lines(holdings, container):
            self._limits.lift_at_end(cgroups_path, _where(holdings, container))


def _lines(holdings: Holdings, container: str) -> tuple[str, ...]:
    return rdma_max(holdings.attached, container) if holdings else ()


def _where(holdings: Holdings, container: str) -> str:
    """Return the name of a container in errors. A container of podman or Docker has no pod name beside its own."""
    pod = holdings.pod
    return f"{pod}, container {container}" if pod.is_listed else str(pod)

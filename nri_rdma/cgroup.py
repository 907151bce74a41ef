"""What the host's cgroups can limit."""

from __future__ import annotations

from pathlib import Path


def has_rdma_controller(cgroup_root: Path) -> bool:
    """Whether containers can have rdma limits: a unified (v2) hierarchy that hands the rdma controller down.

    Through NRI a limit can only be set as a unified value, which no runtime takes on cgroup v1.
    """
    try:
        controllers = (cgroup_root / "cgroup.controllers").read_text().split()
    except OSError:
        return False  # no unified hierarchy is mounted there
    return "rdma" in controllers

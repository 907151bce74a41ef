"""The edits of a container before it is created."""

from __future__ import annotations

from dataclasses import dataclass

from nri_rdma.model.device import CharDevice

RDMA_MAX = "rdma.max"
"""The control file, and with it the unified value, of the rdma cgroup's limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Edits of one container: device nodes, environment, RLIMIT_MEMLOCK in bytes, rdma.max by line (one per device)."""

    char_devices: tuple[CharDevice, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    memlock: int | None = None
    rdma_max: tuple[str, ...] = ()
    moved_netdevs: tuple[str, ...] = ()
    """Netdevs of the host that the runtime was to move, and that are in the pod already."""

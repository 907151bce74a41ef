"""What is changed in a container before it is created."""

from __future__ import annotations

from dataclasses import dataclass

from nri_rdma.model.device import CharDevice


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerEdits:
    """Edits of one container: device nodes, environment, RLIMIT_MEMLOCK in bytes, unified cgroup values."""

    char_devices: tuple[CharDevice, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    memlock: int | None = None
    unified: tuple[tuple[str, str], ...] = ()

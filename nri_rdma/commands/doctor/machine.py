"""The machine that is looked at: where its facts are, each read when a check first asks for it.

Every path is a parameter, so that a check can be given a machine with any fault.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any  # Any: the daemon's JSON document

from nri_rdma.commands.doctor.mountinfo import (
    ROOT,
    TERMINATION_LOG,
    MountPoint,
    are_of_container,
    mount_of,
    read_mounts,
)
from nri_rdma.commands.doctor.visit import Visited, visit
from nri_rdma.config.settings import DEFAULT_CONFIG_FILE, Settings
from nri_rdma.doors.control.client import ask_status
from nri_rdma.errors import InventoryError, NotReadyError, SettingError
from nri_rdma.host.engine_setups import engines_without_runtime
from nri_rdma.host.netlink.proc_sys import writable_net
from nri_rdma.model.device import Node


def _links() -> frozenset[str]:
    """Return the names of the netdevs in this network namespace."""
    return frozenset(name for _, name in socket.if_nameindex())


@dataclass(frozen=True, kw_only=True)  # without slots: cached properties need a place
class Machine:
    """`settings` are those that a daemon would have; `setting_error` is why it would have none, and then they are the
    defaults. `read_node` gives the hardware with what a reader has to know about it, or raises InventoryError."""

    settings: Settings
    read_node: Callable[[], tuple[Node, tuple[str, ...]]]
    setting_error: SettingError | None = None
    config_file: Path = DEFAULT_CONFIG_FILE
    proc: Path = Path("/proc")
    etc: Path = Path("/etc")
    run: Path = Path("/run")
    share: Path = Path("/usr/share")
    boot: Path = Path("/boot")
    package_folders: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    python: tuple[int, int, int] = field(default_factory=lambda: sys.version_info[:3])
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    user: int = field(default_factory=os.geteuid)
    writable_net: Callable[[], Path | None] = writable_net
    links: Callable[[], frozenset[str]] = _links
    image_root: Path | None = None
    """The root of an unpacked image that is to be checked for this machine."""

    @property
    def is_root(self) -> bool:
        """Return whether what cannot be done here cannot be done by the daemon either."""
        return self.user == 0

    @cached_property
    def node(self) -> tuple[Node, tuple[str, ...]] | InventoryError:
        """The hardware with its notes, or why it cannot be read."""
        try:
            return self.read_node()
        except InventoryError as error:
            return error

    @cached_property
    def mounts(self) -> tuple[MountPoint, ...]:
        """The mounts of this process; none where they cannot be read."""
        try:
            return read_mounts(self.proc / "self")
        except OSError:
            return ()

    @property
    def is_in_container(self) -> bool:
        """Return whether this process is in a container."""
        return are_of_container(self.mounts)

    @property
    def is_in_pod(self) -> bool:
        """Return whether a kubelet has started the container that this process is in."""
        return any(it.point == TERMINATION_LOG for it in self.mounts)

    def lacks(self, path: Path) -> bool:
        """Return whether this process is in a container that has nothing mounted there: what is at the path is the
        image's own."""
        if not self.is_in_container:
            return False
        found = self.mount_of(path)
        return found is None or found.point == ROOT

    def mount_of(self, path: Path) -> MountPoint | None:
        """Return the mount that a path is on, as this process sees it; None where that cannot be told."""
        return mount_of(self.mounts, PurePosixPath(path.resolve()))

    @cached_property
    def runtime(self) -> Visited:
        """Return what the runtime says of itself."""
        return visit(self.settings.nri_socket)

    @cached_property
    def engines(self) -> tuple[str, ...]:
        """The engines that ask by our hook, where nobody else can ask."""
        return engines_without_runtime(self.settings, self.etc.parent)

    @cached_property
    def daemon(self) -> dict[str, Any] | NotReadyError:
        """The status of the daemon that runs, or why there is none."""
        try:
            return ask_status(self.settings.control_path)
        except NotReadyError as error:
            return error

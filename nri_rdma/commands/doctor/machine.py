"""The machine that doctor examines, with the paths to its facts. Each fact is read when a check first needs it.

Every path is a parameter, so that tests can build a machine with any fault.
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
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.errors import InventoryError, NotReadyError, SettingError
from nri_rdma.host.engine_setups import engines_without_runtime
from nri_rdma.host.netlink.namespaces.proc_sys import writable_net
from nri_rdma.model.device import Node


def _links() -> frozenset[str]:
    """Return the names of the netdevs in this network namespace."""
    return frozenset(name for _, name in socket.if_nameindex())


@dataclass(frozen=True, kw_only=True)  # without slots: cached_property writes to __dict__
class Machine:
    """The machine that is examined. `settings` are those of a daemon started here; if they are invalid, `setting_error`
    says why, and `settings` are the defaults.

    `read_node` returns the hardware and sentences about missing or doubtful facts. It raises InventoryError if the
    hardware cannot be read.
    """

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
    """The root folder of an unpacked image whose libraries are checked against this machine; None: no image is
    checked."""

    @property
    def is_root(self) -> bool:
        """Whether this process is root, as the daemon is. What root cannot do here, the daemon cannot do either."""
        return self.user == 0

    @cached_property
    def node(self) -> tuple[Node, tuple[str, ...]] | InventoryError:
        """The hardware with remarks about it, or the error that kept it from being read."""
        try:
            return self.read_node()
        except InventoryError as error:
            return error

    @cached_property
    def mounts(self) -> tuple[MountPoint, ...]:
        """The mounts of this process; empty if they cannot be read."""
        try:
            return read_mounts(self.proc / "self")
        except OSError:
            return ()

    @property
    def is_in_container(self) -> bool:
        """Whether this process runs in a container."""
        return are_of_container(self.mounts)

    @property
    def is_in_pod(self) -> bool:
        """Whether this process runs in a container of a Kubernetes pod."""
        return any(it.point == TERMINATION_LOG for it in self.mounts)

    def lacks(self, path: Path) -> bool:
        """Return whether the path comes from this container's image, because nothing of the host is mounted there.
        Always False outside of a container."""
        if not self.is_in_container:
            return False
        found = self.mount_of(path)
        return found is None or found.point == ROOT

    def mount_of(self, path: Path) -> MountPoint | None:
        """Return the mount that contains the path; None if the mounts cannot be read."""
        return mount_of(self.mounts, PurePosixPath(path.resolve()))

    @cached_property
    def runtime(self) -> Visited:
        """The runtime's name, version and abilities, from registering with it once as a plugin."""
        return visit(self.settings.nri_socket)

    @cached_property
    def engines(self) -> tuple[str, ...]:
        """Names of the container engines that are set up to use our hook; empty if this machine also has an NRI socket,
        a kubelet or pools for Kubernetes."""
        return engines_without_runtime(self.settings, self.etc.parent)

    @cached_property
    def daemon(self) -> dict[str, Any] | NotReadyError:
        """The status document of the running daemon, or the error that kept it from answering."""
        try:
            return ask_status(self.settings.control_path)
        except NotReadyError as error:
            return error

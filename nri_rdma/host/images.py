"""The images of containers on this host, while these are made, and what its kernel says of the devices in them."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any  # Any: an OCI configuration

from nri_rdma.host.cgroup import processes_of
from nri_rdma.host.root_folder import RootFolder
from nri_rdma.host.userspace import read_userspace
from nri_rdma.model.userspace import Made, Userspace

_LIBRARY_PATH = "LD_LIBRARY_PATH="
_NO_PROCESS = "the daemon does not see the container's process: it needs the host's pid namespace"
_NO_CGROUP = (
    "the process of the container is in no cgroup of it: either it has none of its own (podman's --cgroups=disabled),"
    " or the daemon needs the host's pid namespace"
)
_NO_RIGHT = "the daemon may not look into containers: it needs the capability SYS_PTRACE"


class Images:
    """Blocks on files. Safe for use by several threads."""

    def __init__(self, cgroup_root: Path, sysfs_root: Path, proc: Path = Path("/proc")) -> None:
        """`proc` has the containers' processes; the setting proc_root may be another node's."""
        self._proc = proc
        self._cgroups = cgroup_root
        self._verbs = sysfs_root / "class/infiniband_verbs"
        self.machine = os.uname().machine

    def read(self, made: Made, providers: Collection[str]) -> Userspace:
        """Return what a container's image has, these providers among it; why it cannot be seen is in the answer."""
        try:
            pid = made.pid or next(iter(processes_of(self._cgroups, made.cgroups_path)), 0)
            cgroup = self._cgroup_of(pid)
            if not cgroup or made.container_id not in cgroup:
                return Userspace(unseen=_NO_CGROUP if cgroup else _NO_PROCESS)
            process, path, libraries = f"{self._proc}/{pid}/root", "/", made.library_path
            if made.bundle:
                path, libraries = _of_bundle(process, made.bundle)
            folder = RootFolder(process + path)
        except PermissionError:
            return Userspace(unseen=_NO_RIGHT)
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            return Userspace(unseen=f"the container's root cannot be opened: {error}")
        try:
            return read_userspace(folder, providers, libraries)
        finally:
            folder.close()

    def _cgroup_of(self, pid: int) -> str:
        """Return what the kernel says of a process's cgroup, "" where there is no such process. Without the host's pid
        namespace, a process of that number is somebody else's."""
        try:
            return (self._proc / str(pid) / "cgroup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""

    def abi(self, uverbs: str) -> int | None:
        """Return the version of the kernel's interface to a device, by the name of its node (``uverbs0``)."""
        try:
            return int((self._verbs / uverbs / "abi_version").read_text())
        except (OSError, ValueError):
            return None  # the device has gone, or the kernel does not say it: then nothing is compared


def _of_bundle(process: str, bundle: str) -> tuple[str, str]:
    """Return the root folder and the LD_LIBRARY_PATH in a container's configuration, which the runtime has written.
    Raises OSError, ValueError, TypeError, KeyError or AttributeError."""
    configuration: dict[str, Any] = json.loads(Path(f"{process}{bundle}/config.json").read_bytes())
    root = str(Path(bundle) / configuration["root"]["path"])
    variables = (configuration.get("process") or {}).get("env") or []
    libraries = [it.removeprefix(_LIBRARY_PATH) for it in variables if it.startswith(_LIBRARY_PATH)]
    return root, libraries[-1] if libraries else ""

"""Read which RDMA libraries a container's image has, while the container is created. Also read the ABI version of the
kernel's verbs interface to a device."""

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
    "the container's process is not in the container's cgroup: either it has none (podman's --cgroups=disabled),"
    " or the daemon needs the host's pid namespace"
)
_NO_RIGHT = "the daemon may not look into containers: it needs the capability SYS_PTRACE"


class Images:
    """Reads the RDMA libraries in the images of containers. Blocks on files. Safe for use by several threads."""

    def __init__(self, cgroup_root: Path, sysfs_root: Path, proc: Path = Path("/proc")) -> None:
        """`proc` is the procfs in which the containers' processes are found. It may differ from the setting proc_root,
        which may describe another node."""
        self._proc = proc
        self._cgroups = cgroup_root
        self._verbs = sysfs_root / "class/infiniband_verbs"
        self.machine = os.uname().machine

    def read(self, made: Made, providers: Collection[str]) -> Userspace:
        """Return the RDMA libraries in the image of a container, and whether libibverbs finds these `providers` (its
        drivers, such as "mlx5"). `made` says which process and folder lead to the container's root folder.

        If the image cannot be read, the result's field `unseen` says why.
        """
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
        """Return the text of /proc/PID/cgroup; "" if there is no such process.

        Callers check that the text contains the container's id: outside the host's pid namespace, the pid may belong to
        an unrelated process.
        """
        try:
            return (self._proc / str(pid) / "cgroup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return ""

    def abi(self, uverbs: str) -> int | None:
        """Return the version of the kernel's verbs interface to a device. `uverbs` is the name of the device's node
        (``uverbs0``). None if the version cannot be read."""
        try:
            return int((self._verbs / uverbs / "abi_version").read_text())
        except (OSError, ValueError):
            return None  # the device is gone, or the kernel has no such file: callers then compare nothing


def _of_bundle(process: str, bundle: str) -> tuple[str, str]:
    """Return a container's root folder and LD_LIBRARY_PATH, from the OCI configuration that the runtime has written to
    the container's bundle folder. `process` is the path of the process's root folder in procfs.

    Raises OSError if the file cannot be read; ValueError, TypeError, KeyError or AttributeError if its content is not
    an OCI configuration.
    """
    configuration: dict[str, Any] = json.loads(Path(f"{process}{bundle}/config.json").read_bytes())
    root = str(Path(bundle) / configuration["root"]["path"])
    variables = (configuration.get("process") or {}).get("env") or []
    libraries = [it.removeprefix(_LIBRARY_PATH) for it in variables if it.startswith(_LIBRARY_PATH)]
    return root, libraries[-1] if libraries else ""

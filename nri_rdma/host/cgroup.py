"""Containers' cgroups: enable the rdma controller; write, read and remove rdma limits; and read what containers use.

The line of each device is written to ``rdma.max`` on its own. Several lines in one write fail with EINVAL on Linux 7.2.
Linux 6.12 applies all of them to the first device, which ends with the last line's limits, while the other devices get
none.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nri_rdma.errors import LimitsError
from nri_rdma.model.edits import RDMA_MAX

RDMA = "rdma"
SUBTREE_CONTROL = "cgroup.subtree_control"
RDMA_CURRENT = "rdma.current"
PROCESSES = "cgroup.procs"
KILL = "cgroup.kill"
CONTROLLERS = "cgroup.controllers"
_V1 = ("devices", "memory", "rdma")
"""The cgroup v1 hierarchies that can restrict an RDMA program."""
RDMA_PEAK = "rdma.peak"
"""A file that shows whether the kernel frees the limits of a removed cgroup: Linux 7.2 frees them and has the file,
6.12 does neither."""
_HINTS = {
    errno.ENOENT: "the daemon needs the host's cgroups at --cgroup-root, with the rdma controller enabled for the"
    " container's cgroup",
    errno.ENODEV: "the device is gone or was renamed; look at `nri-rdma inventory`, and create the container again",
    errno.EROFS: "let the daemon write below --cgroup-root",
    errno.EACCES: "let the daemon write below --cgroup-root",
}
_ENABLE_HINTS = {
    errno.ENOENT: "the daemon needs the host's cgroups (v2) at --cgroup-root",
    errno.EBUSY: "a cgroup that contains processes cannot enable this controller for the cgroups below it: move the"
    " processes out of it, or let the container have another parent (--cgroup-parent)",
    errno.EROFS: "let the daemon write below --cgroup-root",
    errno.EACCES: "let the daemon write below --cgroup-root",
}
_MEMORY_MAX = ("memory.max", "memory.limit_in_bytes")
"""The name of the file with a cgroup's memory limit, on cgroup v2 and on v1."""
_UNLIMITED_V1 = (1 << 63) - (1 << 16)
"""The smallest memory limit that means "no limit" on cgroup v1: 2**63 - 1, rounded down to a page of at most 64 KiB."""
_SYSTEMD_DEFAULT_SLICE = "system.slice"
_CRUN_SUBGROUP = "container"
"""The name of the subgroup of a systemd scope into which crun puts a container and its limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A number of objects in use, and its limit; None means no limit (``max``)."""

    used: int
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaUse:
    """The number of objects of one RDMA device that the processes of a container use: device contexts (hca_handle) and
    other objects such as queue pairs (hca_object)."""

    device: str
    hca_handle: Counted
    hca_object: Counted

    @property
    def is_noteworthy(self) -> bool:
        """Return whether the container has objects of this device, or a limit for them. Callers skip other entries,
        because the kernel lists every device of the host for every cgroup."""
        return any(it.used or it.limit is not None for it in (self.hca_handle, self.hca_object))


def has_rdma_controller(cgroup_root: Path) -> bool:
    """Return whether containers can have rdma limits: a unified (v2) hierarchy must provide the rdma controller.

    On cgroup v1 they cannot, because NRI can pass an rdma limit only as a unified value, which no runtime accepts
    there.
    """
    try:
        controllers = (cgroup_root / CONTROLLERS).read_text().split()
    except OSError:
        return False  # no unified hierarchy is mounted there
    return RDMA in controllers


def runtime_enables_rdma(cgroup_root: Path, cgroups_path: str, container_id: str, sandbox_id: str) -> bool:
    """Return whether the OCI runtime enables the rdma controller for a container, judged by the cgroup of its pod's
    process.

    runc enables the controller and crun does not, and NRI does not say which runtime the pod has (docs/adr/0052). False
    if the pod has no process of its own, which is so with CRI-O. True if the pod's cgroup cannot be seen, because the
    daemon then cannot write limits either.
    """
    try:
        own = cgroup_root / cgroup_of(cgroups_path)
        pods = cgroup_root / cgroup_of(cgroups_path.removesuffix(container_id) + sandbox_id)
        return not own.parent.is_dir() or ((pods / RDMA_MAX).exists() and bool((pods / PROCESSES).read_text()))
    except ValueError:
        return True
    except OSError:
        return False


def enable_rdma(cgroup_root: Path, cgroups_path: str, pid: int | None, where: str) -> None:
    """Enable the rdma controller in all cgroups above a container's own, which runc does by itself.

    `pid` is the container's first process, None if unknown. Raises LimitsError, which names the container as `where`,
    if the process is not in the container's cgroup or the kernel refuses a write.
    """
    folder = _folder_or_refusal(cgroup_root, cgroups_path, where)
    changed = folder
    try:
        processes = processes_of(cgroup_root, cgroups_path)
        if pid not in processes if pid is not None else not processes:
            raise LimitsError(
                f"its process {pid} is not in {folder}" if pid is not None else f"no process is in {folder}",
                where=where,
                hint="start it in a cgroup of its own, which the OCI runtime makes; ask for a device without limits"
                " where that cannot be",
                errno=errno.ESRCH,
            )
        if (folder / RDMA_MAX).exists():
            return
        for above in reversed(folder.relative_to(cgroup_root).parents):
            changed = cgroup_root / above / SUBTREE_CONTROL
            if RDMA not in changed.read_text().split():
                changed.write_text(f"+{RDMA}")
    except OSError as error:
        raise LimitsError(
            f"the rdma controller cannot be enabled for it: {error.strerror}",
            where=f"{where}, {changed}",
            hint=_ENABLE_HINTS.get(error.errno or 0, "see the kernel's log"),
            errno=error.errno,
        ) from error


def write_rdma_max(cgroup_root: Path, cgroups_path: str, lines: Sequence[str], where: str) -> None:
    """Write limits to the existing file rdma.max of a container's cgroup; each of `lines` limits one device. Raises
    LimitsError, which names the container as `where`, if the kernel refuses a line."""
    folder = _folder_or_refusal(cgroup_root, cgroups_path, where)
    device = lines[0].partition(" ")[0]
    try:
        descriptor = os.open(folder / RDMA_MAX, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for line in lines:
                device = line.partition(" ")[0]
                os.write(descriptor, f"{line}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise LimitsError(
            f"{device} cannot be limited: {error.strerror}",
            where=f"{where}, {folder / RDMA_MAX}",
            hint=_HINTS.get(error.errno or 0, "see the kernel's log"),
            errno=error.errno,
        ) from error


def lift_rdma_max(cgroup_root: Path, cgroups_path: str) -> None:
    """Remove all rdma limits from a container's cgroup. Raises OSError if the kernel refuses, and ValueError if
    `cgroups_path` is invalid."""
    file = _folder(cgroup_root, cgroups_path) / RDMA_MAX
    limited = [device for device, limits in _parse(file.read_text()).items() if set(limits.values()) != {None}]
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        for device in limited:
            os.write(descriptor, f"{device} hca_handle=max hca_object=max\n".encode())
    finally:
        os.close(descriptor)


def outlived_by_limits(cgroup_root: Path, cgroups_path: str) -> bool:
    """Return whether the kernel keeps the rdma limits of this cgroup after the cgroup is removed; False if the cgroup
    does not exist. Raises ValueError if `cgroups_path` is invalid."""
    folder = _folder(cgroup_root, cgroups_path)
    return (folder / RDMA_MAX).exists() and not (folder / RDMA_PEAK).exists()


def processes_of(cgroup_root: Path, cgroups_path: str) -> tuple[int, ...]:
    """Return the pids in a container's cgroup; 0 stands for a process outside this pid namespace. Raises OSError if the
    cgroup cannot be read, and ValueError if `cgroups_path` is invalid."""
    return tuple(int(word) for word in (_folder(cgroup_root, cgroups_path) / PROCESSES).read_text().split())


def joined_by(cgroup_root: Path, cgroups_path: str, pid: int) -> tuple[Path, ...]:
    """Return the cgroup.procs files to which a process writes in order to join the container's cgroups. There is one
    file on cgroup v2, and one for each hierarchy that can limit RDMA on v1.

    `pid` is the container's first process. Raises ProcessLookupError if this process is not in the cgroups, OSError if
    a cgroup cannot be read, and ValueError if `cgroups_path` is invalid.
    """
    unified = (cgroup_root / CONTROLLERS).exists()
    roots = [cgroup_root] if unified else [cgroup_root / name for name in _V1 if (cgroup_root / name).is_dir()]
    if not roots:
        raise FileNotFoundError(errno.ENOENT, "no cgroups are mounted there", str(cgroup_root))
    for root in roots:
        if pid not in processes_of(root, cgroups_path):
            raise ProcessLookupError(errno.ESRCH, f"its process {pid} is not in it", str(_folder(root, cgroups_path)))
    return tuple(_folder(root, cgroups_path) / PROCESSES for root in roots)


def memory_max(joined: Sequence[Path], cgroup_root: Path) -> int | None:
    """Return the memory limit in bytes of a container: the lowest limit of its cgroups and their parents. None if there
    is no limit. `joined` are the container's cgroup.procs files, which `joined_by` returns."""
    folders = [folder for procs in joined for folder in procs.parents if folder.is_relative_to(cgroup_root)]
    files = [folder / name for folder in folders for name in _MEMORY_MAX]
    texts = [file.read_text() for file in files if file.exists()]
    limits = [int(text) for text in texts if text.strip().isdecimal()]
    return min((limit for limit in limits if limit < _UNLIMITED_V1), default=None)


def kill_all(cgroup_root: Path, cgroups_path: str) -> None:
    """Kill all processes in the cgroup of a container that does not run yet. Raises OSError if the kernel refuses, and
    ValueError if `cgroups_path` is invalid."""
    if not (cgroup_root / CONTROLLERS).exists() and (cgroup_root / _V1[0]).is_dir():
        for pid in filter(None, processes_of(cgroup_root / _V1[0], cgroups_path)):
            os.kill(pid, signal.SIGKILL)
        return
    (cgroup_root / cgroup_of(cgroups_path) / KILL).write_text("1")


def read_rdma_use(cgroup_root: Path, cgroups_path: str) -> tuple[RdmaUse, ...]:
    """Return how many objects a container uses of each RDMA device of the host, with its limits; () if the container's
    cgroup cannot be read."""
    try:
        folder = _folder(cgroup_root, cgroups_path)
        limits, current = ((folder / name).read_text() for name in (RDMA_MAX, RDMA_CURRENT))
    except (OSError, ValueError):
        return ()
    return rdma_use(limits, current)


def rdma_use(limits: str, current: str) -> tuple[RdmaUse, ...]:
    """Return the use of each device from the texts of rdma.max (`limits`) and rdma.current (`current`)."""
    may, has = _parse(limits), _parse(current)
    return tuple(
        RdmaUse(
            device=device,
            hca_handle=Counted(used=used.get("hca_handle") or 0, limit=may[device].get("hca_handle")),
            hca_object=Counted(used=used.get("hca_object") or 0, limit=may[device].get("hca_object")),
        )
        for device, used in has.items()
        if device in may  # a device that appears between the two readings is in one of them only
    )


def _parse(text: str) -> Mapping[str, Mapping[str, int | None]]:
    """Parse lines such as ``mlx5_0 hca_handle=2 hca_object=max``, one per device. ``max`` and invalid numbers become
    None."""
    found = {}
    for line in text.splitlines():
        device, _, rest = line.partition(" ")
        pairs = [word.partition("=") for word in rest.split()]
        found[device] = {key: int(value) if value.isdecimal() else None for key, _, value in pairs}
    return found


def cgroup_of(cgroups_path: str) -> PurePosixPath:
    """Return the path of a container's cgroup below the cgroup root, from the OCI spec's cgroupsPath. Raises ValueError
    for an unknown form of the path, and for a path that leads out of the root.

    The cgroupsPath is absolute (cgroupfs driver) or ``SLICE:PREFIX:NAME`` (systemd driver). For the latter, runtimes
    create the scope ``PREFIX-NAME.scope`` in the slice.
    """
    if "\0" in cgroups_path:
        raise ValueError("its path holds a zero byte")
    if cgroups_path.startswith("/"):
        parts = [part for part in cgroups_path.split("/") if part]
    else:
        parts = _systemd_parts(cgroups_path)
    if not parts or any(part in {".", ".."} for part in parts):
        raise ValueError(f"the path {cgroups_path!r} is not below the root of the cgroups")
    return PurePosixPath(*parts)


def _systemd_parts(cgroups_path: str) -> list[str]:
    words = cgroups_path.split(":")
    if len(words) != 3 or "/" in cgroups_path:
        raise ValueError(f"{cgroups_path!r} is neither an absolute path nor SLICE:PREFIX:NAME")
    parent, prefix, name = words
    unit = name if name.endswith(".slice") else f"{prefix}-{name}.scope"
    return [*_slices(parent or _SYSTEMD_DEFAULT_SLICE), unit]


def _slices(name: str) -> list[str]:
    """Return the folders of a systemd slice: systemd puts ``a-b.slice`` into ``a.slice``; ``-.slice`` is the root.
    Raises ValueError if `name` is no slice."""
    stem = name.removesuffix(".slice")
    if stem == "-":
        return []
    words = stem.split("-")
    if stem == name or not all(words):
        raise ValueError(f"{name!r} is no slice of systemd's")
    return [f"{'-'.join(words[: count + 1])}.slice" for count in range(len(words))]


def _folder(cgroup_root: Path, cgroups_path: str) -> Path:
    folder = cgroup_root / cgroup_of(cgroups_path)
    if folder.suffix == ".scope" and (folder / _CRUN_SUBGROUP).is_dir():
        return folder / _CRUN_SUBGROUP
    return folder


def _folder_or_refusal(cgroup_root: Path, cgroups_path: str, where: str) -> Path:
    """Return the folder of a container's cgroup. Raises LimitsError, which names the container as `where`, if
    `cgroups_path` is invalid."""
    try:
        return _folder(cgroup_root, cgroups_path)
    except ValueError as error:
        what = "it has no cgroup of its own" if not cgroups_path else f"the runtime names no cgroup for it: {error}"
        hint = "start it with one" if not cgroups_path else "report this with the runtime's name and version"
        raise LimitsError(what, where=where, hint=hint) from error

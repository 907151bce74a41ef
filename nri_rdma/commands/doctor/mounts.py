"""The check of mounts: whether the daemon sees the network namespaces that the runtime mounts for its pods.

A daemon in a container has mounts of its own. The runtime's later mounts reach it only by mount propagation; without
it each pod whose netdev is to move is refused, and nothing else shows it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.commands.doctor.runtime import served_by

NETNS_FOLDER = PurePosixPath("/run/netns")
"""Where containerd and CRI-O mount network namespaces, unless they are configured otherwise."""
_PROPAGATION = "mountPropagation: HostToContainer"


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPoint:
    """A line of mountinfo: `root` is the part of the file system that is mounted, `groups` are the numbers of the peer
    groups whose mounts appear here, `sends` is the group to which mounts made here propagate (0: none)."""

    root: str
    point: PurePosixPath
    groups: frozenset[int]
    sends: int


def mounts(machine: Machine) -> Finding:
    """Compare the mounts of the daemon, or of this process if no daemon answers, with those of the runtime."""
    runtime = machine.runtime.pid
    if not runtime:
        fix = "in a container, share the host's PID namespace (hostPID: true)" if machine.runtime.runtime else ""
        return not_applicable("mounts", "the runtime's process cannot be seen", fix)
    daemon = _daemon_pid(machine)
    who = f"the daemon (pid {daemon})" if daemon else "this process"
    ours = machine.proc / (str(daemon) if daemon else "self")
    theirs = machine.proc / str(runtime)
    try:
        if (ours / "ns/mnt").readlink() == (theirs / "ns/mnt").readlink():
            return ok("mounts", f"{who} and the runtime (pid {runtime}) have the same mounts")
        before, here, after = _read(theirs), _read(ours), _read(theirs)
    except PermissionError:
        return not_applicable("mounts", "this user may not see the runtime's mounts", "run `nri-rdma doctor` as root")
    except OSError as error:
        return not_applicable("mounts", f"the mounts cannot be read: {error.strerror}")
    lasting = {it.root for it in after}  # a pod that ended meanwhile is not missing
    return _compare(who, runtime, here, tuple(it for it in before if it.root in lasting))


def _compare(who: str, runtime: int, ours: tuple[MountPoint, ...], theirs: tuple[MountPoint, ...]) -> Finding:
    seen = {it.root for it in ours}
    namespaces = [it for it in theirs if it.root.startswith("net:[")]
    missing = [it for it in namespaces if it.root not in seen]
    if missing:
        folders = _folders(missing)
        count = f"{len(missing)} network namespace{'' if len(missing) == 1 else 's'}"
        found = f"{who} does not see {count} of the runtime (pid {runtime}) in {folders}"
        return problem("mounts", f"{found}: pods whose netdev is to move are refused", _fix(folders))
    deaf = [it for it in _parents(namespaces) or (NETNS_FOLDER,) if not _follows(ours, theirs, it)]
    if deaf:
        folders = " and ".join(map(str, deaf))
        found = f"mounts that the runtime (pid {runtime}) makes in {folders} do not reach {who}"
        return warning("mounts", f"{found}: new pods whose netdev is to move are refused", _fix(folders))
    return ok("mounts", f"{who} sees the network namespaces that the runtime (pid {runtime}) mounts")


def _fix(folders: str) -> str:
    return f"mount {folders} into the daemon's container with {_PROPAGATION}, and start it again"


def _parents(namespaces: Iterable[MountPoint]) -> tuple[PurePosixPath, ...]:
    return tuple(sorted({it.point.parent for it in namespaces}))


def _folders(namespaces: Iterable[MountPoint]) -> str:
    return " and ".join(map(str, _parents(namespaces)))


def _follows(ours: tuple[MountPoint, ...], theirs: tuple[MountPoint, ...], folder: PurePosixPath) -> bool:
    """Return whether mounts that the runtime makes in a folder appear in ours. An image without the link /var/run has
    the folder under that name."""
    there = _mount_of(theirs, folder)
    names = (folder, PurePosixPath(f"/var{folder}")) if folder.is_relative_to("/run") else (folder,)
    heard = [it for it in (_mount_of(ours, name) for name in names) if it is not None]
    return there is not None and bool(there.sends) and any(there.sends in it.groups for it in heard)


def _mount_of(mounts: tuple[MountPoint, ...], folder: PurePosixPath) -> MountPoint | None:
    """Return the mount that a folder is on: the longest path, and of two the later one."""
    found = None
    for mount in mounts:
        if folder.is_relative_to(mount.point) and (found is None or len(mount.point.parts) >= len(found.point.parts)):
            found = mount
    return found


def _read(process: Path) -> tuple[MountPoint, ...]:
    """Return the mounts of a process. Raises OSError."""
    return tuple(map(_parse, (process / "mountinfo").read_text(errors="replace").splitlines()))


def _parse(line: str) -> MountPoint:
    """Read `36 35 98:0 /root /point options shared:1 master:2 - type source options` (proc_pid_mountinfo(5))."""
    words = line.partition(" - ")[0].split()
    numbers = {key: int(text) for key, _, text in (word.partition(":") for word in words[6:]) if text.isdecimal()}
    groups = frozenset(numbers[key] for key in ("shared", "master") if key in numbers)
    point = PurePosixPath(words[4].replace("\\040", " "))
    return MountPoint(root=words[3], point=point, groups=groups, sends=numbers.get("shared", 0))


def _daemon_pid(machine: Machine) -> int:
    """Return the process that serves the control socket; 0 when none does or it cannot be seen."""
    try:
        return served_by(machine.settings.control_path)
    except OSError:
        return 0

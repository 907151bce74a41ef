"""Check of mount propagation: whether the daemon sees the network namespaces that the runtime mounts for its pods.

A daemon in a container has its own mount namespace. A mount that the runtime makes later appears there only by mount
propagation. Without propagation, each pod that asks for a netdev is refused, and no other check shows the cause.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, problem, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.commands.doctor.mountinfo import ROOT, MountPoint, mount_of, read_mounts
from nri_rdma.doors.nri.peer import served_by

NETNS_FOLDER = PurePosixPath("/run/netns")
"""The folder in which containerd and CRI-O mount network namespaces by default. If another folder is configured, its
last component is expected to be `netns`, too."""
_PROPAGATION = "mountPropagation: HostToContainer"
_NAMESPACE = "net:["
"""The beginning of the field `root` of a mounted network namespace in mountinfo."""


def mounts(machine: Machine) -> Finding:
    """Compare the runtime's mounts with the daemon's mounts. If no daemon answers, use the mounts of this process
    instead."""
    runtime = machine.runtime.pid
    if not runtime:
        return _alone(machine, "the runtime's process cannot be seen")
    daemon = _daemon_pid(machine)
    who = f"the daemon (pid {daemon})" if daemon else "this process"
    ours = machine.proc / (str(daemon) if daemon else "self")
    theirs = machine.proc / str(runtime)
    try:
        if (ours / "ns/mnt").readlink() == (theirs / "ns/mnt").readlink():
            return ok("mounts", f"{who} and the runtime (pid {runtime}) have the same mounts")
        before, here, after = read_mounts(theirs), read_mounts(ours), read_mounts(theirs)
    except PermissionError:  # in a container, this takes CAP_SYS_PTRACE
        return _alone(machine, "this user may not see the runtime's mounts")
    except OSError as error:
        return _alone(machine, f"the runtime's mounts cannot be read: {error.strerror}")
    lasting = {it.root for it in after}  # leaves out pods that ended between the readings
    return _compare(who, runtime, here, tuple(it for it in before if it.root in lasting))


def _alone(machine: Machine, why: str) -> Finding:
    """Check only the mounts of this process. `why` is the reason why they cannot be compared with the runtime's
    mounts."""
    if not machine.is_in_container:
        return not_applicable("mounts", why, "" if machine.is_root else "run `nri-rdma doctor` as root")
    ours = machine.mounts
    namespaces = [it for it in ours if it.root.startswith(_NAMESPACE) and it.point.parent.name == NETNS_FOLDER.name]
    for folder in _parents(namespaces) or (NETNS_FOLDER,):
        heard = [it for it in _at_names(ours, folder) if it.point != ROOT]
        if not heard:
            found = f"the host's {folder} is not mounted into this container"
            return problem("mounts", f"{found}: pods whose netdev is to move are refused", _fix(str(folder)))
        if not any(it.groups for it in heard):
            found = f"mounts that the runtime makes in {folder} do not reach this container (no master: in mountinfo)"
            return problem("mounts", f"{found}: new pods whose netdev is to move are refused", _fix(str(folder)))
    return ok("mounts", "this container gets the network namespaces that the runtime mounts")


def _compare(who: str, runtime: int, ours: tuple[MountPoint, ...], theirs: tuple[MountPoint, ...]) -> Finding:
    seen = {it.root for it in ours}
    namespaces = [it for it in theirs if it.root.startswith(_NAMESPACE)]
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
    return f"mount hostPath {folders} into the daemon's container with {_PROPAGATION}, and start it again"


def _parents(namespaces: Iterable[MountPoint]) -> tuple[PurePosixPath, ...]:
    return tuple(sorted({it.point.parent for it in namespaces}))


def _folders(namespaces: Iterable[MountPoint]) -> str:
    return " and ".join(map(str, _parents(namespaces)))


def _follows(ours: tuple[MountPoint, ...], theirs: tuple[MountPoint, ...], folder: PurePosixPath) -> bool:
    """Return whether a mount that the runtime makes in the folder is propagated to the process with the mounts `ours`.
    `theirs` are the runtime's mounts."""
    there = mount_of(theirs, folder)
    return there is not None and bool(there.sends) and any(there.sends in it.groups for it in _at_names(ours, folder))


def _at_names(ours: tuple[MountPoint, ...], folder: PurePosixPath) -> list[MountPoint]:
    """Return our mounts that contain the folder. A folder under /run is looked for under /var/run, too, because in an
    image without the link from /var/run to /run the host's folder may be mounted at either path."""
    names = (folder, PurePosixPath(f"/var{folder}")) if folder.is_relative_to("/run") else (folder,)
    return [it for it in (mount_of(ours, name) for name in names) if it is not None]


def _daemon_pid(machine: Machine) -> int:
    """Return the PID of the process that serves the control socket; 0 if no process serves it or its PID is not
    visible."""
    try:
        return served_by(machine.settings.control_path)
    except OSError:
        return 0

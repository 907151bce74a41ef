"""The mounts of a process, from /proc/PID/mountinfo (proc_pid_mountinfo(5))."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = PurePosixPath("/")
TERMINATION_LOG = PurePosixPath("/dev/termination-log")
"""A file that the kubelet mounts into each container."""
_OF_CONTAINERS = frozenset({PurePosixPath("/etc/hosts"), TERMINATION_LOG})
"""Files that the kubelet, Docker and podman mount into containers. On a host they are not mount points."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountPoint:
    """One line of /proc/PID/mountinfo. `root` is the mounted part of the file system, `point` where it is mounted, and
    `kind` the type of the file system.

    `groups` are the peer groups from which this mount receives new mounts. `sends` is the peer group to which it sends
    its own (0: none).
    """

    root: str
    point: PurePosixPath
    kind: str
    groups: frozenset[int]
    sends: int


def read_mounts(process: Path) -> tuple[MountPoint, ...]:
    """Return the mounts of the process whose folder in /proc is given. Raises OSError if the process has ended or may
    not be seen."""
    return tuple(map(_parse, (process / "mountinfo").read_text(errors="replace").splitlines()))


def mount_of(mounts: Iterable[MountPoint], path: PurePosixPath) -> MountPoint | None:
    """Return the mount that contains the path: the mount with the longest mount point, and the last mount if several
    are at one point. None if no mount contains it."""
    found = None
    for mount in mounts:
        if path.is_relative_to(mount.point) and (found is None or len(mount.point.parts) >= len(found.point.parts)):
            found = mount
    return found


def are_of_container(mounts: Iterable[MountPoint]) -> bool:
    """Return whether a process with these mounts is in a container."""
    return any(it.point in _OF_CONTAINERS for it in mounts)


def _parse(line: str) -> MountPoint:
    """Parse a line of the form `36 35 98:0 /root /point options shared:1 master:2 - type source options`."""
    left, _, right = line.partition(" - ")
    words = left.split()
    numbers = {key: int(text) for key, _, text in (word.partition(":") for word in words[6:]) if text.isdecimal()}
    return MountPoint(
        root=words[3],
        point=PurePosixPath(words[4].replace("\\040", " ")),
        kind=right.partition(" ")[0],
        groups=frozenset(numbers[key] for key in ("shared", "master") if key in numbers),
        sends=numbers.get("shared", 0),
    )

"""In which network namespaces of a rig's host its links are.

The product is not asked: /proc and the mounts name the namespaces, and `ip` lists the links inside each.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_NAMED = re.compile(r"net:\[\d+\]")


def namespaces(*, cgroup: str, pids: Iterable[int]) -> Mapping[int, Path]:
    """Return a path of every network namespace that something keeps alive: by its number.

    Looked at are mounts, this process, these processes with their threads and open files, and all processes below the
    cgroup. Others on the machine belong to other rigs, whose links have the same addresses.
    """
    found: dict[int, Path] = {}
    for path in (*_mounted(), *_of_process(os.getpid())):
        _note(found, path)
    inside = (int(it.parent.name) for it in _PROC.glob("[0-9]*/cgroup") if f":{cgroup}/" in _text(it))
    for pid in (*pids, *inside):
        for path in _of_process(pid):
            _note(found, path)
    return found


def places(macs: Iterable[str], *, cgroup: str, pids: Iterable[int]) -> Mapping[str, tuple[int, ...]]:
    """Return the numbers of the namespaces in which there is a link of each address."""
    found: dict[str, tuple[int, ...]] = dict.fromkeys(macs, ())
    for number, path in namespaces(cgroup=cgroup, pids=pids).items():
        for mac in _addresses(path):
            if mac in found:
                found[mac] = (*found[mac], number)
    return found


def _note(found: dict[int, Path], path: Path) -> None:
    """Keep the path by its namespace's number."""
    with suppress(OSError):  # it ended since it was listed
        found.setdefault(path.stat().st_ino, path)


def _mounted() -> Iterator[Path]:
    for line in (_PROC / "self/mountinfo").read_text().splitlines():
        words = line.split()
        if _NAMED.fullmatch(words[3]):
            yield Path(words[4])


def _of_process(pid: int) -> Iterator[Path]:
    """Yield what of a process is, or may be, a network namespace: none when it has ended."""
    folder = _PROC / str(pid)
    with suppress(OSError):
        yield from folder.glob("task/*/ns/net")
        yield from (it for it in folder.glob("fd/*") if _is_namespace(it))


def _is_namespace(path: Path) -> bool:
    """Tell whether an open file is a namespace of some kind; its link does not tell when it was opened by a mount."""
    try:
        return path.stat().st_dev == (_PROC / "self/ns/net").stat().st_dev
    except OSError:
        return False


def _addresses(path: Path) -> tuple[str, ...]:
    command = ["nsenter", f"--net={path}", "ip", "-j", "link", "show"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:  # a namespace of another kind, or one that has ended since
        return ()
    return tuple(link["address"] for link in json.loads(done.stdout or "[]") if "address" in link)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

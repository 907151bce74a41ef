"""A command on a host of its own, as far as tests see it: `python -m tests.namespaces COMMAND [ARGUMENT...]`.

Own are its network namespace, with `lo` and an `eth0` that has the default routes, and in its mount namespace `/sys`
with the links of that namespace, and empty `/run` and `/var/lib`, where container runtimes and CNI keep what has the
same name everywhere. Processes, cgroups and all other files are the machine's.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.rig.record import NETWORK, process_started

PROJECT = Path(__file__).resolve().parents[1]
PRIVATE = (Path("/run"), Path("/var/lib"))
"""Folders that are empty at first and gone with the last process."""
_SYS = Path("/sys")
_NETWORK = """\
link set dev lo up
link add name eth0 type veth peer name uplink
link set dev eth0 addrgenmode none up
link set dev uplink addrgenmode none up
address add 192.0.2.2/24 dev eth0
address add fd00::2/64 dev eth0 nodad
route add default via 192.0.2.1 dev eth0
route add default via fd00::1 dev eth0
"""
"""Commands of `ip`: routes that no test changes, so that what compares a host has some to compare."""
_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000  # include/uapi/linux/sched.h
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18  # sys/mount.h


class RefusedError(Exception):
    """Why there are no namespaces here."""


def why_not() -> str:
    """Return why a command cannot have namespaces here; empty when it can."""
    done = subprocess.run(wrapped(["true"]), cwd=PROJECT, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]


def wrapped(command: list[str]) -> list[str]:
    """Return the command that runs this one in namespaces of its own, from the project's folder."""
    return [sys.executable, "-m", "tests.namespaces", *command]


def enter() -> None:
    """Move this process, which must have one thread only, into namespaces of its own. Raises RefusedError."""
    _refuse_hidden_files()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare"):
        raise RefusedError("this system has no namespaces")
    _check(libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET), "unshare")
    _mount(libc, "none", Path("/"), flags=_MS_REC | _MS_PRIVATE)
    _mount_sysfs(libc)
    for folder in PRIVATE:
        _mount(libc, "none", folder, kind="tmpfs", options="mode=755")
    _make_network()
    os.environ[NETWORK] = f"{os.getpid()} {process_started(os.getpid())}"


def _refuse_hidden_files() -> None:
    """Refuse when something that the tests need is below a folder that will be empty."""
    needed = (PROJECT, PROJECT / ".cache", tempfile.gettempdir(), os.environ.get("PYTEST_DEBUG_TEMPROOT") or "/")
    for path in (Path(it).resolve() for it in needed):
        for folder in PRIVATE:
            if path.is_relative_to(folder.resolve()):
                raise RefusedError(f"{path} is below {folder}, which is to be empty")


def _mount_sysfs(libc: ctypes.CDLL) -> None:
    """Mount sysfs anew, for it shows the links of whoever mounts it, and in it what was mounted below the old one."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    roots = {words[0] for words in lines if words[4] == str(_SYS)}
    below = dict.fromkeys(words[4] for words in lines if words[1] in roots)
    with ExitStack() as stack:
        kept = {}
        for place in below:
            kept[place] = os.open(place, os.O_PATH)
            stack.callback(os.close, kept[place])
        _mount(libc, "none", _SYS, kind="sysfs")
        for place, fd in kept.items():
            _mount(libc, f"/proc/self/fd/{fd}", Path(place), flags=_MS_BIND | _MS_REC)


def _make_network() -> None:
    try:
        done = subprocess.run(["ip", "-batch", "-"], input=_NETWORK, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise RefusedError("there is no program ip") from error
    if done.returncode != 0:
        raise RefusedError(f"ip: {done.stderr.strip().splitlines()[0]}")


def _mount(libc: ctypes.CDLL, source: str, place: Path, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = libc.mount(source.encode(), os.fsencode(place), kind.encode() or None, flags, options.encode() or None)
    _check(result, f"mount {place}")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise RefusedError(f"{what}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    """Enter namespaces and become the command."""
    try:
        enter()
    except RefusedError as error:
        sys.exit(str(error))
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()

"""The first process of a machine: makes its mounts, then waits for its children and those that were left to it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

_OWN = ("/run", "/dev/shm")
"""Empty at each start."""
_KEPT = {"/var/lib": "var-lib", "/var/log": "var-log"}
"""Kept over a reboot, by the name of the folder in the machine's folder."""
PLACES = {"/", "/sys", *_OWN, *_KEPT}
"""Where a machine mounts something, beside its folder, /proc/sys and the cgroups."""
TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
"""A kubelet writes these settings of the whole kernel unless it reads them (kubelet/cm, setupKernelTunables): so it
reads a file with the value that it wants, and writes nothing."""
_OPTIONS_OF_ALL = {"rw", "relatime", "nosuid", "nodev", "noexec", "nsdelegate"}


def main() -> None:
    """Make the machine, say so, and reap."""
    settings = json.loads(sys.argv[1])
    _mount_all(Path(settings["folder"]), settings["boot_id"])
    print("ready", flush=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)  # without a handler sigwait would not be woken
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigtimedwait([signal.SIGCHLD], 1)


def _mount_all(folder: Path, boot_id: str) -> None:
    cgroups = _cgroup_mounts()
    made = folder / "mnt"
    made.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=755", "none", made)
    (made / "sys").mkdir()
    _mount("-t", "sysfs", "none", made / "sys")  # shows the links of this network namespace
    if cgroups[0][0] == "cgroup2" and len(cgroups) == 1:
        _mount("-t", "cgroup2", "none", made / "sys/fs/cgroup")
    else:
        _mount("-t", "tmpfs", "-o", "mode=755", "none", made / "sys/fs/cgroup")
        for kind, options, name in cgroups:
            (made / "sys/fs/cgroup" / name).mkdir()
            _mount("-t", kind, *(["-o", options] if options else []), "none", made / "sys/fs/cgroup" / name)
    _mount("--rbind", made / "sys", "/sys")
    for place in _OWN:
        _mount("-t", "tmpfs", "-o", "mode=755", "none", place)
    for place, name in _KEPT.items():
        _mount("--bind", folder / name, place)
    _mount("-t", "tmpfs", "-o", "mode=755", "none", made)
    for name, value in {**TUNABLES, "kernel/random/boot_id": boot_id}.items():
        file = made / name.replace("/", "-")
        file.write_text(f"{value}\n")
        _mount("--bind", file, f"/proc/sys/{name}")
    for place in ("/run/netns", "/run/cdi", "/run/nri", "/run/containerd", "/run/lock"):
        Path(place).mkdir()
    _mount("--make-rshared", "/")
    subprocess.run(["ip", "link", "set", "dev", "lo", "up"], check=True)


def _cgroup_mounts() -> list[tuple[str, str, str]]:
    """Return type, own options and folder's name of each hierarchy as the host has them mounted."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind not in ("cgroup", "cgroup2") or not place.startswith("/sys/fs/cgroup"):
            continue
        own = [it for it in options.split(",") if it not in _OPTIONS_OF_ALL] if kind == "cgroup" else []
        own = ["none", *own] if any(it.startswith("name=") for it in own) else own
        found.append((kind, ",".join(own), place.removeprefix("/sys/fs/cgroup").strip("/")))
    return [*dict.fromkeys(found)]  # a hierarchy may be listed again, below an older /sys


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()

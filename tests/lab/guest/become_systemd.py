"""Hands process 1 over to systemd: udev, networkd and dbus run under it, and the lab's job is a unit beside them.

The files below `etc` become the machine's. What Debian would start besides, and every generator, is masked: under
emulation each process costs a tenth of a second, and a test that fails because apt's timer went off proves nothing.
Standard library only, see init.py.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

ETC = Path(__file__).resolve().parent / "etc"
SYSTEMD = Path("/usr/lib/systemd")
RUN = Path("/run/systemd")
NOTHING = Path("/dev/null")
KEPT = ("dbus.", "systemd-journald", "systemd-networkd", "systemd-udev")


def main() -> None:
    """Does not return: this process goes on as systemd."""
    shutil.copytree(ETC, "/etc", dirs_exist_ok=True)
    mask((path.name for path in SYSTEMD.glob("system/*.target.wants/*")), RUN / "system")
    mask((path.name for path in SYSTEMD.glob("system-generators/*")), RUN / "system-generators")
    arguments = ["systemd", "--unit=lab.target", "--show-status=no", "--log-target=journal"]
    os.execve(SYSTEMD / "systemd", arguments, {"TERM": "dumb"})  # another one would be asked for its abilities


def mask(names: Iterable[str], folder: Path) -> None:
    """None of these is started, whoever wants it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in set(names):
        if not name.startswith(KEPT) and not (folder / name).is_symlink():
            (folder / name).symlink_to(NOTHING)


if __name__ == "__main__":
    main()

"""The host's commands that the lab needs, installed from the machine's own apt sources when they are missing."""

import os
import shutil
import subprocess

from tests.lab.errors import LabError
from tests.lab.progress import say

PACKAGE_OF_COMMAND = {
    "mmdebstrap": "mmdebstrap",
    "qemu-system-x86_64": "qemu-system-x86",
    "mke2fs": "e2fsprogs",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
_APT = ("apt-get", "-o", "DPkg::Lock::Timeout=300")


def ensure_tools() -> None:
    """Every command is there afterwards; LabError says which one could not be had."""
    missing = [command for command in PACKAGE_OF_COMMAND if shutil.which(command) is None]
    if not missing:
        return
    packages = sorted({PACKAGE_OF_COMMAND[command] for command in missing})
    if os.geteuid() != 0:
        raise LabError(f"{', '.join(missing)} not found. Next: apt-get install {' '.join(packages)}")
    say(f"installing {' '.join(packages)}")
    if not _install(packages):
        say("refreshing the package lists")
        subprocess.run([*_APT, "update", "-qq"], check=False)
        if not _install(packages):
            raise LabError(f"apt-get cannot install {' '.join(packages)}. Next: run it by hand and read its answer.")
    still = [command for command in missing if shutil.which(command) is None]
    if still:
        raise LabError(f"{', '.join(still)} not found although {' '.join(packages)} is installed. Next: check PATH.")


def _install(packages: list[str]) -> bool:
    command = [*_APT, "install", "-qq", "--yes", "--no-install-recommends", *packages]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return done.returncode == 0

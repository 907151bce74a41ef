"""Where the set-up keeps what it fetched.

Standard library only: the set-up imports it before there is a virtual environment.
"""

from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / ".cache"
VENV = CACHE / "venv"
RIG = CACHE / "rig"
ROOT = RIG / "root"

CONTAINERD = ROOT / "usr/bin/containerd"
SHIM = ROOT / "usr/bin/containerd-shim-runc-v2"
CTR = ROOT / "usr/bin/ctr"
RUNC = ROOT / "usr/sbin/runc"
CNI_PLUGINS = ROOT / "usr/lib/cni"
BUSYBOX = ROOT / "bin/busybox"

# Debian 13 moved /bin below /usr inside its packages.
BUSYBOX_USR = ROOT / "usr/bin/busybox"


def busybox() -> Path:
    """The static busybox of the cache, wherever its package put it."""
    return BUSYBOX if BUSYBOX.exists() else BUSYBOX_USR


def missing() -> tuple[Path, ...]:
    """The programs of the rig that are not there."""
    wanted = (CONTAINERD, SHIM, CTR, RUNC, CNI_PLUGINS / "ptp", CNI_PLUGINS / "host-local", busybox())
    return tuple(path for path in wanted if not path.exists())

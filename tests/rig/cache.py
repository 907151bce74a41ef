"""Where the set-up keeps what it fetched.

Standard library only: the set-up imports it before there is a virtual environment.
"""

from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
CACHE = PROJECT / ".cache"
VENV = CACHE / "venv"
RIG = CACHE / "rig"
ROOT = RIG / "root"


@dataclass(frozen=True, slots=True)
class Release:
    """The programs of one runtime, all in one folder; `name` is its own and the first two numbers of its version."""

    name: str
    folder: Path

    @property
    def server(self) -> Path:
        """What serves CRI."""
        return self.folder / ("crio" if self.is_crio else "containerd")

    @property
    def is_crio(self) -> bool:
        """Whether it is CRI-O; else it is containerd."""
        return self.name.startswith("cri-o-")

    @property
    def leaves_refused_pods(self) -> bool:
        """Whether it leaves records and processes of refused pods: 2.0 and 2.1 have no release with the mend."""
        return self.name in ("containerd-2.0", "containerd-2.1")

    @property
    def always_reads_cdi(self) -> bool:
        """Whether it has no setting that keeps it from reading CDI specs."""
        return self.is_crio or self.name >= "containerd-2.4"

    @property
    def is_complete(self) -> bool:
        """Whether all its programs are there."""
        return all(program.exists() for program in self.programs())

    def programs(self) -> tuple[Path, ...]:
        """What must be there."""
        others = ("conmon", "copyimg", "pinns") if self.is_crio else ("containerd-shim-runc-v2",)
        return (self.server, *(self.folder / name for name in others))


CONTAINERD_2_1 = Release("containerd-2.1", ROOT / "usr/bin")
CONTAINERD_1_7 = Release("containerd-1.7", ROOT / "containerd-1.7/usr/bin")
FETCHED = (CONTAINERD_1_7, CONTAINERD_2_1)
"""The runtimes that the set-up fetches: Debian's."""

BUILT_RUNTIMES = CACHE / "runtimes"
"""Where others are built (tests/rig/build_runtimes.py), in a folder for each."""

CONTAINERD_2_3 = Release("containerd-2.3", BUILT_RUNTIMES / "containerd-2.3")
ALWAYS = (CONTAINERD_2_3, CONTAINERD_2_1)
"""What `make test` runs on: the release with long-term support, and Debian's newest."""

CTR = CONTAINERD_2_1.folder / "ctr"
RUNC = ROOT / "usr/sbin/runc"
CNI_PLUGINS = ROOT / "usr/lib/cni"
BUSYBOX = ROOT / "bin/busybox"

# Debian 13 moved /bin below /usr inside its packages.
BUSYBOX_USR = ROOT / "usr/bin/busybox"


def built() -> tuple[Release, ...]:
    """The runtimes that were built and are complete."""
    releases = [Release(folder.name, folder) for folder in sorted(BUILT_RUNTIMES.glob("*-*"))]
    return tuple(it for it in releases if it.is_complete)


def others() -> tuple[Release, ...]:
    """The runtimes that are here and that `make test` leaves to the rotation."""
    return tuple(it for it in (*FETCHED, *built()) if it not in ALWAYS)


def busybox() -> Path:
    """The static busybox of the cache, wherever its package put it."""
    return BUSYBOX if BUSYBOX.exists() else BUSYBOX_USR


def missing() -> tuple[Path, ...]:
    """The programs of the rig that are not there."""
    programs = [program for release in FETCHED for program in release.programs()]
    wanted = (*programs, CTR, RUNC, CNI_PLUGINS / "ptp", CNI_PLUGINS / "host-local", busybox())
    return tuple(path for path in wanted if not path.exists())

"""What one rig owns on this host, written down before it exists, so that a later process can clean it up too."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

# Short paths, for sockets. /run is in memory on Debian; where it is not, making a tree of 1,000 files takes 25 times
# as long there as in /dev/shm.
_BASES = (Path("/run"), Path("/dev/shm"))
PREFIX = "nrirdma-"
_FILE = "rig.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The names that make a process, mount, cgroup or CNI result this rig's own."""

    run: Path
    root: Path
    owner_pid: int
    owner_started: str
    ip_forward: str

    @property
    def name(self) -> str:
        """The rig's name; also its CNI network's, so that results in CNI's cache tell their owner."""
        return self.run.name

    @property
    def address(self) -> Path:
        """containerd's socket. 107 bytes is the limit of a socket path; ttrpc adds a suffix."""
        return self.run / "containerd.sock"

    @property
    def config(self) -> Path:
        """containerd's configuration file."""
        return self.run / "config.toml"

    @property
    def state(self) -> Path:
        """containerd's state folder; task bundles and root file systems are below it."""
        return self.run / "state"

    @property
    def cgroup_parent(self) -> str:
        """The parent of every pod's cgroup, in every hierarchy."""
        return f"/{self.name}"

    def write(self) -> None:
        """Keeps the record in the run directory."""
        values = {key: str(value) for key, value in asdict(self).items()}
        (self.run / _FILE).write_text(json.dumps(values, indent=2))

    @classmethod
    def read(cls, run: Path) -> Self:
        """The record of a rig, of this process or another."""
        values = json.loads((run / _FILE).read_text())
        return cls(
            run=Path(values["run"]),
            root=Path(values["root"]),
            owner_pid=int(values["owner_pid"]),
            owner_started=values["owner_started"],
            ip_forward=values["ip_forward"],
        )

    def owner_lives(self) -> bool:
        """Whether the process that made the rig still runs (a pid alone may have been given to another)."""
        return process_started(self.owner_pid) == self.owner_started


def all_records() -> tuple[Record, ...]:
    """The rigs of this host."""
    return tuple(Record.read(file.parent) for file in find_in_bases(f"{PREFIX}*/{_FILE}"))


def base() -> Path:
    """The folder for run directories: the first that is in memory."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    in_memory = {Path(words[1]) for words in mounts if words[2] == "tmpfs"}
    return next((path for path in _BASES if path in in_memory), _BASES[0])


def find_in_bases(pattern: str) -> list[Path]:
    """What matches in any folder that may hold run directories."""
    return sorted(path for folder in _BASES for path in folder.glob(pattern))


def process_started(pid: int) -> str:
    """When a process started, in the kernel's ticks since boot; empty when there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in {"Z", "X"} else fields[19]

"""What one rig owns on this host, written down before it exists, so that a later process can clean it up too."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

# Short paths, for sockets, and in memory: making a tree of 1,000 files takes 25 times as long on a disk. All processes
# see the same /dev/shm, also those whose /run is their own (tests/namespaces.py): a later run finds what they left.
_BASES = (Path("/dev/shm"), Path("/run"))
PREFIX = "nrirdma-"
NETWORK = "NRI_RDMA_TEST_NETWORK"
"""The environment's variable with the process that a network was made for: its number and when it started."""
_FILE = "rig.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The names that make a process, mount, cgroup or CNI result this rig's own."""

    run: Path
    root: Path
    owner_pid: int
    owner_started: str
    network: str  # as `own_network` names it
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
        write_whole(self.run / _FILE, {key: str(value) for key, value in asdict(self).items()})

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """The record of a rig, of this process or another."""
        return cls(
            run=Path(values["run"]),
            root=Path(values["root"]),
            owner_pid=int(values["owner_pid"]),
            owner_started=values["owner_started"],
            network=values["network"],
            ip_forward=values["ip_forward"],
        )

    def owner_lives(self) -> bool:
        """Whether the process that made the rig still runs (a pid alone may have been given to another)."""
        return process_started(self.owner_pid) == self.owner_started


def all_records() -> tuple[Record, ...]:
    """The rigs of this host."""
    return tuple(Record.parse(values) for values in read_in_bases(f"{PREFIX}*/{_FILE}"))


def base() -> Path:
    """The folder for run directories: the first that is in memory."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    in_memory = {Path(words[1]) for words in mounts if words[2] == "tmpfs"}
    return next((path for path in _BASES if path in in_memory), _BASES[-1])


def write_whole(file: Path, values: Mapping[str, object]) -> None:
    """Write a record. Who looks meanwhile sees none or all of it."""
    unready = file.with_name(f"{file.name}.new")
    unready.write_text(json.dumps(values, indent=2))
    unready.rename(file)


def read_in_bases(pattern: str) -> Iterator[dict[str, Any]]:
    """Yield the records that match in any folder that may hold run directories, of all networks."""
    for file in sorted(path for folder in _BASES for path in folder.glob(pattern)):
        with suppress(FileNotFoundError):  # its owner has just removed it
            yield json.loads(file.read_text())


def own_network() -> str:
    """Return who this process's network was made for, as tests/namespaces.py says it; empty for the machine's."""
    return os.environ.get(NETWORK, "")


def may_sweep(of: str) -> bool:
    """Tell whether what died in a network is ours to remove: it is our network, or one that nobody needs any more."""
    pid, _, started = of.partition(" ")
    return of == own_network() or (of != "" and process_started(int(pid)) != started)


@contextmanager
def sweeping() -> Iterator[None]:
    """One process at a time removes what died: the parts of a run begin together, and find what a killed run left."""
    folder = os.open(base(), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def process_started(pid: int) -> str:
    """When a process started, in the kernel's ticks since boot; empty when there is none, or only its remains."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in {"Z", "X"} else fields[19]

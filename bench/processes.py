"""The processes that are measured: the daemon on a made node, the floor, and a bare process that imports and waits."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.hosts import Host
from tests.rig.node import Node, load
from tests.rig.systree import build_tree

NODE = "eight"
BARE = "import google.protobuf"
STOP_TIMEOUT_S = 10.0
_SCHEDULED = 2  # CPUCLOCK_SCHED of the process whose id is in the other bits, include/linux/posix-timers_types.h
_LOOK_S, _REST_NS = 0.1, 500_000
"""A process that takes less of a processor than this, from one look to the next, is at rest."""


class Place:
    """A folder with the node's sysfs tree, sockets and state folders; with a host, the netdevs are real."""

    def __init__(self, folder: Path, node: Node | None = None, host: Host | None = None) -> None:
        self.folder = folder
        self._host = host
        build_tree(node or load(NODE), folder / "sys", host.ifindexes if host is not None else None)

    def socket(self, name: str, *, again: bool = False) -> Path:
        """Where the plugin `name` finds its runtime; `again` makes place for another one."""
        path = self.folder / f"{name}.sock"
        if again:
            path.unlink(missing_ok=True)
        return path

    def control_socket(self, name: str) -> Path:
        """The control socket of the daemon `name`."""
        return self.folder / name / "control.sock"

    def floor_command(self, name: str) -> list[str]:
        """The floor, connecting to the runtime of that name."""
        return [sys.executable, "-m", "bench.floor", os.fspath(self.socket(name))]

    def state(self, name: str) -> Path:
        """The state directory of the daemon `name`."""
        return self.folder / name

    def daemon_command(self, name: str, *flags: str) -> list[str]:
        """The real daemon; its settings are the defaults but for the paths and `flags`."""
        paths = {
            "nri-socket": self.socket(name),
            "sysfs-root": self.folder / "sys",
            "dev-root": self.folder / "dev",
            "state-dir": self.state(name),
            "cdi-dirs": self.folder / "cdi",
            "kubelet-socket": self.folder / "no-kubelet.sock",
        }
        given = [f"--{key}={path}" for key, path in paths.items()]
        command = [sys.executable, "-m", "nri_rdma", "run", *given, *flags]
        return self._host.inside(command) if self._host is not None else command


def bare_command() -> list[str]:
    """A process that imports what we cannot do without, says so with one byte, and waits for its input to end."""
    return [sys.executable, "-c", f"{BARE}\nimport os\nos.write(1, b'x')\nos.read(0, 1)"]


@contextmanager
def started(
    command: list[str], log: Path, *, settings: Mapping[str, str] | None = None, stdout: int = subprocess.DEVNULL
) -> Iterator[subprocess.Popen[bytes]]:
    """The process, from its start to its end; what it writes to stderr is in `log`.

    Settings are environment variables; ours and OpenTelemetry's of the caller's environment are left out.
    """
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NRI_RDMA_", "OTEL_"))}
    with (
        log.open("ab") as stderr,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, env={**kept, **(settings or {})}
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def on_one_cpu() -> Iterator[None]:
    """What is started meanwhile stays on one CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def resident_kib(pid: int, field: str = "VmRSS") -> int:
    """VmRSS (now) or VmHWM (at most, ever) of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise ValueError(f"process {pid} has no {field}")


def cpu_ns(pid: int) -> int:
    """The processor time of a process with all threads that it has or had."""
    return time.clock_gettime_ns(~pid << 3 | _SCHEDULED)


def _waits(pid: int) -> bool:
    """Whether no thread of the process wants a processor: on a busy machine one that gets none uses none either."""
    return all(_state(task) != "R" for task in Path(f"/proc/{pid}/task").iterdir())


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has just ended
        return ""


def await_rest(pid: int, seconds: float = 30.0) -> None:
    """Wait until a process does nothing but wait itself. Raises RuntimeError when it does not come to rest."""
    deadline = time.monotonic() + seconds
    before, now = -_REST_NS, cpu_ns(pid)
    while now - before >= _REST_NS or not _waits(pid):
        if time.monotonic() > deadline:
            raise RuntimeError(f"process {pid} is not at rest after {seconds:g} s")
        time.sleep(_LOOK_S)
        before, now = now, cpu_ns(pid)

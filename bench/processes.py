"""The processes that are measured: the daemon on a made node, the floor, and a bare process that imports and waits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.rig.node import load
from tests.rig.systree import build_tree

NODE = "eight"
BARE = "import google.protobuf, pyroute2"
STOP_TIMEOUT_S = 10.0


class Place:
    """A folder with the node's sysfs tree, sockets and state folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        build_tree(load(NODE), folder / "sys")

    def socket(self, name: str) -> Path:
        """Where the plugin `name` finds its runtime."""
        return self.folder / f"{name}.sock"

    def control_socket(self, name: str) -> Path:
        """The control socket of the daemon `name`."""
        return self.folder / name / "control.sock"

    def floor_command(self, name: str) -> list[str]:
        """The floor, connecting to the runtime of that name."""
        return [sys.executable, "-m", "bench.floor", os.fspath(self.socket(name))]

    def daemon_command(self, name: str) -> list[str]:
        """The real daemon; its settings are the defaults but for the paths."""
        paths = {
            "nri-socket": self.socket(name),
            "sysfs-root": self.folder / "sys",
            "dev-root": self.folder / "dev",
            "state-dir": self.folder / name,
        }
        return [sys.executable, "-m", "nri_rdma", "run", *(f"--{key}={path}" for key, path in paths.items())]


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


def resident_kib(pid: int, field: str = "VmRSS") -> int:
    """VmRSS (now) or VmHWM (at most, ever) of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise ValueError(f"process {pid} has no {field}")

"""The daemon under test, as its user starts it: a process with flags, a log, a control socket and an end."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric

PROJECT = Path(__file__).resolve().parents[2]
MEMLOCK = 8 << 20
"""A host without CAP_SYS_RESOURCE cannot raise the hard limit above its own; this is what such hosts have."""


class Place(Protocol):
    """Where a daemon runs: a containerd of the rig, or folders of a test."""

    @property
    def run(self) -> Path: ...

    @property
    def work(self) -> Path: ...

    @property
    def nri_socket(self) -> Path: ...


class Daemon:
    """One `nri-rdma run` for a runtime and a node; also a context manager. `fault` names a step boundary that fails."""

    def __init__(
        self,
        place: Place,
        fabric: Fabric,
        *,
        extra: Sequence[str] = ("--allow-default-pool",),
        fault: str = "",
    ) -> None:
        self.state_dir = place.run / "nri-rdma"
        self.log_path = place.work / "nri-rdma.log"
        self._fault = fault
        self._flags = [
            *("--nri-socket", str(place.nri_socket)),
            *("--sysfs-root", str(fabric.sysfs)),
            *("--dev-root", str(fabric.dev)),
            *("--state-dir", str(self.state_dir)),
            *("--memlock", str(MEMLOCK)),
            *extra,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process that runs."""
        return self._running().pid

    @property
    def log(self) -> str:
        """What the daemon logged since its last start."""
        return self.log_path.read_bytes()[self._log_start :].decode() if self.log_path.exists() else ""

    def start(self) -> None:
        """Starts it and waits until the runtime has told it its pods."""
        self.start_process()
        self.wait_synchronized()

    def start_process(self) -> None:
        """Starts it and does not wait."""
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        module = ["tests.rig.faulty_daemon", self._fault] if self._fault else ["nri_rdma", "run"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *module, *self._flags], cwd=PROJECT, stderr=log, stdin=subprocess.DEVNULL
            )

    def wait_synchronized(self, times: int = 1) -> None:
        """Waits until it was synchronized that often since its start."""
        wait_until(lambda: self._synchronized(times), f"the daemon to be synchronized; its log:\n{self.log}", 15)

    def kill(self) -> None:
        """SIGKILL: it cleans nothing up."""
        self._running().kill()
        self._running().wait()
        self._process = None

    def stop(self) -> None:
        """SIGTERM, as a service manager does; what is attached stays attached."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process = None

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the same program that asks this daemon."""
        command = [sys.executable, "-m", "nri_rdma", *arguments, "--state-dir", str(self.state_dir)]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, env=dict(os.environ))

    def status(self) -> dict[str, Any]:
        """The status document."""
        done = self.cli("status", "-o", "json")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def _synchronized(self, times: int) -> bool:
        code = self._running().poll()
        assert code is None, f"the daemon ended with {code}; its log:\n{self.log}"
        return self.log.count(" synchronized ") >= times

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the daemon is not running"
        return self._process

"""The daemon under test, as its user starts it: a process with flags, or the runtime's child."""

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from tests.rig.control import ask_status
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.faults import Faults

PROJECT = Path(__file__).resolve().parents[2]
EXCLUSIVE_FIRST = ("--config", str(PROJECT / "tests/rig/exclusive_first.toml"))
"""Flags of a daemon with a pool `default` whose author put exclusive first."""
ALL_RIGHTS = ("--config", str(PROJECT / "tests/rig/all_rights.toml"))
"""Flags of a daemon whose rule lets every pod say everything about its netdevs."""
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


class Hardware(Protocol):
    """The folders that stand for /sys, /dev and /proc of a node: a fabric, or others that a test has made."""

    @property
    def sysfs(self) -> Path: ...

    @property
    def dev(self) -> Path: ...

    @property
    def proc(self) -> Path: ...


class AnyDaemon(ABC):
    """What is the same whoever starts it; also a context manager."""

    def __init__(self, place: Place) -> None:
        self.state_dir = place.run / "nri-rdma"
        for path in self.state_dir.glob("past*"):  # of the tests before: each has a daemon that remembers nothing
            path.unlink()
        self.log_path = place.work / "nri-rdma.log"
        self._log_start = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    @property
    @abstractmethod
    def pid(self) -> int:
        """The process that runs."""

    @property
    def log(self) -> str:
        """What the daemon logged since its last start."""
        return self.log_path.read_bytes()[self._log_start :].decode() if self.log_path.exists() else ""

    @abstractmethod
    def start(self) -> None:
        """Starts it and waits until the runtime has told it its pods."""

    @abstractmethod
    def end(self, number: signal.Signals) -> None:
        """Ends it with a signal and waits for that; what is attached stays attached."""

    @abstractmethod
    def stop(self) -> None:
        """Ends it for good."""

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command of the same program that asks this daemon."""
        command = [sys.executable, "-m", "nri_rdma", *arguments, "--state-dir", str(self.state_dir)]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, env=dict(os.environ))

    def status(self) -> dict[str, Any]:
        """The document that `nri-rdma status -o json` prints, without a process of its own: tests ask often."""
        return ask_status(self.state_dir / "control.sock")

    def wait_given_back(self) -> None:
        """Waits until nothing is attached or held any more: the return goes on after the runtime's answer."""
        wait_until(lambda: not any(self._held()), lambda: f"everything to be given back; it holds {self._held()}")

    def _held(self) -> tuple[list[str], int, list[str]]:
        """Its pods, its namespaces and its devices with a holder."""
        status = self.status()
        pods = [it["pod"] for it in status["sandboxes"]]
        return pods, status["namespaces_held"], [it["name"] for it in status["devices"] if it["holders"]]

    def _mark_log(self) -> None:
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0


class Daemon(AnyDaemon):
    """One `nri-rdma run` for a runtime and a node."""

    def __init__(
        self,
        place: Place,
        hardware: Hardware,
        *,
        extra: Sequence[str] = EXCLUSIVE_FIRST,
        fault: str = "",
        faults: Faults | None = None,
        kubelet: Path | None = None,
        netns: Path | None = None,
        inside: Sequence[str] = (),
    ) -> None:
        """`kubelet` is the socket of one that tells what it allocates; None: there is none. `fault` names a step
        boundary that always fails; `faults` are those that a test plants while it runs; neither: it is the product as
        it is. `netns` is the network namespace that is its host; None: this process's. `inside` is a command that
        replaces itself by the daemon, elsewhere."""
        super().__init__(place)
        if fault:
            faults = Faults(place.work / "fault")
            faults.plant(f"always*{fault}=error")
        self._faults = faults
        self._flags = [
            *("--nri-socket", str(place.nri_socket)),
            *("--sysfs-root", str(hardware.sysfs)),
            *("--dev-root", str(hardware.dev)),
            *("--proc-root", str(hardware.proc)),
            *("--state-dir", str(self.state_dir)),
            *("--memlock", str(MEMLOCK)),
            *("--cdi-dirs", str(place.run / "cdi")),
            *("--kubelet-socket", str(kubelet or place.run / "no-kubelet.sock")),
            *("--containerd-socket", str(place.run / "containerd.sock")),
            *extra,
        ]
        self._inside = [*(("nsenter", f"--net={netns}") if netns is not None else ()), *inside]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process that runs."""
        return self._running().pid

    def start(self) -> None:
        """Starts it and waits until the runtime has told it its pods, and it has read the CDI specs. One that is not
        ready in time is killed, so that the next test finds none."""
        self.start_process()
        try:
            self.wait_synchronized()
            what = "CDI specs were read"
            wait_until(lambda: what in self.log, lambda: f"the specs to be read; its log:\n{self.log}")
        except DeadlineError:
            self.kill()
            raise

    def another(self) -> subprocess.CompletedProcess[str]:
        """A second one with the same settings, which is to end by itself."""
        command = [sys.executable, "-m", "nri_rdma", "run", *self._flags]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=30)

    def start_process(self) -> None:
        """Starts it and does not wait."""
        self._mark_log()
        module = ["tests.rig.faulty_daemon", str(self._faults.folder)] if self._faults else ["nri_rdma", "run"]
        with self.log_path.open("ab") as log:
            command = [*self._inside, sys.executable, "-m", *module, *self._flags]
            self._process = subprocess.Popen(command, cwd=PROJECT, stderr=log, stdin=subprocess.DEVNULL)

    def wait_synchronized(self, times: int = 1) -> None:
        """Waits until it was synchronized that often since its start."""
        wait_until(
            lambda: self._synchronized(times), lambda: f"the daemon to be synchronized; its log:\n{self.log}", 15
        )

    def end(self, number: signal.Signals) -> None:
        """Ends it with a signal and waits for that."""
        process, self._process = self._running(), None
        process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def kill(self) -> None:
        """SIGKILL: it cleans nothing up."""
        self.end(signal.SIGKILL)

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def wait_ended(self) -> int:
        """Waits until it has ended by itself, or by a fault; its exit code."""
        code = self._running().wait(15)
        self._process = None
        return code

    def stop(self) -> None:
        """SIGTERM, as a service manager does; what is attached stays attached."""
        if self._process is not None:
            self.end(signal.SIGTERM)

    @property
    def synchronizations(self) -> int:
        """How often the runtime has told it its pods since its start."""
        return self.log.count(" synchronized ")

    def _synchronized(self, times: int) -> bool:
        code = self._running().poll()
        assert code is None, f"the daemon ended with {code}; its log:\n{self.log}"
        return self.synchronizations >= times

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the daemon is not running"
        return self._process

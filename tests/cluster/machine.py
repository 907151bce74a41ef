"""A machine of its own as far as programs see it: network, mounts, processes and cgroups, on the host that it runs on.

Inside, /run, /var/lib, /var/log and /dev/shm are its own, so that every program has its files and sockets where they
usually are, and nothing of it is on the host. What it has in /var/lib and /var/log is kept in a folder of the caller,
so that it is there again after a reboot; /run is not, and the boot id is another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import Signals
from types import TracebackType
from typing import IO, Self

from tests.cluster.errors import ClusterError
from tests.rig.cache import PROJECT

CGROUPS = Path("/sys/fs/cgroup")
_NAMESPACES = ("--cgroup", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
_ENTER = 'n=$1; shift; while [ $n -gt 0 ]; do echo $$ > "$1"; shift; n=$((n - 1)); done; exec "$@"'
"""$1 files of cgroups, then the command."""
_END_S = 15.0
_Output = IO[bytes] | int


class Program:
    """One program that runs in a machine, and what is needed to start it again."""

    def __init__(self, machine: Machine, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = machine.folder / "log" / f"{name}.log"
        self._machine = machine
        self._command = tuple(command)
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def runs(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id on the outside."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        if not children:
            raise ClusterError(f"{self.name} has ended: {self.log}")
        return int(children[0])  # nsenter's only child

    def start(self) -> None:
        """Start it; its words are added to its log."""
        with self.log.open("ab") as log:
            self._process = self._machine.popen(self._command, stdout=log, stderr=log, environment=self._environment)

    def reap(self) -> None:
        """Wait for a program that was ended together with its machine."""
        if self._process is not None:
            self._process.wait(_END_S)

    def send(self, number: Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)
        if number is Signals.SIGCONT and self._process is not None:
            self._process.send_signal(number)  # nsenter stops itself when its child is stopped

    def end(self, number: Signals = Signals.SIGTERM) -> None:
        """Send it a signal, and wait until it has ended."""
        assert self._process is not None
        if not self.runs:
            return
        with contextlib.suppress(ProcessLookupError, ClusterError):
            self.send(number)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, ClusterError):
                self.send(Signals.SIGKILL)
            self._process.wait(_END_S)


class Machine:
    """From start() to stop(); a context manager. `folder` keeps logs, and what survives a reboot."""

    def __init__(self, name: str, folder: Path, cgroup: str) -> None:
        self.name = name
        self.folder = folder
        self.programs: dict[str, Program] = {}
        self._cgroup = f"{cgroup}/{name}"
        self._init: subprocess.Popen[str] | None = None
        for part in ("log", "var-lib", "var-log"):
            (folder / part).mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        try:
            self.boot()
        except BaseException:
            self.shut_down()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shut_down()

    @property
    def pid(self) -> int:
        """The process id of its first process, on the outside."""
        assert self._init is not None
        return int(Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text().split()[0])

    def boot(self) -> None:
        """Make the namespaces and their mounts; no program runs yet."""
        make_cgroup(self._cgroup)
        settings = {"folder": str(self.folder), "boot_id": str(uuid.uuid4())}
        command = ["unshare", *_NAMESPACES, "--propagation", "private", sys.executable, "-m", "tests.cluster.init"]
        self._init = subprocess.Popen(
            # It ends with this process, whatever ends this one.
            self._in_cgroup("setpriv", "--pdeathsig", "KILL", *command, json.dumps(settings)),
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._init.stdout is not None
        if self._init.stdout.readline() != "ready\n":
            raise ClusterError(f"the machine {self.name} does not start: see above.")

    def shut_down(self) -> None:
        """End everything in it at once, as when the power fails."""
        if self._init is not None:
            self._init.kill()  # unshare heeds no SIGTERM; its child dies with it, and all processes inside with that
            self._init.wait(_END_S)
            self._init = None
        for program in self.programs.values():
            program.reap()
        self.programs.clear()
        remove_cgroup(self._cgroup)

    def start(self, name: str, *command: str | Path, environment: Mapping[str, str] | None = None) -> Program:
        """Start a program that is to go on; its log is NAME.log in the folder `log`."""
        self.programs[name] = Program(self, name, [str(part) for part in command], environment or {})
        return self.programs[name]

    def run(self, *command: str | Path, seconds: float = 60, fails: bool = False) -> str:
        """Run a command to its end and return what it printed. Raises ClusterError where it fails and may not."""
        process = self.popen(
            [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, environment={}
        )
        printed = process.communicate(timeout=seconds)[0].decode()
        if process.returncode and not fails:
            raise ClusterError(
                f"{' '.join(map(str, command))} in {self.name} ended with {process.returncode}: {printed}"
            )
        return printed

    def popen(
        self, command: Sequence[str], *, stdout: _Output, stderr: _Output, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a command inside; the process is nsenter's, whose only child it is."""
        inside = ["nsenter", f"--target={self.pid}", "--cgroup", "--net", "--mount", "--pid", f"--wd={PROJECT}", "--"]
        return subprocess.Popen(
            self._in_cgroup(*inside, *command),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **environment},
            start_new_session=True,
        )

    def _in_cgroup(self, *command: str) -> list[str]:
        """Return a command that enters the machine's cgroup in every hierarchy, and becomes this one."""
        files = [str(hierarchy / self._cgroup / "cgroup.procs") for hierarchy in hierarchies()]
        return ["sh", "-ec", _ENTER, "sh", str(len(files)), *files, *command]


def hierarchies() -> list[Path]:
    """Return the cgroup hierarchies of this host: one of version 2, or several of version 1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [it for it in sorted(CGROUPS.iterdir()) if (it / "cgroup.procs").exists()]


def make_cgroup(name: str) -> None:
    """Make a cgroup in every hierarchy. One of a cpuset starts empty, and no process could enter it."""
    for hierarchy in hierarchies():
        folder = hierarchy / name
        folder.mkdir()
        for key in ("cpuset.cpus", "cpuset.mems"):
            above = hierarchy / name / ".." / key
            if hierarchy != CGROUPS and above.exists():
                (folder / key).write_text(above.resolve().read_text())


def remove_cgroup(name: str) -> None:
    """Remove a cgroup and all below it, as soon as its processes have gone. Raises ClusterError."""
    until = time.monotonic() + _END_S
    for hierarchy in hierarchies():
        folder = hierarchy / name
        while folder.exists():
            for path, _, _ in os.walk(folder, topdown=False):
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
            if folder.exists() and time.monotonic() > until:
                raise ClusterError(f"{folder} cannot be removed. Next: look which processes are in it.")
            time.sleep(0.02)

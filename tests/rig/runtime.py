"""A private container runtime: its own folders, sockets, CNI network and NRI, on the host it happens to run on.

It needs what tests/rig/setup.py fetched, and root. When it is stopped nothing of it is left on the host. Which runtime
it is, and how that one is configured, is the subclasses' business.
"""

import atexit
import json
import os
import random
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rig import cache, leftovers
from tests.rig.cri import Cri, CriError
from tests.rig.deadline import wait_until
from tests.rig.image import write_image
from tests.rig.record import PREFIX, Record, all_records, base, own_network, process_started

SANDBOXED = "runsc"
"""A runtime handler that has gVisor's name, and is runc as the others. CRI-O makes other pods for Kata's."""
_START_SECONDS = 30.0


class Runtime(ABC):
    """One runtime with a work directory that the caller gives and a short run directory of its own."""

    def __init__(self, work: Path, release: cache.Release) -> None:
        if missing := cache.missing():
            raise RuntimeError(f"{missing[0]} is missing. Next: make setup")
        if not release.is_complete:
            raise RuntimeError(f"{release.name} is missing. Next: python -m tests.rig.build_runtimes {release.name}")
        leftovers.sweep()
        work.mkdir(parents=True, exist_ok=True)
        self.work = work.resolve()
        self.release = release
        self._record = Record(
            run=Path(tempfile.mkdtemp(prefix=PREFIX, dir=base())),
            root=self.work / "root",
            owner_pid=os.getpid(),
            owner_started=process_started(os.getpid()),
            network=own_network(),
            ip_forward=_forwarding_before_any_rig(),
        )
        self._record.write()
        self._process: subprocess.Popen[bytes] | None = None
        self._cri: Cri | None = None
        atexit.register(self.stop)
        for folder in ("state", "cdi", "nri-plugins", "nri-conf", "net.d"):
            (self.run / folder).mkdir()
        (self.run / "net.d/10-rig.conflist").write_text(self._cni_config())

    @abstractmethod
    def command(self) -> tuple[str, ...]:
        """What starts the server; its configuration file is the second argument after it (leftovers.py knows it so)."""

    @abstractmethod
    def environment(self) -> Mapping[str, str]:
        """The server's whole environment."""

    @abstractmethod
    def import_image(self, archive: Path) -> None:
        """Takes the OCI archive in; raises RuntimeError with the words of whoever refused it."""

    @property
    def run(self) -> Path:
        """The short directory with sockets and state; gone after stop()."""
        return self._record.run

    @property
    def cri_address(self) -> Path:
        """The socket that serves CRI (and containerd's own API)."""
        return self._record.address

    @property
    def nri_socket(self) -> Path:
        """The socket on which plugins register."""
        return self.run / "nri.sock"

    @property
    def cdi_dir(self) -> Path:
        """The only folder this runtime reads CDI specs from."""
        return self.run / "cdi"

    @property
    def log_path(self) -> Path:
        """The server's log; it outlives the rig."""
        return self.work / f"{self.release.server.name}.log"

    @property
    def cgroup_parent(self) -> str:
        """The cgroup below which every pod of this runtime lives."""
        return self._record.cgroup_parent

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running().pid

    @property
    def runs(self) -> bool:
        """Whether the server was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def cri(self) -> Cri:
        """A client of this runtime."""
        if self._cri is None:
            logs = self.work / "pod-logs"
            self._cri = Cri(self.cri_address, cgroup_parent=self.cgroup_parent, log_directory=logs)
        return self._cri

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the runtime; returns when it takes pods."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                # Ctrl-C in a terminal is for the test run, which then stops the runtime in order.
                start_new_session=True,
            )
        wait_until(self._is_ready, f"{self.release.name} to be ready (its log: {self.log_path})", _START_SECONDS)
        if not self.cri.has_image():
            self._import_image()

    def kill(self) -> None:
        """Ends the server as a crash would; its pods go on."""
        self._end(signal.SIGKILL)

    def terminate(self) -> None:
        """Ends the server as a service manager would; its pods go on."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Ends and starts the server; its pods go on meanwhile."""
        self.terminate()
        self.start()

    def stop(self) -> None:
        """Removes every pod, ends the server and clears the host of whatever it left. Calling it again is no error."""
        if not self.run.exists():
            return
        problem = self._remove_pods()
        if self._process is not None and self._process.poll() is None:
            self.terminate()
        self._close_cri()
        leftovers.remove(self._record)
        # Last: a second Ctrl-C in the middle leaves the rest to the end of the process.
        atexit.unregister(self.stop)
        if problem is not None:
            raise RuntimeError(f"pods could not be removed in order; the host is clean. {problem}") from problem

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.release.name} does not run; its log: {self.log_path}")
        return self._process

    def _end(self, number: signal.Signals) -> None:
        process = self._running()
        process.send_signal(number)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # gRPC would wait with growing pauses before it connects to the next one.
        self._close_cri()

    def _close_cri(self) -> None:
        if self._cri is not None:
            self._cri.close()
            self._cri = None

    def _is_ready(self) -> bool:
        self._running()
        if not self.cri_address.exists():
            return False
        try:
            return not self.cri.unready(seconds=2)
        except CriError as error:
            if error.code not in {"UNAVAILABLE", "UNIMPLEMENTED", "UNKNOWN", "DEADLINE_EXCEEDED"}:
                raise
            self._close_cri()  # see _end: connect anew, now
            return False

    def _remove_pods(self) -> CriError | None:
        """In order over CRI, so that CNI and NRI see the end; the first failure is reported after cleaning up."""
        if self._process is None or self._process.poll() is not None:
            return None
        first: CriError | None = None
        try:
            for pod in self.cri.pods():
                self.cri.delete_pod(pod)
        except CriError as error:
            first = error
        return first

    def _import_image(self) -> None:
        archive = self.run / "image.tar"
        write_image(cache.busybox(), archive)
        self.import_image(archive)
        archive.unlink()
        # containerd's CRI learns of it by an event.
        wait_until(self.cri.has_image, "CRI to know the image")

    def _cni_config(self) -> str:
        ipam = {
            "type": "host-local",
            "dataDir": str(self.run / "cni"),
            "ranges": [[{"subnet": _free_subnet()}]],
        }
        network = {
            "cniVersion": "1.0.0",
            "name": self._record.name,
            # A point-to-point pair per pod: unlike a bridge it leaves nothing behind.
            "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}],
        }
        return json.dumps(network, indent=2)


def _forwarding_before_any_rig() -> str:
    """What ip_forward was before CNI touched it; another rig of this network knows better than the kernel."""
    for record in all_records():
        if record.network == own_network():
            return record.ip_forward
    return leftovers.IP_FORWARD.read_text().strip()


def _free_subnet() -> str:
    """A /24 of the range for benchmarks (RFC 2544) that no route of this host uses."""
    command = ["ip", "-j", "route", "show", "table", "all"]
    used = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    while True:
        prefix = f"198.{random.randint(18, 19)}.{random.randint(0, 255)}."  # any free one will do
        if f'"{prefix}' not in used:
            return f"{prefix}0/24"

"""A host with container engines: a root folder in a mount namespace of its own, on the network of this process."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.oci.image import IMAGE, write_root
from tests.oci.podman import POLICY, PodmanOf, configuration
from tests.rig import cache
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.record import base

PREFIX = "nrirdma-oci-"
STATE = "/run/nri-rdma"
HOOKS = "/usr/local/lib/nri-rdma"
HOOK_FILES = ("nri_rdma_oci_hook.py", "nri-rdma-oci-hook")
CDI = "/etc/cdi"
_SOURCE = "/opt/nri-rdma"
_LIBRARIES = Path(sysconfig.get_path("purelib")).relative_to(cache.PROJECT)
_STDLIB = Path(sysconfig.get_path("stdlib"))
_PYTHON = "/usr/local/bin/python-of-the-tests"
"""The Python that the libraries are made for: the suite's own may be another one."""
_STORAGE_CONF = '[storage]\ndriver = "overlay"\nrunroot = "/run/containers/storage"\ngraphroot = "/tmp/graph"\n'
_NO_IPTABLES = """\
#!/bin/sh
[ "$1" = --version ] && echo "iptables v1.8.9 (legacy)"
exit 0
"""
"""For netavark of bookworm, which cannot do without a firewall: none of these hosts has one."""
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
_COMMAND_S = 20


class Host:
    """The root folder of a suite as a host, from construction to close(); also a context manager.

    It is a `Place` of a daemon (tests/rig/daemon.py), which runs outside of the root folder.
    """

    def __init__(self, root: Path, work: Path, fabric: Fabric) -> None:
        self.work = work
        self.run = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base()))
        self.state_dir = self.run / "nri-rdma"
        self.cdi_dir = self.run / "cdi"
        self.nri_socket = self.run / "nri.sock"
        """Nobody is there: this host has no runtime with NRI."""
        files = self.run / "files"
        for folder in (self.state_dir, self.cdi_dir, files, self.run / "disk"):
            folder.mkdir(mode=0o700)
        self.cgroup_parent = f"/{self.run.name}"
        write_root(cache.busybox(), files / "box.tar")
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", self.run / "disk"], check=True)
        shared = {self.state_dir: STATE, self.cdi_dir: CDI, cache.PROJECT: _SOURCE, files: "/run/files"}
        shared |= {folder: str(folder) for folder in (_STDLIB, fabric.run)}
        program = Path(__file__).with_name("become_host.py")
        self._process = subprocess.Popen(
            [
                *("unshare", "--mount", "--propagation", "private", sys.executable, "-IS", str(program)),
                *(str(root), str(self.run / "disk"), str(fabric.dev / "infiniband")),
                *(f"{folder}={place}" for folder, place in shared.items()),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None  # asked for above
        assert self._process.stdout.readline() == "ready\n"
        self._log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._log.bind(str(self.file("/dev/log")))
        self._logged: list[str] = []
        threading.Thread(target=self._take_log, name="system log", daemon=True).start()
        self._configure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def file(self, path: str) -> Path:
        """Return the path by which this process reaches a file of the host."""
        return Path(f"/proc/{self._process.pid}/root{path}")

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs this one on the host, in the same process."""
        environment = [f"{name}={value}" for name, value in _ENVIRONMENT.items()]
        return ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", "env", "-i", *environment, *command]

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a command on the host."""
        words = self.inside(command)
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run_command(self, *command: str, seconds: float = _COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run a command on the host, to its end."""
        words = self.inside(command)
        return subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=seconds
        )

    def nri_rdma(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of nri-rdma on the host."""
        return self.run_command(*nri_rdma(*arguments))

    def put_hook(self) -> None:
        """Put the hook that CDI specs name in its place, as docs/podman.md says."""
        self.file(HOOKS).mkdir(parents=True, exist_ok=True)
        for name in HOOK_FILES:
            shutil.copy(cache.PROJECT / "hooks" / name, self.file(HOOKS))

    def remove_hook(self) -> None:
        """Remove the hook, with what Python has made of it."""
        for name in HOOK_FILES:
            self.file(f"{HOOKS}/{name}").unlink(missing_ok=True)
        shutil.rmtree(self.file(f"{HOOKS}/__pycache__"), ignore_errors=True)

    def must(self, *command: str) -> str:
        """Run a command on the host that has to succeed; what it wrote to stdout."""
        done = self.run_command(*command)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def system_log(self) -> list[str]:
        """Return the lines that programs on the host have sent to the system's log since the last call."""
        lines, self._logged = self._logged, []
        return lines

    def close(self) -> None:
        """End all that runs on the host, and remove it. Again is no error."""
        if not self.run.exists():
            return
        self._log.shutdown(socket.SHUT_RD)
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()
        for pid in _in_cgroups(self.cgroup_parent):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: _remove_cgroups(self.cgroup_parent), "the host's cgroups to be gone")
        subprocess.run(["umount", "-l", self.run / "disk"], check=True)
        shutil.rmtree(self.run)

    def _take_log(self) -> None:
        """Take what is logged, all the time: whoever logs waits for it."""
        while data := self._log.recv(65536):
            self._logged.append(data.decode())

    def _configure(self) -> None:
        for path, text in {
            "/etc/containers/containers.conf": configuration("cgroupfs"),
            "/etc/containers/storage.conf": _STORAGE_CONF,
            "/etc/containers/policy.json": POLICY,
        }.items():
            self.file(path).parent.mkdir(parents=True, exist_ok=True)
            self.file(path).write_text(text)
        self.file(_PYTHON).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(sys.executable).resolve(), self.file(_PYTHON))
        self.put_hook()
        for name in ("iptables", "ip6tables"):
            self.file(f"/usr/sbin/{name}").write_text(_NO_IPTABLES)
            self.file(f"/usr/sbin/{name}").chmod(0o755)


class Podman(PodmanOf):
    """podman on a host, with one OCI runtime."""

    name = "podman"

    def __init__(self, host: Host, oci_runtime: str) -> None:
        super().__init__(host, oci_runtime, IMAGE, host.cgroup_parent)
        self.host = host
        if host.run_command("podman", "image", "exists", IMAGE).returncode != 0:
            host.must("podman", "import", "-q", "/run/files/box.tar", IMAGE)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of podman."""
        return self.host.start("podman", *arguments)


def nri_rdma(*arguments: str) -> tuple[str, ...]:
    """Return the words that run a command of nri-rdma on a host."""
    variables = (f"PYTHONPATH={_SOURCE}:{_SOURCE}/{_LIBRARIES}", "PYTHONHOME=/usr", "COLUMNS=200")
    return ("env", *variables, _PYTHON, "-B", "-m", "nri_rdma", *arguments)


def _cgroups(parent: str) -> list[Path]:
    """Return the folders of a cgroup in all hierarchies, the innermost first."""
    tops = [path for path in Path("/sys/fs/cgroup").glob(f"*{parent}") if path.is_dir()]
    found = [Path(folder) for top in tops for folder, _, _ in os.walk(top)]
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _in_cgroups(parent: str) -> set[int]:
    files = [folder / "cgroup.procs" for folder in _cgroups(parent)]
    return {int(line) for file in files if file.exists() for line in file.read_text().split()}


def _remove_cgroups(parent: str) -> bool:
    for folder in _cgroups(parent):
        try:
            folder.rmdir()
        except OSError:  # its last process is about to be gone
            return False
    return True

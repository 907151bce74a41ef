"""Docker on a host: a daemon of its own, whose default network is off."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.oci.host import Host
from tests.oci.image import IMAGE
from tests.rig.deadline import wait_until

SERVICE_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""As systemd sets it for services."""

RUNTIME = "nri-rdma.v1"
"""What `nri-rdma install docker` sets up."""
BRIDGE = "box"
"""The network of containers that ask for `bridge`, until they are removed: the default one needs a firewall."""


class Docker:
    """dockerd with its containerd, from construction to close(); also a context manager. Containers have the runtime of
    this name, or the default one ("")."""

    name = "docker"

    def __init__(self, host: Host, runtime: str = "", **more: object) -> None:
        """`more` goes into daemon.json."""
        self.host = host
        self._runtime = runtime
        settings = {
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "data-root": "/tmp/docker",
            "exec-root": "/run/docker",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": host.cgroup_parent,
            **more,
        }
        host.file("/etc/docker").mkdir(exist_ok=True)
        host.file("/etc/docker/daemon.json").write_text(json.dumps(settings))
        self.log = host.work / "dockerd.log"
        self._process = self._started()
        try:
            self._await()
            self.must("import", "/run/files/box.tar", IMAGE)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of docker, to its end."""
        return self.host.run_command("docker", *arguments)

    def must(self, *arguments: str) -> str:
        """Run a command of docker that has to succeed; what it wrote to stdout."""
        return self.host.must("docker", *arguments)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of docker."""
        return self.host.start("docker", *arguments)

    def run(self, *options: str, command: Sequence[str] = ("true",), network: str = "none") -> list[str]:
        """Return the arguments that run a command in a new container."""
        return self._new("run", options, command, network)

    def create(self, *options: str, command: Sequence[str] = ("true",), network: str = "none") -> list[str]:
        """Return the arguments that create a container."""
        return self._new("create", options, command, network)

    def annotation(self, text: str) -> tuple[str, str]:
        """Return the option for an annotation, KEY=VALUE."""
        return "--annotation", text

    def inspect(self, container: str) -> dict[str, Any]:
        """Return what Docker knows of a container."""
        document: list[dict[str, Any]] = json.loads(self.must("inspect", container))
        return document[0]

    def remove(self, name: str) -> None:
        """Remove a container, whether it runs or not."""
        self.must("rm", "-f", name)

    def remove_all(self) -> None:
        """Remove all containers, and their bridge."""
        for name in self.must("ps", "-a", "-q").split():
            self.remove(name)
        if BRIDGE in self._networks():
            self.must("network", "rm", BRIDGE)

    def _networks(self) -> list[str]:
        return self.must("network", "ls", "--format", "{{.Name}}").split()

    def _new(self, verb: str, options: Sequence[str], command: Sequence[str], network: str) -> list[str]:
        runtime = ["--runtime", self._runtime] if self._runtime else []
        if network == "bridge":
            network = BRIDGE
            if BRIDGE not in self._networks():
                self.must("network", "create", BRIDGE)
        return [verb, *runtime, "--network", network, *options, IMAGE, *command]

    def pids(self) -> list[int]:
        """Return the processes that stay: dockerd and its containerd."""
        return list(_family(self._process.pid))

    def restart(self, by: signal.Signals, between: Callable[[], None] = lambda: None) -> None:
        """End dockerd by a signal, and start it again."""
        self._process.send_signal(by)
        self._process.wait(30)
        between()
        self._process = self._started()
        self._await()

    def close(self) -> None:
        """End dockerd, and its containerd with it. Again is no error."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)

    def _started(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            words = self.host.inside(["env", SERVICE_PATH, "dockerd"])
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log, stdout=log)

    def _await(self) -> None:
        wait_until(self._answers, f"dockerd to answer; its log: {self.log}", 60)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        return self("version").returncode == 0


def _family(pid: int) -> Iterator[int]:
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from _family(int(child))

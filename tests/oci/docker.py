"""Docker on a host: a daemon of its own, without networks."""

import json
import signal
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tests.oci.host import Host
from tests.oci.image import IMAGE
from tests.rig.deadline import wait_until


class Docker:
    """dockerd with its containerd, from construction to close(); also a context manager."""

    def __init__(self, host: Host) -> None:
        self.host = host
        settings = {
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "data-root": "/tmp/docker",
            "exec-root": "/run/docker",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": host.cgroup_parent,
        }
        host.file("/etc/docker").mkdir(exist_ok=True)
        host.file("/etc/docker/daemon.json").write_text(json.dumps(settings))
        self.log = host.work / "dockerd.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(host.inside(["dockerd"]), stdin=subprocess.DEVNULL, stderr=log, stdout=log)
        try:
            wait_until(self._answers, f"dockerd to answer; its log: {self.log}", 60)
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

    def run(self, *options: str, command: Sequence[str] = ("true",), network: str = "none") -> list[str]:
        """Return the arguments that run a command in a new container."""
        return ["run", "--network", network, *options, IMAGE, *command]

    def inspect(self, container: str) -> dict[str, Any]:
        """Return what Docker knows of a container."""
        document: list[dict[str, Any]] = json.loads(self.must("inspect", container))
        return document[0]

    def remove_all(self) -> None:
        """Remove all containers."""
        for name in self.must("ps", "-a", "-q").split():
            self.must("rm", "-f", name)

    def close(self) -> None:
        """End dockerd, and its containerd with it. Again is no error."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(30)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log.read_text(errors="replace")[-3000:]
        return self("version").returncode == 0

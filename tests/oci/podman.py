"""podman with one OCI runtime, on whatever host it runs: a root folder here, a virtual machine in the lab."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any, Protocol

from tests.rig.deadline import wait_until

POLICY = '{"default": [{"type": "insecureAcceptAnything"}]}'
"""policy.json: the images are the tests' own."""


def configuration(cgroup_manager: str) -> str:
    """containers.conf of a host without a journal, whose bridge needs no firewall."""
    return f"""\
[engine]
cgroup_manager = "{cgroup_manager}"
events_logger = "file"
[containers]
log_driver = "k8s-file"
[network]
firewall_driver = "none"
"""


class Place(Protocol):
    """A host that commands run on."""

    def run_command(self, *command: str) -> subprocess.CompletedProcess[str]: ...

    def must(self, *command: str) -> str: ...


class PodmanOf:
    """podman on a host, with one OCI runtime and one image; containers are in cgroups below `cgroup_parent`, or where
    podman puts them ("")."""

    def __init__(self, place: Place, oci_runtime: str, image: str, cgroup_parent: str = "") -> None:
        self._place = place
        self.oci_runtime = oci_runtime
        self._image = image
        self._cgroup_parent = cgroup_parent

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of podman, to its end."""
        return self._place.run_command("podman", *arguments)

    def must(self, *arguments: str) -> str:
        """Run a command of podman that has to succeed; what it wrote to stdout."""
        return self._place.must("podman", *arguments)

    def annotation(self, text: str) -> tuple[str, str]:
        """Return the option for an annotation, KEY=VALUE."""
        if self.must("--version").startswith("podman version 4."):  # it takes the text for a row of a CSV file
            text = '"' + text.replace('"', '""') + '"'
        return "--annotation", text

    def run(self, *options: str, command: Sequence[str] = ("true",), network: str = "none") -> list[str]:
        """Return the arguments that run a command in a new container."""
        return self._new("run", options, command, network)

    def create(self, *options: str, command: Sequence[str] = ("true",), network: str = "none") -> list[str]:
        """Return the arguments that create a container."""
        return self._new("create", options, command, network)

    def inspect(self, container: str) -> dict[str, Any]:
        """Return what podman knows of a container."""
        document: list[dict[str, Any]] = json.loads(self.must("inspect", container))
        return document[0]

    def remove(self, name: str) -> None:
        """Remove a container, whether it runs or not."""
        self.must("rm", "-f", "-t", "0", name)

    def remove_all(self) -> None:
        """Remove all containers and pods. Of one whose conmon was killed it takes two attempts."""
        force = ("rm", "-f", "-a", "-t", "0")
        wait_until(lambda: self("pod", *force).returncode == 0, "the pods to be removed")
        wait_until(lambda: self(*force).returncode == 0, "the containers to be removed")

    def _new(self, verb: str, options: Sequence[str], command: Sequence[str], network: str) -> list[str]:
        """Without a network it is the pod's."""
        own = ["--network", network] if network else []
        own += ["--cgroup-parent", self._cgroup_parent] if network and self._cgroup_parent else []
        return ["--runtime", self.oci_runtime, verb, *own, *options, self._image, *command]

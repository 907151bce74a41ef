"""Query podman through its command-line tool. Each call blocks until podman has answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from nri_rdma.host.engine_command import run, told_of_all

PROGRAM = "podman"
TIMEOUT_S = 60.0
"""Time limit of a command in seconds. It is long because podman may wait for a lock that it holds while it starts a
container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanContainer:
    """A container of podman, running or not. `has_host_network`: it has no network namespace of its own."""

    id: str
    name: str
    annotations: Mapping[str, str]
    is_running: bool
    has_host_network: bool


def version_text() -> str:
    """Return the output of `podman --version`, which reads no configuration. Raises NriRdmaError if the command
    fails."""
    return _run("--version")


def read_configuration() -> None:
    """Check that podman can read its configuration. Raises NriRdmaError if it cannot."""
    _run("info", "--format", "{{.Version.Version}}")


def containers() -> tuple[PodmanContainer, ...]:
    """Return all podman containers of the root user, running or not. Raises NriRdmaError if podman fails."""

    def asked() -> tuple[PodmanContainer, ...]:
        ids = _run("ps", "--all", "--quiet", "--no-trunc").split()
        return _inspected(*ids) if ids else ()

    return told_of_all(asked)


def container(name: str) -> PodmanContainer:
    """Return the container with this name, id, or beginning of an id. Raises NriRdmaError if podman fails, or has no
    such container."""
    (found,) = _inspected("--", name)
    return found


def _inspected(*names: str) -> tuple[PodmanContainer, ...]:
    documents = json.loads(_run("inspect", "--type", "container", *names))
    return tuple(
        PodmanContainer(
            id=it["Id"],
            name=it["Name"],
            annotations=it["Config"].get("Annotations") or {},
            is_running=bool(it["State"]["Running"]),
            has_host_network=it["HostConfig"].get("NetworkMode") == "host",
        )
        for it in documents
    )


def _run(*arguments: str) -> str:
    return run(PROGRAM, *arguments, timeout_s=TIMEOUT_S)

"""podman's own command line, asked for what nobody else knows. Blocks for as long as podman takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from nri_rdma.host.engine_command import run

PROGRAM = "podman"
TIMEOUT_S = 60.0
"""podman waits for its locks, also of a container that is being started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodmanContainer:
    """A container that podman has, whether it runs or not."""

    id: str
    name: str
    annotations: Mapping[str, str]
    is_running: bool
    has_host_network: bool


def version_text() -> str:
    """Return what `podman --version` prints; it reads no configuration. Raises NriRdmaError."""
    return _run("--version")


def read_configuration() -> None:
    """Have podman read its configuration. Raises NriRdmaError where it cannot."""
    _run("info", "--format", "{{.Version.Version}}")


def containers() -> tuple[PodmanContainer, ...]:
    """Return all containers of root. Raises NriRdmaError."""
    ids = _run("ps", "--all", "--quiet", "--no-trunc").split()
    return _inspected(*ids) if ids else ()


def container(name: str) -> PodmanContainer:
    """Return the container of a name, or of the beginning of an id. Raises NriRdmaError, also where there is none."""
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

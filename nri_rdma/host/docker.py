"""Docker's own command line, asked for what nobody else knows. Blocks for as long as dockerd takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from nri_rdma.host.engine_command import run

PROGRAM = "docker"
TIMEOUT_S = 60.0
"""dockerd waits for its locks, also of a container that is being started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerContainer:
    """A container that Docker has, whether it runs or not; `runtime` is the name that it is made with."""

    name: str
    runtime: str
    is_running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerRuntimes:
    """The runtimes that dockerd is configured with: the default one's name, and the program of each ("": a shim)."""

    default: str
    programs: Mapping[str, str]


def version_text() -> str:
    """Return what `docker --version` prints; it does not ask dockerd. Raises NriRdmaError."""
    return _run("--version")


def runtimes() -> DockerRuntimes:
    """Return dockerd's runtimes. Raises NriRdmaError."""
    found = json.loads(_run("info", "--format", "{{json .}}"))
    programs = {name: it.get("path", "") for name, it in found["Runtimes"].items()}
    return DockerRuntimes(default=found["DefaultRuntime"], programs=programs)


def containers() -> tuple[DockerContainer, ...]:
    """Return all containers. Raises NriRdmaError."""
    ids = _run("ps", "--all", "--quiet", "--no-trunc").split()
    documents = json.loads(_run("inspect", "--type", "container", *ids)) if ids else []
    return tuple(
        DockerContainer(
            name=it["Name"].removeprefix("/"),
            runtime=it["HostConfig"].get("Runtime") or "",
            is_running=bool(it["State"]["Running"]),
        )
        for it in documents
    )


def _run(*arguments: str) -> str:
    return run(PROGRAM, *arguments, timeout_s=TIMEOUT_S)

"""Query Docker through its command-line tool. Each call blocks until dockerd has answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from nri_rdma.host.engine_command import run

PROGRAM = "docker"
TIMEOUT_S = 60.0
"""dockerd may wait for a lock that it holds while it starts a container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerContainer:
    """A container of Docker, running or not. `runtime` is the name of the OCI runtime that Docker creates it with."""

    name: str
    runtime: str
    is_running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerRuntimes:
    """The OCI runtimes in dockerd's configuration: the name of the default one, and the program of each; "" for a
    containerd shim."""

    default: str
    programs: Mapping[str, str]


def version_text() -> str:
    """Return the output of `docker --version`, which does not contact dockerd. Raises NriRdmaError."""
    return _run("--version")


def runtimes() -> DockerRuntimes:
    """Return the OCI runtimes that dockerd is configured with. Raises NriRdmaError."""
    found = json.loads(_run("info", "--format", "{{json .}}"))
    programs = {name: it.get("path", "") for name, it in found["Runtimes"].items()}
    return DockerRuntimes(default=found["DefaultRuntime"], programs=programs)


def containers() -> tuple[DockerContainer, ...]:
    """Return all containers of Docker. Raises NriRdmaError."""
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

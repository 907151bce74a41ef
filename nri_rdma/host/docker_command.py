"""Query Docker through its command-line tool. Each call blocks until dockerd has answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any  # Any: JSON of docker

from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host.engine_command import run, told_of_all

PROGRAM = "docker"
TIMEOUT_S = 60.0
"""Time limit of a command in seconds. It is long because dockerd may wait for a lock that it holds while it starts a
container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerContainer:
    """A container of Docker, running or not. `runtime` is the name of the OCI runtime with which Docker creates the
    container."""

    name: str
    runtime: str
    is_running: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerRuntimes:
    """The OCI runtimes in dockerd's configuration. `default` is the name of the default one. `programs` has the program
    of each runtime by name; "" for a runtime that is a containerd shim."""

    default: str
    programs: Mapping[str, str]


def version_text() -> str:
    """Return the output of `docker --version`, which does not contact dockerd. Raises NriRdmaError if the command
    fails."""
    return _run("--version")


def runtimes() -> DockerRuntimes:
    """Return the OCI runtimes that dockerd is configured with. Raises NriRdmaError if dockerd does not answer."""
    found = json.loads(_run("info", "--format", "{{json .}}"))
    if errors := found.get("ServerErrors"):  # before Docker 28.1 the exit code is 0 even so (docker/cli issue 5900)
        what, where = f"dockerd does not answer: {' '.join(errors)}", f"{PROGRAM} info"
        raise NriRdmaError(ErrorCode.INSTALL, what, where=where, hint="start it: systemctl start docker")
    programs = {name: it.get("path", "") for name, it in found["Runtimes"].items()}
    return DockerRuntimes(default=found["DefaultRuntime"], programs=programs)


def containers() -> tuple[DockerContainer, ...]:
    """Return all containers of Docker, running or not. Raises NriRdmaError if dockerd does not answer."""

    def asked() -> list[dict[str, Any]]:
        ids = _run("ps", "--all", "--quiet", "--no-trunc").split()
        return json.loads(_run("inspect", "--type", "container", *ids)) if ids else []

    documents = told_of_all(asked)
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

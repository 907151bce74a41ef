"""The names that people gave to containers of podman and Docker, which the daemon knows by their ids."""

from __future__ import annotations

import shutil

from nri_rdma.errors import NriRdmaError
from nri_rdma.host.engine_command import run

ENGINES = ("podman", "docker")
TIMEOUT_S = 1.0
"""For each engine, where names are an ornament."""


def container_names(timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Return the names of all containers, by their ids. Of an engine that is not here, or cannot say, there are none:
    ids serve as well. Blocks for as long as the engines take, each for `timeout_s` at most."""
    found: dict[str, str] = {}
    for engine in ENGINES:
        if shutil.which(engine) is None:
            continue
        try:
            told = run(engine, "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}}", timeout_s=timeout_s)
        except NriRdmaError:
            continue
        found |= {id_: name for id_, _, name in (line.partition(" ") for line in told.splitlines()) if name}
    return found

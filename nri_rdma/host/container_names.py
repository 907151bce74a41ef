"""The names that users gave to the containers of podman and Docker; the daemon knows these containers only by their
ids."""

from __future__ import annotations

import shutil

from nri_rdma.errors import NriRdmaError
from nri_rdma.host.engine_command import run

ENGINES = ("podman", "docker")
TIMEOUT_S = 1.0
"""Time limit in seconds for the command of each engine. It is short because names are only for display."""


def container_names(timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Return the names of all podman and Docker containers, by container id.

    An engine that is not installed, or whose command fails, contributes no names: callers then show the ids. Each
    engine may take at most `timeout_s` seconds.
    """
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

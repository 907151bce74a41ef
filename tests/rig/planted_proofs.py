"""Proofs whose result a test plants: a program for the setting `verbs_python`.

It is the process that makes proofs (nri_rdma.host.verbs.warm): it forks into the container's cgroup and network
namespace, and has its limits. Only what asks the hardware (selfcheck.check) answers as planted: there is none here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
PROGRAM = """#!{python}
import json, os, resource, signal, socket, sys, time
from pathlib import Path

sys.path.append({project!r})
from nri_rdma.host.verbs import selfcheck, warm

folder = Path({folder!r})


def check(task):
    planted = json.loads((folder / "planted.json").read_text())
    seen = {{
        **task,
        "pid": os.getpid(),
        "cgroups": Path("/proc/self/cgroup").read_text(),
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "links": sorted(name for _, name in socket.if_nameindex()),
    }}
    with (folder / "seen").open("a") as file:
        file.write(json.dumps(seen) + "\\n")
    if planted.get("ends"):
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(planted.get("takes_s", 0))
    return {{
        "device": task["device"],
        "port": task["port"],
        "transport": "roce",
        "gid": {{"index": 1, "value": "::ffff:10.0.0.1", "type": "RoCE v2"}},
        "registered_bytes": task["memory_bytes"],
        "transferred_bytes": task["transfer_bytes"],
        "ms": {{}},
        **({{"problem": planted["problem"]}} if "problem" in planted else {{}}),
    }}


selfcheck.check = check
warm.serve(socket.socket(fileno=sys.stdin.fileno()))
"""


class PlantedProofs:
    """The program, in a folder of its own, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.program = folder / "python3"
        self.program.write_text(PROGRAM.format(python=sys.executable, project=str(PROJECT), folder=str(folder)))
        self.program.chmod(0o755)
        self.plant()

    def plant(self, **planted: object) -> None:
        """Have proofs end so: `problem` of the self-check, `ends` (killed), `takes_s`; nothing: RDMA works."""
        (self._folder / "planted.json").write_text(json.dumps(planted))

    def seen(self) -> list[Mapping[str, Any]]:
        """What was proven, with the limits and the place of the process that proved it."""
        file = self._folder / "seen"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

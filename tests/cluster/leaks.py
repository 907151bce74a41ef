"""What a cluster could leave on the host that it ran on, as the host's own tools tell it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.init import PLACES, TUNABLES
from tests.cluster.machine import hierarchies
from tests.rig.cache import CACHE

FOLDER = CACHE / "cluster"
RUN = "NRI_RDMA_CLUSTER"
"""In the environment of processes that have namespaces of their own: a word that no other run has."""
_SYSCTLS = (*TUNABLES, "net/ipv4/ip_forward")


def run_prefix(run: str) -> str:
    """Return how the names of a run's folders begin; its cgroups are called by them."""
    return f"run-{run}-"


def look(run: str) -> Mapping[str, list[str]]:
    """Return links and mounts, the cgroups and processes of a run, and the settings of the kernel that a kubelet
    writes."""
    mark = f"nrirdma-{run_prefix(run)}"
    links = json.loads(subprocess.run(["ip", "-j", "link"], capture_output=True, check=True).stdout)
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return {
        "link": sorted(link["ifname"] for link in links if link["ifname"].startswith(("to-", "eth", "veth"))),
        "mount": [f"{place} ({number})" for place, number in sorted(Counter(mounts).items()) if _is_ours(place)],
        "cgroup": sorted(str(it) for hierarchy in hierarchies() for it in hierarchy.glob(f"{mark}*")),
        "process": sorted(_processes(mark)),
        "sysctl": [f"{name} = {(Path('/proc/sys') / name).read_text().strip()}" for name in _SYSCTLS],
    }


def _is_ours(place: str) -> bool:
    """Tell whether a machine mounts something there; others may mount elsewhere meanwhile."""
    return place in PLACES or place.startswith((f"{FOLDER}/", "/proc/sys/", "/sys/fs/cgroup"))


def left(before: Mapping[str, list[str]], after: Mapping[str, list[str]]) -> list[str]:
    """Return a line for each thing that is there now and was not before, or the other way round."""
    return [
        f"{kind} {what}: {'left' if what in after[kind] else 'gone'}"
        for kind in before
        for what in sorted(set(before[kind]) ^ set(after[kind]))
    ]


def _processes(mark: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            cgroups, words = (folder / "cgroup").read_text(), (folder / "cmdline").read_text().split("\0")
        except OSError:  # it has just ended
            continue
        if mark in cgroups and words[0]:  # without words it has ended, and waits for its parent
            found.append(f"{folder.name} {' '.join(words[:2])}")
    return found

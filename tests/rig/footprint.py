"""What a runtime and its daemon hold between pods: to be the same before the first pod and after the last."""

import re
import time
from dataclasses import dataclass
from pathlib import Path

from tests.rig.daemon import AnyDaemon
from tests.rig.deadline import wait_until
from tests.rig.runtime import Runtime

_REST_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """One look; descriptors by kind, since numbers of sockets differ from process to process, and without those of
    modules that Python is loading."""

    descriptors: tuple[str, ...]
    namespaces: tuple[str, ...]
    processes: tuple[str, ...]
    journal: tuple[str, ...]


def take(runtime: Runtime, daemon: AnyDaemon) -> Footprint:
    """The footprint now."""
    journal = daemon.state_dir / "journal"
    return Footprint(
        descriptors=_descriptors(daemon.pid),
        namespaces=_namespaces(runtime.run),
        processes=_processes(runtime, daemon),
        journal=tuple(sorted(it.name for it in journal.iterdir())) if journal.exists() else (),
    )


def settled(runtime: Runtime, daemon: AnyDaemon) -> Footprint:
    """The footprint once nothing changes for half a second: a daemon that has just started, or that links came to, has
    sockets for a moment, to read the node."""
    last, since = take(runtime, daemon), time.monotonic()

    def rests() -> bool:
        nonlocal last, since
        look = take(runtime, daemon)
        if look != last:
            last, since = look, time.monotonic()
        return time.monotonic() - since > _REST_S

    wait_until(rests, "the daemon to rest")
    return last


def _descriptors(pid: int) -> tuple[str, ...]:
    kinds = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            kinds.append(re.sub(r"\[\d+\]", "[]", str(link.readlink())))
        except FileNotFoundError:
            continue  # it was closed while we read the list
    return tuple(sorted(kind for kind in kinds if not kind.endswith((".so", ".py", ".pyc"))))


def _namespaces(run: Path) -> tuple[str, ...]:
    """Mounts of namespaces that pods of this runtime had."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - nsfs " in line]
    return tuple(sorted(point for point in points if point.startswith(f"{run}/")))


def _processes(runtime: Runtime, daemon: AnyDaemon) -> tuple[str, ...]:
    """Processes that name the runtime's folder, but for the runtime itself and the daemon."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we read the list
        if str(runtime.run) in line and int(folder.name) not in {runtime.pid, daemon.pid}:
            found.append(line)
    return tuple(sorted(found))

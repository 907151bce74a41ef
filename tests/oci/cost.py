"""`python -m tests.oci SUITE --cost STARTS`: what containers of podman cost more where nri-rdma is, in CPU time.

Each round starts one container of each kind, forwards and backwards in turn, and takes the CPU time of everything that
takes part (podman, conmon, OCI runtime, hooks, container, daemon) from the cgroup that holds it all, once all has ended
and the daemon rests. Hosts are equal but for their CDI specs: none, ours, and ours with a bare Python in the hooks'
place. What the machine does besides falls on all kinds of a round.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import Row, exit_code, paired_row, table
from tests.oci.conftest import start
from tests.oci.host import Host, Podman
from tests.oci.roots import SUITES
from tests.oci.test_podman import DEVICE, generate
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.node import load

CGROUPS = Path("/sys/fs/cgroup")
BARE = ("python3", "-I", "-S", "-c", "pass")
MOST_OF_OTHERS = 1.02
"""Times what a container that asks for nothing costs on a host without nri-rdma."""
MOST_PER_HOOK_MS = 12.0
"""CPU time of a hook and of the daemon's work for it, beyond a bare Python."""
MOST_HOOKS = 3.0
WARM_UP = 5
_RESTS_S = 0.1
_MS_PER_NS = 1e-6
_NS_PER_US = 1000


class Tree:
    """The cgroup of a host: `starter` is for what is started, `daemon` for the daemon, podman adds the containers'."""

    def __init__(self, host: Host) -> None:
        unified = (CGROUPS / "cgroup.controllers").exists()
        self._top = (CGROUPS if unified else CGROUPS / "cpuacct") / host.cgroup_parent.lstrip("/")
        self._is_unified = unified
        for name in ("starter", "daemon"):
            (self._top / name).mkdir(parents=True)

    def add_daemon(self, pid: int) -> None:
        """Count a daemon's time from now on."""
        (self._top / "daemon/cgroup.procs").write_text(str(pid))

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that enters the cgroup, and then becomes this one."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self._top / "starter/cgroup.procs"), *command]

    def used_ns(self) -> int:
        """Return the CPU time of all that is in the cgroup, or was."""
        if self._is_unified:
            words = dict(line.split() for line in (self._top / "cpu.stat").read_text().splitlines())
            return int(words["usage_usec"]) * _NS_PER_US
        return int((self._top / "cpuacct.usage").read_text())

    def rest(self) -> int:
        """Wait until all but the daemon has ended and the daemon rests; return the CPU time until then."""
        wait_until(lambda: not any(self._busy()), "what was started to end", seconds=30)
        while (used := self.used_ns()) != self._later():
            pass
        return used

    def _later(self) -> int:
        time.sleep(_RESTS_S)
        return self.used_ns()

    def _busy(self) -> Iterator[str]:
        for file in self._top.rglob("cgroup.procs"):
            if file.parent.name != "daemon" and file.exists():
                yield from file.read_text().split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A container that is started on a host with these options."""

    podman: Podman
    tree: Tree
    options: tuple[str, ...] = ()

    def cost_ns(self) -> int:
        """Start one container, and return what it cost until all rests."""
        before = self.tree.rest()
        words = self.podman.host.inside(["podman", *self.podman.run("--rm", *self.options)])
        subprocess.run(self.tree.inside(words), check=True, capture_output=True, text=True, timeout=60)
        return self.tree.rest() - before


def main(suite: str, starts: int) -> int:
    """Measure with each OCI runtime and tell; 1 when a target is missed."""
    rows: list[Row] = []
    for oci_runtime in ("crun", "runc"):
        with ExitStack() as stack:
            fabric = stack.enter_context(Fabric(load("eight")))
            root = next(it.root for it in SUITES if it.name == suite)
            hosts = [
                stack.enter_context(Host(root, Path(stack.enter_context(tempfile.TemporaryDirectory())), fabric))
                for _ in range(3)
            ]
            plain, ours, bare = (Kind(podman=Podman(host, oci_runtime), tree=Tree(host)) for host in hosts)
            generate(ours.podman.host, fabric)
            generate(bare.podman.host, fabric)
            hooks = _without_program(bare.podman.host.cdi_dir)
            daemon = Daemon(ours.podman.host, fabric)
            start(daemon)
            stack.callback(daemon.stop)
            ours.tree.add_daemon(daemon.pid)
            asks = Kind(podman=ours.podman, tree=ours.tree, options=DEVICE)
            python = Kind(podman=bare.podman, tree=bare.tree, options=DEVICE)
            taken = _measured([plain, ours, python, asks], starts)
        rows += _rows(oci_runtime, taken, hooks)
    print(table(rows))
    return exit_code(rows)


def _measured(kinds: Sequence[Kind], starts: int) -> list[list[list[float]]]:
    """The milliseconds of each kind's starts, in blocks of one."""
    taken: list[list[list[float]]] = [[] for _ in kinds]
    order = list(range(len(kinds)))
    for number in range(WARM_UP + starts):
        for which in order:
            spent = kinds[which].cost_ns() * _MS_PER_NS
            if number >= WARM_UP:
                taken[which].append([spent])
        order.reverse()
    return taken


def _rows(oci_runtime: str, taken: list[list[list[float]]], hooks: int) -> list[Row]:
    plain, ours, python, asks = taken
    name = f"{oci_runtime}, start of a container"
    rows = [
        paired_row(f"{name} that does not ask", plain, ours, unit="ms", target=MOST_OF_OTHERS),
        paired_row(f"{name} that asks, beside one that does not", ours, asks, unit="ms"),
        paired_row(f"{name} that asks, beside bare Python in the hooks' place", python, asks, unit="ms"),
    ]
    both = rows[-1]
    per_hook = (both.value - both.floor) / hooks
    more = Row(
        figure=f"{oci_runtime}, a hook beyond bare Python",
        value=per_hook,
        unit="ms",
        floor=(both.floor - rows[0].value) / hooks,
        ratio=per_hook * hooks / (both.floor - rows[0].value),
        limit=MOST_PER_HOOK_MS,
    )
    count = Row(
        figure=f"{oci_runtime}, hooks of a device",
        value=hooks,
        unit="",
        floor=hooks,
        ratio=1.0,
        limit=MOST_HOOKS,
    )
    return [*rows, more, count]


def _without_program(folder: Path) -> int:
    """Put a bare Python in the place of the hooks of a spec; return how many hooks a device has."""
    (path,) = folder.glob("*.json")
    spec: dict[str, Any] = json.loads(path.read_text())
    counts = set()
    for device in spec["devices"]:
        hooks = device["containerEdits"]["hooks"]
        counts.add(len(hooks))
        for hook in hooks:
            hook["path"], hook["args"] = "/usr/bin/python3", list(BARE)
    path.write_text(json.dumps(spec))
    (count,) = counts
    return count


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))

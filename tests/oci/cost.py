"""`python -m tests.oci SUITE --cost STARTS`: what containers of podman cost more where nri-rdma is, in CPU time; with
forky, those of Docker, too.

Each round starts one container of each kind, forwards and backwards in turn, and takes the CPU time of everything that
takes part (podman, conmon, OCI runtime, hooks, container, daemon) from the cgroup that holds it all, once all has ended
and the daemon rests. Hosts are equal but for their CDI specs (none, ours, and ours with a bare Python in the hooks'
place), and for the hooks that `nri-rdma install podman` writes, which the second one has. What the machine does besides
falls on all kinds of a round. What the daemon takes at rest is taken off: here is no runtime with NRI, and it looks for
one twenty times a second.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.figures import Row, exit_code, paired_row, table
from tests.oci.conftest import set_up, start
from tests.oci.docker import RUNTIME, Docker
from tests.oci.host import Host, Podman
from tests.oci.roots import FORKY, SUITES
from tests.oci.test_podman import DEVICE, generate
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.node import load

CGROUPS = Path("/sys/fs/cgroup")
BARE = ("python3", "-I", "-S", "-c", "pass")
MOST_OF_OTHERS = 1.02
"""Times what a container that asks for nothing costs on a host without nri-rdma."""
MOST_PER_HOOK_MS = 12.0
"""CPU time of a hook beyond a bare Python; the daemon's work is told beside it."""
MOST_HOOKS = 3.0
ANNOTATION = ("--annotation", "rdma.noderesource.dev/pod=[{match: {device: mlx5_5}}]")
"""The same as DEVICE gives."""
MOST_OF_OUR_RUNTIME_MS = 12.0
"""CPU time of Docker's runtime of ours for a container that does not ask."""
WARM_UP = 5
_RESTS_S, _RESTS_NS = 0.1, 1_000_000
"""A daemon that takes less than that in this time rests."""
_IDLE_S = 5.0
_MS_PER_NS = 1e-6
_STAYING = ("daemon", "engine")
"""Parts of the cgroup whose processes stay when a container has ended."""
_NS_PER_US = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """CPU time of a start with all that follows from it, and the daemon's part of it."""

    all_ms: float
    daemon_ms: float


class Tree:
    """The cgroup of a host: `starter` is for what is started, `daemon` for the daemon, `engine` for dockerd with all
    that it starts, and the engine adds the containers'."""

    def __init__(self, host: Host) -> None:
        unified = (CGROUPS / "cgroup.controllers").exists()
        self._top = (CGROUPS if unified else CGROUPS / "cpuacct") / host.cgroup_parent.lstrip("/")
        self._is_unified = unified
        for name in ("starter", *_STAYING):
            (self._top / name).mkdir(parents=True)
        self._at_rest = 0.0
        """What the daemon takes at rest, in nanoseconds per second."""

    def add_daemon(self, pid: int) -> None:
        """Count a daemon's time from now on, but for what it takes at rest."""
        (self._top / "daemon/cgroup.procs").write_text(str(pid))
        self._wait()
        before, began = self._used_ns(), time.monotonic()
        time.sleep(_IDLE_S)
        self._at_rest = (self._used_ns() - before) / (time.monotonic() - began)

    def add_engine(self, pids: Iterable[int]) -> None:
        """Count the time of these processes, and of those that they start, from now on."""
        for pid in pids:
            (self._top / "engine/cgroup.procs").write_text(str(pid))

    def _entering(self, command: Sequence[str]) -> list[str]:
        """Return the command that enters the cgroup, and then becomes this one."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(self._top / "starter/cgroup.procs"), *command]

    def spent(self, command: Sequence[str]) -> Spent:
        """Run a command, and return what is spent until all but the daemon has ended and that one rests."""
        self._wait()
        before, of_daemon, began = self._used_ns(), self._used_ns("daemon"), time.monotonic()
        subprocess.run(self._entering(command), check=True, capture_output=True, text=True, timeout=60)
        self._wait()
        rest = self._at_rest * (time.monotonic() - began)
        return Spent(
            all_ms=(self._used_ns() - before - rest) * _MS_PER_NS,
            daemon_ms=(self._used_ns("daemon") - of_daemon - rest) * _MS_PER_NS,
        )

    def _used_ns(self, part: str = "") -> int:
        """Return the CPU time of all that is in the cgroup or in a part of it, or was."""
        folder = self._top / part
        if self._is_unified:
            words = dict(line.split() for line in (folder / "cpu.stat").read_text().splitlines())
            return int(words["usage_usec"]) * _NS_PER_US
        return int((folder / "cpuacct.usage").read_text())

    def _wait(self) -> None:
        wait_until(lambda: not any(self._busy()), "what was started to end", seconds=30)
        wait_until(self._rests, "the daemon to rest", seconds=30)

    def _rests(self) -> bool:
        before = self._used_ns()
        time.sleep(_RESTS_S)
        return self._used_ns() - before < _RESTS_NS

    def _busy(self) -> Iterator[str]:
        for file in self._top.rglob("cgroup.procs"):
            if file.parent.name not in _STAYING and file.exists():
                yield from file.read_text().split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A container that is started on a host with these options."""

    podman: Podman
    tree: Tree
    options: tuple[str, ...] = ()

    def start(self) -> Spent:
        """Start one container, and return what it cost until all rests."""
        return self.tree.spent(self.podman.host.inside(["podman", *self.podman.run("--rm", *self.options)]))


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
            installed = ours.podman.host.nri_rdma("install", "podman")
            assert installed.returncode == 0, installed.stderr
            asks = Kind(podman=ours.podman, tree=ours.tree, options=DEVICE)
            annotated = Kind(podman=ours.podman, tree=ours.tree, options=ANNOTATION)
            python = Kind(podman=bare.podman, tree=bare.tree, options=DEVICE)
            taken = measured([it.start for it in (plain, ours, python, asks, annotated)], starts)
        rows += _rows(oci_runtime, taken, hooks)
    if suite == FORKY.name:
        rows += docker_rows(starts)
    print(table(rows))
    return exit_code(rows)


def docker_rows(starts: int) -> list[Row]:
    """Measure containers of Docker: with its own runtime, with ours, and with ours and an annotation."""
    with ExitStack() as stack:
        fabric = stack.enter_context(Fabric(load("eight")))
        host = stack.enter_context(Host(FORKY.root, Path(stack.enter_context(tempfile.TemporaryDirectory())), fabric))
        tree = Tree(host)
        docker = stack.enter_context(Docker(host))
        stack.enter_context(set_up(host, Docker.name))
        daemon = Daemon(host, fabric, extra=EXCLUSIVE_FIRST)
        start(daemon)
        stack.callback(daemon.stop)
        tree.add_daemon(daemon.pid)
        tree.add_engine(docker.pids())

        def kind(*options: str) -> Callable[[], Spent]:
            return lambda: tree.spent(host.inside(["docker", *docker.run("--rm", *options)]))

        ours = ("--runtime", RUNTIME)
        taken = measured([kind(), kind(*ours), kind(*ours, *ANNOTATION)], starts)
    runc, bare, asks = ([[it.all_ms] for it in each] for each in taken)
    of_daemon = [it.daemon_ms for it in taken[-1]]
    name = f"Docker, a container with {RUNTIME}"
    beside = paired_row(f"{name} that does not ask, beside one with runc", runc, bare, unit="ms")
    return [
        beside,
        _alone(f"{name}, CPU time beyond runc", beside.value - beside.floor, "ms", MOST_OF_OUR_RUNTIME_MS),
        paired_row(f"{name} that asks, beside one with runc", runc, asks, unit="ms"),
        _alone("Docker, the daemon for a container that asks", median(of_daemon), "ms"),
    ]


def measured(kinds: Sequence[Callable[[], Spent]], starts: int) -> list[list[Spent]]:
    """What each kind's starts cost, round by round."""
    taken: list[list[Spent]] = [[] for _ in kinds]
    order = list(range(len(kinds)))
    for number in range(WARM_UP + starts):
        for which in order:
            spent = kinds[which]()
            if number >= WARM_UP:
                taken[which].append(spent)
        order.reverse()
    return taken


def _rows(oci_runtime: str, taken: list[list[Spent]], hooks: int) -> list[Row]:
    plain, ours, python, asks, annotated = ([[it.all_ms] for it in kind] for kind in taken)
    daemon = [[it.daemon_ms] for it in taken[-2]]
    programs = [[it.all_ms - it.daemon_ms] for it in taken[-2]]
    name = f"{oci_runtime}, a container that"
    ask = paired_row(f"{name} asks, beside one that does not", ours, asks, unit="ms")
    hook = paired_row(f"{name} asks without the daemon, beside bare Python as hooks", python, programs, unit="ms")
    return [
        paired_row(
            f"{name} does not ask, beside one on a host without us", plain, ours, unit="ms", target=MOST_OF_OTHERS
        ),
        ask,
        paired_row(f"{name} asks by an annotation, beside one that asks by a CDI device", asks, annotated, unit="ms"),
        hook,
        _alone(f"{oci_runtime}, a hook beyond bare Python", (hook.value - hook.floor) / hooks, "ms", MOST_PER_HOOK_MS),
        _alone(f"{oci_runtime}, hooks of a device", hooks, "", MOST_HOOKS),
        _alone(f"{oci_runtime}, the daemon for a container that asks", median(it for (it,) in daemon), "ms"),
    ]


def _alone(figure: str, value: float, unit: str, limit: float | None = None) -> Row:
    """A row without a floor."""
    return Row(figure=figure, value=value, unit=unit, floor=value, ratio=1.0, limit=limit)


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

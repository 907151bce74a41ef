"""The daemon's nice value: the kernel says it of each thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.deadline import wait_until
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.rig.unit_file import OPTIONS

pytestmark = pytest.mark.root

PROJECT = Path(__file__).resolve().parents[2]
SOON = 15.0
NICE = 16
"""Field of /proc/PID/task/TID/stat behind the name, which ends with the last bracket (proc_pid_stat(5))."""
OWN = os.getpriority(os.PRIO_PROCESS, 0)
"""That of the tests, which are not always started with 0."""
WITHOUT = ("setpriv", "--bounding-set", "-sys_nice", "--inh-caps", "-all")
"""Starts a program that lacks CAP_SYS_NICE."""


def started_with(nice: int) -> Sequence[str]:
    """What starts a program with a nice value."""
    return ("nice", "-n", str(nice - OWN))


def nice_values(pid: int) -> set[int]:
    """Those of a process's threads."""
    stats = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    assert len(stats) > 2, "it has no threads yet"
    return {int(stat.rpartition(")")[2].split()[NICE]) for stat in stats}


@contextmanager
def daemon(folder: Path, before: Sequence[str], *flags: str) -> Iterator[tuple[int, Path]]:
    """The pid of a daemon that has started, and its log."""
    build_tree(load("small"), folder / "sys")
    log = folder / "log"
    given = {"nri-socket": folder / "none.sock", "sysfs-root": folder / "sys", "state-dir": folder / "state"}
    words = [f"--{name}={value}" for name, value in (given | {"cgroup-root": folder, "log-file": log}).items()]
    command = [*before, sys.executable, "-m", "nri_rdma", "run", *words, *flags]
    with subprocess.Popen(command, cwd=PROJECT) as process:
        try:
            wait_until(lambda: log.exists() and "started" in log.read_text(), "the daemon's start", SOON)
            yield process.pid, log
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("before", "flags", "nice"),
    [
        (0, (), -10),
        (0, ("--nice=-3",), -3),
        (0, ("--nice=0",), 0),
        (5, (), 5),
        (-15, (), -15),
    ],
    ids=["by default", "by the setting", "left alone", "chosen at the start", "preferred at the start"],
)
def test_all_threads_have_it(tmp_path: Path, before: int, flags: Sequence[str], nice: int) -> None:
    with daemon(tmp_path, started_with(before), *flags) as (pid, _log):
        assert nice_values(pid) == {nice}


def test_a_daemon_that_may_not_change_it_says_so_and_serves(tmp_path: Path) -> None:
    with daemon(tmp_path, (*started_with(0), *WITHOUT)) as (pid, log):
        assert nice_values(pid) == {0}
        assert "runs with the priority of other programs" in log.read_text()


def test_the_unit_gives_the_value_that_the_daemon_would_take() -> None:
    assert OPTIONS["Nice"] == ["-10"]

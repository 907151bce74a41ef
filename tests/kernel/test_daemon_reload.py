"""SIGHUP to a daemon as its user starts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any  # Any: the daemon's JSON document

import pytest

from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.errors import NotReadyError
from tests.rig.deadline import wait_until
from tests.rig.node import load
from tests.rig.systree import build_tree

pytestmark = pytest.mark.root
PROJECT = Path(__file__).resolve().parents[2]
SOON = 20.0
POOLS = '[pools.rails]\nmodes = ["exclusive"]\n'


class Running:
    """A daemon in a process of its own, with a configuration file; no runtime is there."""

    def __init__(self, work: Path, config: str = POOLS) -> None:
        build_tree(load("small"), work / "sys")
        self.config, self.control, self.log = work / "config.toml", work / "state/control.sock", work / "log"
        self.config.write_text(config)
        flags = {"config": self.config, "sysfs-root": work / "sys", "state-dir": work / "state", "cgroup-root": work}
        given = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "nri_rdma", "run", "--nri-socket", str(work / "none.sock"), *given],
                cwd=PROJECT,
                stderr=log,
            )
        wait_until(lambda: self.status() is not None, "the daemon to answer")

    def status(self) -> dict[str, Any] | None:
        try:
            return ask_status(self.control)
        except NotReadyError:
            return None

    def hang_up(self, text: str) -> None:
        self.config.write_text(text)
        self.process.send_signal(signal.SIGHUP)

    def pools(self) -> list[str]:
        return [pool["name"] for pool in (self.status() or {"pools": []})["pools"]]

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(SOON) == 0


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    daemon = Running(tmp_path)
    yield daemon
    daemon.end()


def test_a_daemon_whose_pools_contest_devices_starts_and_says_so(tmp_path: Path) -> None:
    daemon = Running(tmp_path, f'{POOLS}[pools.other]\nselect = {{ device = "rxe0" }}\nmodes = ["shared"]\n')
    try:
        assert daemon.pools() == ["rails", "other"]
        words = 'devices that several pools select are in none contested="rails and other both select rxe0"'
        wait_until(lambda: words in daemon.log.read_text(), "the line of the log")
        daemon.hang_up(f'{daemon.config.read_text()}plugin_name = "other"\n')  # has the node's pools looked at again
        wait_until(lambda: "the old one goes on" in daemon.log.read_text(), "the refusal")
        assert daemon.log.read_text().count(words) == 1
    finally:
        daemon.end()


def test_sighup_has_the_file_read_again_and_a_bad_one_changes_nothing(running: Running) -> None:
    assert running.pools() == ["rails"]
    running.hang_up(f'{POOLS}[pools.shared]\nselect = {{ device = "nothing" }}\nmodes = ["shared"]\n')
    wait_until(lambda: running.pools() == ["rails", "shared"], "the second pool")
    running.hang_up('state_dir = "/elsewhere"\nplugin_name = "other"')
    wait_until(lambda: bool((running.status() or {})["reload_error"]), "the refusal")
    status = running.status()
    assert status is not None
    assert status["reload_error"].startswith("nri-rdma: SETTING: plugin_name cannot change while the daemon runs.")
    assert running.pools() == ["rails", "shared"]
    assert "configuration refused, the old one goes on" in running.log.read_text()
    running.hang_up(POOLS)
    wait_until(lambda: running.pools() == ["rails"], "the old file")
    assert (running.status() or {})["reload_error"] == ""
    assert "devices that several pools select" not in running.log.read_text()

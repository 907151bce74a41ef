"""`nri-rdma install systemd` as a user runs it; what it writes is for tests/runtime/test_install_guard.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from nri_rdma.commands.install import systemd_cli
from tests.unit.commands.cli.program import nri_rdma


def test_the_unit_of_systemd_is_shown_with_this_program_and_the_next_command() -> None:
    if Path("/etc/systemd/system/nri-rdma.service").exists():
        pytest.skip("this machine has the unit")
    done = nri_rdma("install", "systemd", "--dry-run", columns=200)
    assert done.returncode == 0, done.stderr
    assert f"+ExecStart={Path(sys.executable).parent}/nri-rdma run" in done.stdout.splitlines()
    assert done.stdout.endswith("Nothing was changed: this is what would be written.\n")
    assert not Path("/etc/systemd/system/nri-rdma.service").exists()
    done = nri_rdma("uninstall", "systemd", columns=200)
    assert (done.returncode, done.stdout[-21:]) == (0, "nothing was changed.\n")


@pytest.mark.parametrize(
    ("state", "runs"),
    [("active", True), ("activating", True), ("deactivating", True), ("inactive", False), ("failed", False)],
)
def test_a_daemon_that_is_not_ready_yet_or_is_started_again_and_again_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, runs: bool
) -> None:
    program = tmp_path / "systemctl"
    is_active = 0 if state == "active" else 3
    program.write_text(f'#!/bin/sh\n[ "$1" = is-active ] && exit {is_active}\necho ActiveState={state}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert systemd_cli._is_active() is runs

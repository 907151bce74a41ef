"""`nri-rdma install systemd` with a real systemd: the unit's daemon does the main job, and uninstall leaves nothing.

By its name this file comes after test_managed_host.py, whose daemon has to be the first one of the runtime.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.guest import verbs
from tests.lab.guest.conftest import DAEMON
from tests.lab.guest.process import Server, ServerEndedError
from tests.rig.cri import Cri
from tests.rig.deadline import wait_until
from tests.rig.expect import assert_no_nodes

pytestmark = pytest.mark.machine("systemd")
PROGRAM = Path(sysconfig.get_path("scripts")) / "nri-rdma"
SETTINGS = Path("/etc/nri-rdma/environment")


def systemctl(*arguments: str, fails: bool = False) -> str:
    """Run systemctl, and return what it printed."""
    done = subprocess.run(["systemctl", *arguments], capture_output=True, text=True, check=False)
    if not fails and done.returncode != 0:
        told = subprocess.run(
            ["journalctl", "-u", "nri-rdma", "-o", "cat"], capture_output=True, text=True, check=False
        )
        pytest.fail(f"{done.stderr}\n{told.stdout[-2000:]}")
    return done.stdout.strip()


def nri_rdma(*arguments: str, code: int = 0) -> str:
    """Run the installed program, and return all that it printed."""
    done = subprocess.run([str(PROGRAM), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def program(daemon: Server) -> Iterator[None]:
    """The program is installed as by pip, with the lab's settings, and the lab's own daemon is away meanwhile."""
    os.kill(daemon.pid, signal.SIGTERM)

    def has_ended() -> bool:
        try:
            daemon.check_runs()
        except ServerEndedError:
            return True
        return False

    wait_until(has_ended, "the lab's daemon to end", 20)
    words = iter(DAEMON[DAEMON.index("run") + 1 :])
    settings = {
        name.removeprefix("--").replace("-", "_").upper(): value for name, value in zip(words, words, strict=True)
    }
    SETTINGS.parent.mkdir(exist_ok=True)
    (SETTINGS.parent / "config.toml").write_bytes(Path(settings.pop("CONFIG")).read_bytes())
    SETTINGS.write_text("".join(f"NRI_RDMA_{name}={value}\n" for name, value in settings.items()))
    modules = os.pathsep.join(filter(None, sys.path))
    PROGRAM.write_text(f'#!/bin/sh\nexport PYTHONPATH={modules}\nexec {sys.executable} -m nri_rdma "$@"\n')
    PROGRAM.chmod(0o755)
    try:
        yield
    finally:
        systemctl("disable", "--now", "nri-rdma", fails=True)
        for path in (PROGRAM, SETTINGS, SETTINGS.with_name("config.toml")):
            path.unlink()
        daemon.kill_and_start()


def files() -> dict[str, str]:
    """What systemd reads in /etc, with its content."""
    found = sorted(Path("/etc/systemd").rglob("*"))
    return {str(it): str(it.readlink()) if it.is_symlink() else it.read_text() for it in found if not it.is_dir()}


def test_the_unit_does_the_main_job_and_leaves_nothing(cri: Cri, program: None, rdma_device: str) -> None:
    before = files()
    assert "daemon-reload" in nri_rdma("install", "systemd")
    assert f"ExecStart={PROGRAM} run" in Path("/etc/systemd/system/nri-rdma.service").read_text()
    systemctl("daemon-reload")
    systemctl("enable", "--now", "nri-rdma")
    assert systemctl("is-active", "nri-rdma") == "active"
    with verbs.pod(cri, "unit", verbs.asks("mode: shared, containers: [main]")) as pod:
        main, beside = (verbs.start(cri, pod, name, ["sleep", "1000"]) for name in ("main", "beside"))
        shown = cri.exec(main, ["ibv_devinfo", "-d", rdma_device])
        assert "PORT_ACTIVE" in shown.stdout, shown.stderr
        assert_no_nodes(cri, beside)
    assert "systemctl disable --now nri-rdma" in nri_rdma("uninstall", "systemd", code=1)
    systemctl("disable", "--now", "nri-rdma")
    nri_rdma("uninstall", "systemd")
    assert files() == before

"""The unit of systemd is right, and no wider than the daemon needs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rig.unit_file import OPTIONS, UNIT

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")

EXPOSURE_MAX = 4.7
"""Of 10. Without any of the options that narrow the unit it is 9.6."""
OWN_MOUNTS = {
    "BindPaths", "BindReadOnlyPaths", "ExecPaths", "InaccessiblePaths", "MountFlags", "MountImages", "NoExecPaths",
    "PrivateDevices", "PrivateMounts", "PrivateTmp", "ProcSubset", "ProtectControlGroups", "ProtectHome",
    "ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc", "ProtectSystem",
    "ReadOnlyPaths", "ReadWritePaths", "RootDirectory", "RootImage", "TemporaryFileSystem",
}  # fmt: skip
"""Options that give a service a mount namespace of its own (systemd.exec(5))."""


@needs_systemd
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("=/opt/nri-rdma/bin/nri-rdma ", "=/bin/true "))  # what verify looks for
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs_systemd
def test_the_unit_is_no_more_exposed_than_it_has_to_be() -> None:
    command = ["systemd-analyze", "security", "--offline=yes", "--no-pager", str(UNIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = re.search(r"exposure level for nri-rdma\.service: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= EXPOSURE_MAX, done.stdout


def test_the_module_of_the_devices_that_it_may_open_is_loaded_before() -> None:
    """Otherwise systemd leaves them out of what it may open (systemd.resource-control(5))."""
    assert OPTIONS["DeviceAllow"] == ["char-infiniband_verbs rw"]
    assert "modprobe@ib_uverbs.service" in OPTIONS["Wants"]
    assert "modprobe@ib_uverbs.service" in OPTIONS["After"]


def test_the_daemon_may_mount_the_sysfs_of_a_pod() -> None:
    """systemd's @system-service has none of @mount: without these calls no GID of a device that moved is read."""
    allowed = {call for line in OPTIONS["SystemCallFilter"] if not line.startswith("~") for call in line.split()}
    assert {"fsopen", "fsconfig", "fsmount"} <= allowed


def test_the_daemon_sees_the_host_s_mounts_as_they_are() -> None:
    """Pods' namespaces are mounted and unmounted at every moment."""
    assert OPTIONS.keys() & OWN_MOUNTS == set()


def test_every_option_that_is_absent_on_purpose_says_why() -> None:
    comments = "\n".join(line for line in UNIT.read_text().splitlines() if line.startswith("#"))
    assert {name for name in OWN_MOUNTS if name.startswith(("Private", "Protect"))} - set(
        re.findall(r"\w+", comments)
    ) == set()


@pytest.mark.parametrize(
    ("result", "pauses"), [("exit-code", True), ("success", False), ("signal", False), ("oom-kill", False)]
)
def test_only_after_an_end_with_an_error_the_next_start_waits(result: str, pauses: bool) -> None:
    """A daemon that was killed is there again at once; one that cannot start does not keep a processor busy."""
    assert OPTIONS["RestartSec"] == ["100ms"]
    (line,) = OPTIONS["ExecStopPost"]
    command = [word.replace("$$", "$") for word in shlex.split(line)]  # as systemd reads it
    with subprocess.Popen(command, env={"PATH": os.environ["PATH"], "SERVICE_RESULT": result}) as process:
        try:
            assert process.wait(0.5) == 0
            assert not pauses
        except subprocess.TimeoutExpired:
            assert pauses
        finally:
            process.kill()


def test_no_release_of_systemd_meets_an_option_that_it_does_not_know() -> None:
    """RestartSteps is of 254; and it counts the restarts of all time, so that a daemon that was killed now and then
    would be away longer each time."""
    assert not OPTIONS.keys() & {"RestartSteps", "RestartMaxDelaySec"}


def test_the_daemon_has_more_descriptors_than_pods_and_callers_can_take() -> None:
    assert int(OPTIONS["LimitNOFILE"][0]) >= 65536


def test_the_environment_has_a_file_and_the_runtime_s_sockets_come_first() -> None:
    assert OPTIONS["EnvironmentFile"] == ["-/etc/nri-rdma/environment"]
    assert OPTIONS["Type"] == ["notify"]
    assert (OPTIONS["Before"], OPTIONS["After"][0]) == (["kubelet.service"], "containerd.service crio.service")

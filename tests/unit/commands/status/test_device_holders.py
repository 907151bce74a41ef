"""Who holds a device is what the daemon says."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.commands.cli.program import nri_rdma
from tests.unit.rigs.inside_daemon import InsideDaemon

GPUS = "gpus: ['0000:18:00.0', '0000:3e:00.0']"


def test_holders_are_the_daemons(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {"rdma.noderesource.dev": "1"})
    done = nri_rdma("topology", "--state-dir", daemon.settings.state_dir)
    assert (done.returncode, done.stderr) == (0, "")
    held = [line for line in done.stdout.splitlines() if line.endswith("  default/one")]
    assert len(held) == 1
    assert "As the daemon (pid " in done.stdout


def test_without_a_daemon_it_says_that_holders_are_not_known(eight: Path, tmp_path: Path) -> None:
    done = nri_rdma("topology", "--sysfs-root", eight, "--state-dir", tmp_path)
    assert done.returncode == 0
    assert "What pods hold is not known: the daemon does not answer: " in " ".join(done.stdout.split())


def test_a_daemon_of_other_hardware_is_not_believed(daemon: InsideDaemon, own_eight: Path) -> None:
    daemon.start_pod("one", {"rdma.noderesource.dev": "1"})
    done = nri_rdma("topology", "--sysfs-root", own_eight, "--state-dir", daemon.settings.state_dir)
    assert "default/one" not in done.stdout
    assert "what pods hold there is not shown." in " ".join(done.stdout.split())


def test_the_gpus_of_a_holder_are_told(daemon: InsideDaemon) -> None:
    daemon.start_pod("trainer", {"rdma.noderesource.dev/pod": f"- {{count: 2, {GPUS}}}"})
    done = nri_rdma("topology", "--state-dir", daemon.settings.state_dir, "-o", "json")
    document = json.loads(done.stdout)
    assert document["version"] == 1
    assert [gpu["name"] for gpu in document["gpus"] if gpu["pods"] == ["default/trainer"]] == ["GPU0", "GPU1"]
    holders = {device["name"]: device["holders"] for device in document["devices"] if device["holders"]}
    holder = {"pod": "default/trainer", "mode": "exclusive", "gpus": ["0000:18:00.0", "0000:3e:00.0"]}
    assert holders == {"mlx5_0": [holder], "mlx5_1": [holder]}


def test_the_picture_has_the_daemons_holders(daemon: InsideDaemon) -> None:
    daemon.start_pod("trainer", {"rdma.noderesource.dev/pod": f"- {{count: 2, {GPUS}}}"})
    done = nri_rdma("topology", "--state-dir", daemon.settings.state_dir, "-o", "svg", encoding="ascii")
    assert done.stdout.startswith("<svg ")
    assert done.stdout.count(">default/trainer</text>") == 4  # two GPUs, two devices

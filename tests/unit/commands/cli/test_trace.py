"""The command `nri-rdma trace`."""

import json

from tests.unit.commands.cli.daemon import InsideDaemon
from tests.unit.commands.cli.program import nri_rdma

# The command


def test_the_events_of_a_pod_are_shown(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {"rdma.noderesource.dev": "[{match: {device: mlx5_2}}]"})
    daemon.start_pod("two", {"rdma.noderesource.dev": "1"})
    done = nri_rdma("trace", "default/one", "--state-dir", daemon.settings.state_dir)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("RunPodSandbox  default/one  ")
    assert "mlx5_2: named by the request (device mlx5_2)" in done.stdout
    assert "mlx5_2: move rail2 (b8:3f:d2:00:10:02) into the pod as rdma0" in done.stdout
    assert "default/two" not in done.stdout


def test_last_keeps_the_newest_events_also_in_json(daemon: InsideDaemon) -> None:
    for name in ("one", "two", "three"):
        daemon.start_pod(name, {"rdma.noderesource.dev": "1"})
    place = ("--state-dir", str(daemon.settings.state_dir))
    done = nri_rdma("trace", "--last", "1", *place)
    assert "default/three" in done.stdout
    assert "default/two" not in done.stdout
    spans = json.loads(nri_rdma("trace", "--last", "1", *place, "-o", "json").stdout)["spans"]
    assert {it["attributes"].get("k8s.pod.name", "default/three") for it in spans} == {"default/three"}


def test_a_terminal_that_cannot_draw_gets_ascii(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {"rdma.noderesource.dev": "1"})
    place = ("--state-dir", str(daemon.settings.state_dir))
    done = nri_rdma("trace", *place, encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert "#" in done.stdout


def test_a_pod_that_left_no_trace_is_told_so(daemon: InsideDaemon) -> None:
    done = nri_rdma("trace", "nobody", "--state-dir", daemon.settings.state_dir)
    assert done.returncode == 0
    assert done.stdout.startswith("The daemon remembers nothing of a pod nobody.")

"""The command `nri-rdma trace`."""

import json
import re

import pytest

from nri_rdma.errors import NriRdmaError
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.rigs.inside_daemon import InsideDaemon

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
    assert done.returncode == 1
    assert done.stdout.startswith("The daemon remembers nothing of a pod nobody.")
    assert "The daemon remembers what it did since " in done.stdout
    done = nri_rdma("trace", "nobody", "--state-dir", daemon.settings.state_dir, "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["spans"]) == (1, [])


def test_a_daemon_that_did_nothing_yet_is_no_failure(daemon: InsideDaemon) -> None:
    done = nri_rdma("trace", "--state-dir", daemon.settings.state_dir)
    assert (done.returncode, done.stdout.startswith("The daemon remembers nothing.")) == (0, True)


def _fail(daemon: InsideDaemon, name: str) -> None:
    with pytest.raises(NriRdmaError):
        daemon.start_pod(name, {"rdma.noderesource.dev/pod": "99"})


def test_only_what_failed_is_shown_where_that_is_wanted(daemon: InsideDaemon) -> None:
    _fail(daemon, "greedy")
    daemon.start_pod("one", {"rdma.noderesource.dev": "1"})
    place = ("--state-dir", str(daemon.settings.state_dir))
    done = nri_rdma("trace", "--errors", "--last", "1", *place)
    assert done.returncode == 0
    assert done.stdout.startswith("RunPodSandbox  default/greedy  ")
    assert "DEVICES-EXHAUSTED" in done.stdout
    assert "default/one" not in done.stdout
    spans = json.loads(nri_rdma("trace", "--errors", *place, "-o", "json").stdout)["spans"]
    assert {it["attributes"].get("k8s.pod.name", "default/greedy") for it in spans} == {"default/greedy"}


def test_a_pod_of_which_nothing_failed_is_told_so(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {"rdma.noderesource.dev": "1"})
    done = nri_rdma("trace", "one", "--errors", "--state-dir", daemon.settings.state_dir)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "Nothing of a pod one failed.")


def test_the_page_tells_how_far_back_it_goes(daemon: InsideDaemon) -> None:
    daemon.start_pod("one", {"rdma.noderesource.dev": "1"})
    last = nri_rdma("trace", "--state-dir", daemon.settings.state_dir, columns=200).stdout.splitlines()[-1]
    assert re.fullmatch(
        r"The daemon remembers what it did since 20\S+ \S+Z, at most its last 4096 steps\.",
        last,
    )

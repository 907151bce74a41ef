"""A trace saved with `trace -o json`, shown on another machine."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.commands.cli.program import assert_one_error, nri_rdma
from tests.unit.rigs.inside_daemon import InsideDaemon

SPAN: dict[str, Any] = {
    "name": "RunPodSandbox",
    "trace_id": "t",
    "span_id": "a",
    "parent_id": "",
    "start_ns": 1_770_000_000_000_000_000,
    "end_ns": 1_770_000_000_001_000_000,
    "attributes": {"k8s.pod.name": "default/a", "sandbox": "s"},
    "error": "",
}


def saved(tmp_path: Path, *spans: dict[str, Any]) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"version": 1, "spans": [{**SPAN, **span} for span in spans]}))
    return path


def test_a_saved_trace_is_shown_as_the_daemon_tells_it(daemon: InsideDaemon, tmp_path: Path) -> None:
    daemon.start_pod("one", {"rdma.noderesource.dev": "1"})
    place = ("--state-dir", daemon.settings.state_dir)
    (tmp_path / "trace.json").write_text(nri_rdma("trace", *place, "-o", "json").stdout)
    told, seen = nri_rdma("trace", *place), nri_rdma("trace", tmp_path / "trace.json", "--state-dir", tmp_path)
    assert (seen.returncode, seen.stderr) == (0, "")
    assert "RunPodSandbox  default/one  " in seen.stdout
    assert seen.stdout == told.stdout


def test_it_can_come_from_stdin(tmp_path: Path) -> None:
    done = nri_rdma("trace", "-", text=saved(tmp_path, {}).read_text())
    assert done.stdout.startswith("RunPodSandbox  default/a  2026-02-02 02:40:00.000Z  1.0 ms in all")


def test_one_without_spans_says_so(tmp_path: Path) -> None:
    done = nri_rdma("trace", saved(tmp_path), columns=200)
    assert (done.returncode, done.stdout.partition(".json")[2].partition(".")[0]) == (0, "")
    assert done.stdout.startswith("There is nothing in ")


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text('{"version": 1, "spans": [{"name": 1}]}')
    told = assert_one_error(nri_rdma("trace", tmp_path / "trace.json"), "SETTING", 2)
    assert "this is no trace: the trace cannot be read: " in told
    assert told.endswith(f", {tmp_path}/trace.json. Next: save one with `nri-rdma trace -o json`, of this version.")


@pytest.mark.parametrize(
    ("spans", "why"),
    [
        ([{"start_ns": -1}], "one of its spans has an impossible time"),
        ([{"start_ns": 2**68, "end_ns": 2**69}], "one of its spans has an impossible time"),
        ([{"parent_id": "b"}, {"span_id": "b", "parent_id": "a"}], "its spans are nested deeper than 100 levels"),
        (
            [{"span_id": str(number), "parent_id": str(number + 1)} for number in range(101)],
            "its spans are nested deeper than 100 levels",
        ),
        ([{"span_id": str(number)} for number in range(20_001)], "it has more than 20000 spans"),
    ],
)
def test_spans_that_do_not_hold_together_are_refused(spans: list[dict[str, Any]], why: str, tmp_path: Path) -> None:
    told = assert_one_error(nri_rdma("trace", saved(tmp_path, *spans)), "SETTING", 2)
    assert f"this is no trace: {why}" in told


def test_a_trace_of_a_daemon_whose_clock_was_set_back_is_shown(tmp_path: Path) -> None:
    done = nri_rdma("trace", saved(tmp_path, {"end_ns": SPAN["start_ns"] - 10**9}))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_largest_trace_is_drawn_in_time(tmp_path: Path) -> None:
    below = ({"span_id": str(number), "parent_id": str(number % 90 and number - 1)} for number in range(1, 20_000))
    path = saved(tmp_path, {"span_id": "0", "error": "x"}, *({**span, "error": "x"} for span in below))
    start = time.process_time()
    done = nri_rdma("trace", path)
    assert time.process_time() - start < 20
    assert (done.returncode, done.stdout.count("\n") > 20_000) == (0, True)

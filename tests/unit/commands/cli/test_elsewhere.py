"""What needs no node works on a machine that is no Linux."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.commands.cli.elsewhere import MODULES, NAMES, elsewhere
from tests.unit.commands.cli.program import nri_rdma

POD = """\
kind: Pod
metadata: {name: train-0, annotations: {rdma.noderesource.dev: '{count: 2, match: {numaNode: 1}}'}}
spec: {containers: [{name: trainer}]}
"""
CONFIG = '[pools.default]\nmodes = ["shared"]\nselect = { numaNode = 1 }\n'
CDI = "cdiVersion: 0.3.0\nkind: ve/cl\ndevices: [{name: a, containerEdits: {env: [A=1]}}]\n"
TRACE = """\
{"version": 1, "spans": [{"name": "RunPodSandbox", "trace_id": "t", "span_id": "a", "parent_id": "", "start_ns":
1770000000000000000, "end_ns": 1770000000001000000, "attributes": {"k8s.pod.name": "default/a"}, "error": ""}]}
"""


@pytest.fixture
def files(tmp_path: Path, eight: Path) -> Path:
    """Everything that people carry to such a machine."""
    nri_rdma("snapshot", "--sysfs-root", eight, "-o", tmp_path / "node.json")
    for name, text in (("pod.yaml", POD), ("config.toml", CONFIG), ("spec.yaml", CDI), ("trace.json", TRACE)):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_validate_checks_manifests_configurations_and_specs(files: Path) -> None:
    (files / "pod.yaml").write_text(POD.replace("count", "cuont"))
    done = elsewhere("validate", files / "pod.yaml", files / "config.toml", files / "spec.yaml")
    assert (done.returncode, done.stderr) == (1, "")
    told, counts = done.stdout.splitlines()
    assert told.startswith(f"nri-rdma: ANNOTATION-UNKNOWN-KEY: unknown key 'cuont', {files}/pod.yaml:2:")
    assert counts == "3 files: 3 documents checked, 0 skipped, 1 problem."


def test_explain_decides_on_a_snapshot(files: Path) -> None:
    (files / "pod.yaml").write_text(f"{POD}---\n{POD.replace('count: 2', 'count: 5')}")
    place = ("--snapshot", files / "node.json", "--config", files / "config.toml", "--state-dir", files)
    done = elsewhere("explain", files / "pod.yaml", *place)
    assert (done.returncode, done.stderr) == (1, "")
    assert "\nnri-rdma: DEVICES-EXHAUSTED: " in done.stdout
    assert "Pod default/train-0: gets 2 devices" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    assert [line[0] for line in lines if "GIVEN" in line] == ["mlx5_4", "mlx5_5"]
    assert ["memlock", "unlimited,", "unless"] in [line[:3] for line in lines]


def test_a_saved_trace_is_drawn(files: Path) -> None:
    done = elsewhere("trace", files / "trace.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("RunPodSandbox  default/a  2026-02-02 02:40:00.000Z  1.0 ms in all\n")


def test_configurations_and_specs_are_checked(files: Path) -> None:
    checked = elsewhere("config", "check", files / "config.toml")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout == f"{files}/config.toml can be used: 1 pool, 0 rules.\n"
    checked = elsewhere("cdi", "check", files / "spec.yaml")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout == "1 file checked, 0 problems.\n"


def test_an_inventory_is_shown_of_a_snapshot(files: Path) -> None:
    done = elsewhere("inventory", "--snapshot", files / "node.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mlx5_2  0000:62:00.0" in done.stdout


@pytest.mark.parametrize(("output", "begins"), [("table", "        GPU0  GPU1"), ("svg", "<svg xmlns=")])
def test_a_topology_is_shown_of_a_snapshot(files: Path, output: str, begins: str) -> None:
    done = elsewhere("topology", "--snapshot", files / "node.json", "-o", output)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(begins)


def test_what_is_linuxs_is_really_not_there(files: Path) -> None:
    """Else the tests above would show nothing: the daemon cannot even be imported there."""
    done = elsewhere("run", "--state-dir", files)
    assert done.returncode == 1
    assert any(f"ModuleNotFoundError: No module named '{name}" in done.stderr for name in MODULES)
    assert all(NAMES.values())

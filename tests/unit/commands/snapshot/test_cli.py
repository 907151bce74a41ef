"""A node saved by `nri-rdma snapshot`, and read by other commands."""

import json
import os
import platform
import re
import threading
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.rig.node import load
from tests.rig.systree import build_proc, build_tree
from tests.unit.commands.cli.program import assert_one_error, nri_rdma
from tests.unit.commands.cli.snapshots import inventory

POD = """
kind: Pod
metadata:
  name: train-0
  annotations: {rdma.noderesource.dev: '{gpus: ["0000:80:00.0"], align: {to: gpu, strict: true}}'}
spec: {containers: [{name: trainer}]}
"""


@pytest.mark.parametrize("name", ["eight", "small", "ib2", "lab-sriov"])
def test_the_inventory_of_a_snapshot_is_that_of_its_machine(name: str, tmp_path: Path) -> None:
    build_tree(load(name), tmp_path / "sys")
    file = tmp_path / "node.json"
    nri_rdma("snapshot", "--sysfs-root", tmp_path / "sys", "-o", file)
    machine = inventory("--sysfs-root", tmp_path / "sys")
    seen = inventory("--snapshot", file)
    source, saved, *notes = seen.pop("notes")
    assert source == f"Read from the snapshot {file}."
    assert re.fullmatch(rf"Saved on {platform.node()}, \d{{4}}-\d\d-\d\d \d\d:\d\d UTC, from {tmp_path}/sys\.", saved)
    assert (notes, seen) == (machine.pop("notes"), machine)


def test_a_snapshot_has_the_names_of_gpus_and_one_from_before_them_is_read(eight: Path, tmp_path: Path) -> None:
    build_proc(load("eight"), tmp_path / "proc")
    file = tmp_path / "node.json"
    nri_rdma("snapshot", "--sysfs-root", eight, "--proc-root", tmp_path / "proc", "-o", file)
    (gpu, *_) = inventory("--snapshot", file)["gpus"]
    assert gpu["uuid"] == load("eight").gpus[0].uuid
    assert (gpu["node_names"], gpu["nodes"]) == (["nvidia0", "card1", "renderD128"], [[195, 0], [226, 1], [226, 128]])
    old = json.loads(file.read_text())
    for item in old["gpus"]:
        for key in ("uuid", "node_names", "nodes"):
            del item[key]
    file.write_text(json.dumps(old))
    (gpu, *_) = inventory("--snapshot", file)["gpus"]
    assert (gpu["pci"], gpu["uuid"], gpu["nodes"]) == ("0000:18:00.0", "", [])


def test_without_a_file_it_goes_to_stdout(eight: Path, saved: Path) -> None:
    assert nri_rdma("snapshot", "--sysfs-root", eight).stdout == saved.read_text()


def test_a_saved_node_without_rdma_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    nri_rdma("snapshot", "--sysfs-root", tmp_path, "-o", tmp_path / "node.json")
    done = nri_rdma("inventory", "--snapshot", tmp_path / "node.json")
    assert done.stdout.startswith("This machine has no RDMA device.\n")


def test_explain_decides_on_it_as_on_the_machine(eight: Path, saved: Path, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(POD)
    explain = ("explain", tmp_path / "pod.yaml", "--state-dir", tmp_path, "-o", "json")
    seen = json.loads(nri_rdma(*explain, "--snapshot", saved).stdout)
    machine = json.loads(nri_rdma(*explain, "--sysfs-root", eight).stdout)
    assert seen["pods"] == machine["pods"]
    assert seen["pods"][0]["requests"][0]["devices"] == ["mlx5_3"]
    assert seen["source"][:2] == [
        "Decided on the snapshot's hardware. What pods hold is not in a snapshot: all counts as free.",
        f"Read from the snapshot {saved}.",
    ]


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(eight: Path, saved: Path) -> None:
    before = saved.read_text()
    with patch.object(os, "fsync", side_effect=OSError(28, "No space left on device")):
        done = nri_rdma("snapshot", "--sysfs-root", eight, "-o", saved)
    assert "No space left on device" in assert_one_error(done, "SETTING", 2)
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]
    assert saved.read_text() == before


def test_a_folder_that_is_not_there_is_told_by_the_name_that_was_given(eight: Path, tmp_path: Path) -> None:
    file = tmp_path / "nowhere/node.json"
    told = assert_one_error(nri_rdma("snapshot", "--sysfs-root", eight, "-o", file), "SETTING", 2)
    assert f"No such file or directory: {file}. Next: name an existing path" in told


def test_a_link_to_a_file_stays_a_link(eight: Path, saved: Path) -> None:
    link = saved.with_name("link.json")
    link.symlink_to(saved.name)
    nri_rdma("snapshot", "--sysfs-root", eight, "-o", link)
    assert link.is_symlink()
    assert not saved.is_symlink()


def test_a_loop_of_links_is_replaced(eight: Path, saved: Path) -> None:
    (loop := saved.with_name("loop.json")).symlink_to("loop.json")
    assert nri_rdma("snapshot", "--sysfs-root", eight, "-o", loop).returncode == 0
    assert loop.read_text() == saved.read_text()


def test_a_pipe_is_written_to_and_not_replaced(eight: Path, saved: Path) -> None:
    pipe = saved.with_name("pipe")
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    nri_rdma("snapshot", "--sysfs-root", eight, "-o", pipe)
    reader.join(timeout=10)
    assert read == [saved.read_text()]
    assert pipe.is_fifo()

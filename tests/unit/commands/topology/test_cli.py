"""What `nri-rdma topology` tells: the matrix, who has what, and the document for programs."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import pytest

from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.golden import FOLDER, assert_in_file


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files NAME.json of some nodes."""
    work = tmp_path_factory.mktemp("snapshots")
    for name in ("eight", "sixteen", "vf8", "small"):
        build_tree(load(name), work / name)
        done = nri_rdma("snapshot", "--sysfs-root", work / name, "-o", work / f"{name}.json")
        assert done.returncode == 0, done.stderr
    return work


def test_the_matrix_of_eight_is_as_nvidia_smi_would_show_it(snapshots: Path) -> None:
    done = nri_rdma("topology", "--snapshot", snapshots / "eight.json", columns=120)
    assert (done.returncode, done.stderr) == (0, "")
    table, _, sentences = done.stdout.partition("\n\nRead from")
    assert_in_file(FOLDER / "topology.txt", f"{table}\n")
    assert sentences.endswith("What pods hold is not in a snapshot.\n")


def test_a_narrow_terminal_gets_the_columns_in_blocks(snapshots: Path) -> None:
    done = nri_rdma("topology", "--snapshot", snapshots / "sixteen.json", columns=80)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    headings = [line.split() for line in lines if line.startswith(("         GPU", "         mlx5"))]
    names = [*(f"GPU{number}" for number in range(8)), *(f"mlx5_{number}" for number in range(16))]
    assert [name for heading in headings for name in heading] == names
    assert sum(line.startswith("mlx5_15 ") for line in lines) == len(headings) + 1  # once more with its holder


def test_virtual_functions_are_rows_of_the_holders_not_of_the_matrix(snapshots: Path) -> None:
    lines = nri_rdma("topology", "--snapshot", snapshots / "vf8.json").stdout.splitlines()
    assert lines[0].split() == ["bnxt_re0", "mlx5_0"]
    rows = [line.split()[0] for line in lines if "pci0000:40" in line]
    assert rows == ["mlx5_0", *(f"mlx5_{number}" for number in range(1, 9))]
    assert [line[:8] for line in lines if "pci0000:40" in line][1] == "  mlx5_1"


def test_soft_devices_have_no_place(snapshots: Path) -> None:
    lines = nri_rdma("topology", "--snapshot", snapshots / "small.json").stdout.splitlines()
    assert ["rxe0", "X", "SYS"] in [line.split() for line in lines]
    assert ["rxe0", "-", "-", "-", "-", "holders", "not", "known"] in [line.split() for line in lines]


def test_a_machine_with_nothing_says_so(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    done = nri_rdma("topology", "--sysfs-root", tmp_path, "--state-dir", tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("This machine has neither RDMA devices nor GPUs.\n")


def test_the_document_has_the_whole_matrix_with_virtual_functions(snapshots: Path) -> None:
    done = nri_rdma("topology", "--snapshot", snapshots / "vf8.json", "-o", "json")
    document = json.loads(done.stdout)
    matrix = document["matrix"]
    assert matrix["names"] == [device["name"] for device in document["devices"]]
    place = {name: number for number, name in enumerate(matrix["names"])}
    assert matrix["classes"][place["mlx5_1"]][place["mlx5_8"]] == "PIX"
    assert matrix["classes"][place["mlx5_1"]][place["bnxt_re0"]] == "NODE"
    for row in range(len(place)):
        assert matrix["classes"][row][row] == "X"
        assert [matrix["classes"][column][row] for column in range(len(place))] == matrix["classes"][row]
    assert document["rails"] == {"bnxt_re0": 1, **{f"mlx5_{number}": 0 for number in range(9)}}


def test_the_document_is_a_snapshot_too(snapshots: Path, tmp_path: Path) -> None:
    first = nri_rdma("topology", "--snapshot", snapshots / "eight.json", "-o", "json")
    (tmp_path / "again.json").write_text(first.stdout)
    again = json.loads(nri_rdma("topology", "--snapshot", tmp_path / "again.json", "-o", "json").stdout)
    assert again["matrix"] == json.loads(first.stdout)["matrix"]
    assert again["devices"] == json.loads(first.stdout)["devices"]


def test_a_name_cannot_command_the_terminal(snapshots: Path, tmp_path: Path) -> None:
    text = (snapshots / "eight.json").read_text().replace('"name": "mlx5_0"', '"name": "\\u001b[2Jmlx5_0"')
    (tmp_path / "node.json").write_text(text)
    for output in ("table", "svg"):
        done = nri_rdma("topology", "--snapshot", tmp_path / "node.json", "-o", output)
        assert "\x1b" not in done.stdout
        assert "\\x1b[2Jmlx5_0" in done.stdout


def test_this_machine_is_named_with_the_time(tmp_path: Path) -> None:
    done = nri_rdma("topology", "--state-dir", tmp_path)
    assert re.search(rf"^Node {platform.node()}, \d{{4}}-\d\d-\d\d \d\d:\d\d UTC\.$", done.stdout, re.MULTILINE)

"""What GPU drivers tell of GPUs, where they are odd or not there."""

from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.host.sysfs.gpus import read_gpus
from nri_rdma.model.device import Gpu
from tests.rig.node import Node, load
from tests.rig.systree import build_proc, build_tree

INFORMATION = "driver/nvidia/gpus/0000:18:00.0/information"


def _one_gpu() -> Node:
    """The node "eight" with its first GPU only, and without adapters."""
    node = load("eight")
    return replace(node, functions=node.functions[:2], rdma=(), netdevs=(), gpus=node.gpus[:1])


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    build_tree(_one_gpu(), tmp_path / "sys")
    return tmp_path / "sys"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    build_proc(_one_gpu(), tmp_path / "proc")
    return tmp_path / "proc"


def _first(sys: Path, proc: Path | None) -> Gpu:
    return read_gpus(sys, proc)[0]


def test_without_procfs_a_gpu_has_its_place_and_the_kernels_nodes(sys: Path, tmp_path: Path) -> None:
    for nowhere in (None, tmp_path / "none"):
        gpu = _first(sys, nowhere)
        assert (str(gpu.pci), gpu.pci_root, gpu.uuid) == ("0000:18:00.0", "pci0000:17", "")
        assert gpu.node_names == ("card1", "renderD128")


def test_a_gpu_that_the_driver_has_not_initialised_has_no_uuid_yet(sys: Path, proc: Path) -> None:
    file = proc / INFORMATION
    text = file.read_text().replace(_first(sys, proc).uuid, "GPU-????????-????-????-????-????????????")
    file.write_text(text)
    gpu = _first(sys, proc)
    assert (gpu.uuid, gpu.node_names[0]) == ("", "nvidia0")


@pytest.mark.parametrize("text", ["", "GPU UUID\nDevice Minor: x\n", "\x00\xff", "Device Minor: -1\n", "::::\n"])
def test_what_is_no_information_tells_nothing(sys: Path, proc: Path, text: str) -> None:
    (proc / INFORMATION).write_text(text)
    gpu = _first(sys, proc)
    assert (gpu.uuid, gpu.node_names) == ("", ("card1", "renderD128"))


@pytest.mark.parametrize(
    ("lines", "major"),
    [
        ("Character devices:\n195 nvidia\n", 195),
        ("Character devices:\n242 nvidia-frontend\n510 nvidia-uvm\n", 242),
        ("Character devices:\n  1 mem\n\nBlock devices:\n252 nvidia\n", 195),
        ("", 195),
    ],
)
def test_the_number_of_the_driver_is_the_kernels(sys: Path, proc: Path, lines: str, major: int) -> None:
    (proc / "devices").write_text(lines)
    assert _first(sys, proc).nodes[0] == (major, 0)


def test_an_accelerator_has_the_nodes_of_its_class(sys: Path) -> None:
    folder = sys / "bus/pci/devices/0000:18:00.0"
    (folder / "accel/accel3").mkdir(parents=True)
    (folder / "accel/accel3/dev").write_text("261:3\n")
    (folder / "drm/controlD64").mkdir()
    gpu = _first(sys, None)
    assert gpu.node_names == ("card1", "renderD128", "accel3")
    assert gpu.nodes == ((226, 1), (226, 128), (261, 3))


def test_the_number_of_nvidias_node_is_not_the_place_among_the_gpus(tmp_path: Path) -> None:
    build_tree(load("sixteen"), tmp_path / "sys")
    build_proc(load("sixteen"), tmp_path / "proc")
    gpus = read_gpus(tmp_path / "sys", tmp_path / "proc")
    assert [gpu.node_names[0] for gpu in gpus] == [f"nvidia{number}" for number in (4, 5, 6, 7, 0, 1, 2, 3)]

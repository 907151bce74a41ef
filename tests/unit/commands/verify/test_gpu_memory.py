"""What verify says of the GPUs that a container has."""

from pathlib import Path

import pytest

from nri_rdma.commands.verify.gpu_memory import gpudirect_here
from nri_rdma.config.settings import Settings
from nri_rdma.decide.gpudirect import sentence
from nri_rdma.model.gpudirect import Verdict
from tests.rig.node import load
from tests.rig.systree import build_proc, build_tree


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """A container on the node "switch" that has the second GPU."""
    build_tree(load("switch"), tmp_path / "sys")
    build_proc(load("switch"), tmp_path / "proc")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia1").touch()
    return Settings(sysfs_root=tmp_path / "sys", proc_root=tmp_path / "proc", dev_root=tmp_path / "dev")


def test_only_the_container_s_own_gpus_and_devices_count(settings: Settings) -> None:
    (found,) = gpudirect_here(settings, ["mlx5_1"])
    assert found.verdict is Verdict.NOT_POSSIBLE
    assert "nearest: 0000:1c:00.0 with mlx5_1 below 0000:18:00.0 (PIX)" in sentence(found)
    assert "0000:1a:00.0" not in sentence(found) + str(found.alone)


def test_gpus_are_also_known_by_their_nodes_in_a_folder_of_dri(settings: Settings) -> None:
    gpu = settings.sysfs_root / "bus/pci/devices/0000:1a:00.0"
    (gpu / "drm/renderD128").mkdir(parents=True)
    (gpu / "drm/renderD128/dev").write_text("226:128\n")
    (settings.dev_root / "nvidia1").unlink()
    assert gpudirect_here(settings, ["mlx5_0"]) == ()
    (settings.dev_root / "dri").mkdir()
    (settings.dev_root / "dri/renderD128").touch()
    (found,) = gpudirect_here(settings, ["mlx5_0"])
    assert "nearest: 0000:1a:00.0 with mlx5_0" in sentence(found)


def test_a_container_without_gpus_or_without_sysfs_is_told_nothing(settings: Settings, tmp_path: Path) -> None:
    (settings.dev_root / "nvidia1").unlink()
    assert gpudirect_here(settings, ["mlx5_1"]) == ()
    assert gpudirect_here(Settings(sysfs_root=tmp_path / "none"), ["mlx5_1"]) == ()

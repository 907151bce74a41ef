"""Which GPU and which device are worth a line of the picture."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.commands.picture.drawn import svg
from tests.unit.commands.picture.jobs import JOBS
from tests.unit.commands.picture.machines import flat, held
from tests.unit.commands.picture.pictures import read
from tests.unit.model import hardware


def test_a_pod_is_drawn_with_thick_lines_and_the_rest_with_thin_ones() -> None:
    node = hardware.eight()
    lines = read(svg(node, held(node, JOBS))).lines
    thick = max(line.thickness for line in lines)
    assert {(line.gpu, line.device) for line in lines if line.thickness == thick} == {
        ("0001:10:00.0", "mlx5_0"),
        ("0001:11:00.0", "mlx5_1"),
        ("0001:12:00.0", "mlx5_2"),
        ("0001:16:00.0", "mlx5_3"),
    }
    assert {(line.gpu, line.device) for line in lines if line.thickness < thick} == {
        ("0001:13:00.0", "mlx5_3"),
        ("0001:14:00.0", "mlx5_4"),
        ("0001:15:00.0", "mlx5_5"),
        ("0001:17:00.0", "mlx5_7"),
    }


def test_every_gpu_of_a_pod_has_a_thick_line_however_few_its_devices() -> None:
    node = hardware.eight()
    lines = read(svg(node, held(node, {"jobs/few": (("mlx5_1",), (0, 1, 5))}))).lines
    thick = [(line.device, line.distance) for line in lines if "jobs/few has both" in line.title]
    assert thick == [("mlx5_1", "NODE"), ("mlx5_1", "PHB"), ("mlx5_1", "SYS")]


def test_of_equally_near_devices_a_free_one_is_drawn_to_a_gpu() -> None:
    node = flat(nics=3, gpus=1)
    taken = held(node, {"jobs/other": (("mlx5_0",), ())})
    used = replace(node, devices=(node.devices[0], replace(node.devices[1], in_use=("a bond",)), node.devices[2]))
    assert [line.device for line in read(svg(used, taken)).lines] == ["mlx5_2"]


def test_a_device_that_is_held_but_gone_is_left_out() -> None:
    node = hardware.eight()
    taken = held(node, {"jobs/gone": (("mlx5_7",), (0,))})
    picture = read(svg(replace(node, devices=node.devices[:7]), taken))
    assert "8 GPUs, 7 RDMA devices." in [words.text for words in picture.words]
    assert picture.block("GPU0").lines == ["GPU0", "0001:10:00.0 NVIDIA"]


def test_gpus_that_are_equally_near_to_several_devices_get_one_each() -> None:
    lines = read(svg(flat())).lines
    assert len({line.device for line in lines}) == len(lines) == 16


def test_a_soft_device_without_a_place_is_drawn_to_no_gpu() -> None:
    soft = replace(hardware.nic(0), pci=None, pci_root="", pci_path=(), numa_node=None, driver="")
    picture = read(svg(hardware.node((soft,), (hardware.gpu(0),))))
    assert picture.lines == ()
    assert picture.block("mlx5_0").lines[-2:] == ["soft 400G RoCE", "free"]

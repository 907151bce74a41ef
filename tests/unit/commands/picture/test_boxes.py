"""A box of a picture says what it is and who has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nri_rdma.commands.picture.positions import drawing_of
from nri_rdma.commands.picture.svg import svg_of
from nri_rdma.commands.picture.view import view_of
from tests.unit.commands.picture.drawn import svg
from tests.unit.commands.picture.jobs import JOBS, crowded_with_jobs
from tests.unit.commands.picture.machines import held
from tests.unit.commands.picture.pictures import read
from tests.unit.model import hardware


def test_a_device_that_can_only_be_shared_says_why_in_its_box() -> None:
    node = hardware.eight()
    block = read(svg(replace(node, devices=(hardware.tied(node.devices[0]), *node.devices[1:])))).block("mlx5_0")
    assert block.lines[-1].startswith("free to be shared")
    assert f"free to be shared: {hardware.TIE}" in block.title


def test_who_has_a_device_is_in_its_box() -> None:
    node = hardware.eight()
    picture = read(svg(node, held(node, JOBS)))
    assert picture.block("mlx5_0").lines == ["mlx5_0", "rail 0", "0000:10:00.0 400G RoCE", "jobs/one"]
    assert picture.block("mlx5_4").lines[-1] == "free"
    assert picture.block("GPU1").lines == ["GPU1", "0001:11:00.0 NVIDIA", "jobs/two"]
    fills = {name: picture.block(name).fill for name in ("mlx5_0", "mlx5_2", "mlx5_4", "GPU0", "GPU4")}
    assert fills["mlx5_0"] == fills["mlx5_2"] == fills["GPU0"] != fills["mlx5_4"] == fills["GPU4"]


def test_what_the_host_uses_says_why() -> None:
    node = hardware.node((hardware.nic(0, in_use=("eth0 has a default route",)),))
    block = read(svg(node)).block("mlx5_0")
    assert block.lines[-1] == "host: eth0 has a default route"
    assert block.fill != read(svg(hardware.node((hardware.nic(0),)))).block("mlx5_0").fill


def test_virtual_functions_are_one_box_with_their_function() -> None:
    node, taken = crowded_with_jobs(Path())
    picture = read(svg(node, taken))
    assert [block.name for block in picture.of("nic")] == ["mlx5_0", "mlx5_65"]
    assert picture.block("mlx5_0").lines == [
        *("mlx5_0", "rail 0", "0000:41:00.0 400G RoCE", "+ 64 virtual functions", "20 held, 44 free, 1 physical"),
        *("mlx5_1: jobs/pod-0", "mlx5_2: jobs/pod-1", "mlx5_3: jobs/pod-2", "and 17 more"),
    ]
    for number in range(1, 65):
        assert f"mlx5_{number} 0000:41:" in picture.block("mlx5_0").title


def test_several_devices_of_one_function_are_one_box() -> None:
    node, taken = crowded_with_jobs(Path())
    assert read(svg(node, taken)).block("mlx5_65").lines[3:] == ["6 devices", "1 held, 5 free", "mlx5_66: jobs/sf"]


def test_where_holders_are_not_known_no_device_is_called_free() -> None:
    node = hardware.node((hardware.nic(0), hardware.nic(1, in_use=("eth0 has a default route",))))
    unknown = read(svg_of(drawing_of(view_of(node, {}, holders_are_known=False))))
    assert unknown.block("mlx5_0").lines[-1] == "holders not known"
    assert unknown.block("mlx5_1").lines[-1] == "host: eth0 has a default route"
    assert read(svg(node)).block("mlx5_0").lines[-1] == "free"


def test_a_function_with_virtual_functions_is_not_counted_as_used_by_the_host() -> None:
    physical = replace(hardware.nic(0, in_use=("mlx5_0 has 2 virtual functions",)), vf_count=2)
    node = hardware.node((physical, hardware.nic(1)))
    title = drawing_of(view_of(node, {})).title
    assert title == "RDMA topology: No GPU, 2 RDMA devices, 1 with virtual functions."

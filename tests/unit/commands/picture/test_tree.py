"""The frames of a picture are the branches of the PCI tree."""

from __future__ import annotations

from pathlib import Path

from tests.unit.commands.picture.drawn import svg
from tests.unit.commands.picture.machines import crowded, described, switched
from tests.unit.commands.picture.pictures import LEAVES, read


def test_frames_are_the_sockets_roots_and_switches() -> None:
    picture = read(svg(switched()))
    inside = {
        frame.name: [leaf.name for leaf in picture.of(*LEAVES) if frame.area.holds(leaf.area)]
        for frame in picture.of("root", "bridge")
    }
    assert inside["pci0000:10"] == ["GPU0", "GPU1", "mlx5_0", "mlx5_1", "GPU2", "mlx5_2"]
    assert inside["0000:11:00.0"] == inside["pci0000:10"]
    assert inside["0000:1a:00.0"] == ["GPU2", "mlx5_2"]
    assert len(picture.of("bridge")) == 8  # two for each root complex: no ports on the way
    sockets = [[it.name for it in picture.of("root") if frame.area.holds(it.area)] for frame in picture.of("numa")]
    assert sockets == [["pci0000:10", "pci0000:30"], ["pci0000:50", "pci0000:70"]]


def test_bridges_on_the_way_to_one_card_have_no_frame(tmp_path: Path) -> None:
    assert read(svg(described("eight", tmp_path))).of("bridge") == []
    assert read(svg(crowded())).of("bridge") == []

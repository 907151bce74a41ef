"""The legend of a picture says what its lines mean, and only when it has some."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.commands.picture.drawn import svg
from tests.unit.commands.picture.machines import held, switched
from tests.unit.commands.picture.pictures import read
from tests.unit.model import hardware


def test_the_legend_has_dashes_and_a_name_for_each_class() -> None:
    legend = dict(read(svg(hardware.eight())).legend)
    classes = {words.partition(",")[0]: shape for words, shape in legend.items() if "," in words and "d" in shape}
    assert list(classes) == ["PIX", "PXB", "PHB", "NODE", "SYS"]
    assert len({shape.get("stroke-dasharray", "") for shape in classes.values()}) == 5
    assert len({shape["stroke"] for shape in classes.values()}) == 5


def test_a_line_looks_as_the_legend_says() -> None:
    node = switched()
    far = held(node, {"jobs/far": (("mlx5_0", "mlx5_3", "mlx5_11"), (0,)), "jobs/near": (("mlx5_7", "mlx5_8"), (7,))})
    picture = read(svg(node, far))
    legend = {words.partition(",")[0]: shape for words, shape in picture.legend}
    assert {line.distance for line in picture.lines} == {"PIX", "PXB", "NODE", "SYS"}
    for line in picture.lines:
        shape = legend[line.distance]
        assert (line.colour, line.dashes) == (shape["stroke"], shape.get("stroke-dasharray", ""))
        assert line.words.text == line.distance


def test_no_legend_of_lines_where_there_are_none() -> None:
    words = [words for words, _shape in read(svg(replace(hardware.eight(), gpus=()))).legend]
    assert words == ["a pod has it, or a part", "free, or nobody is known to have it", "the host uses it"]

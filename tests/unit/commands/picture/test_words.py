"""A name that is too long for its box is cut there, and whole in the box's title."""

from __future__ import annotations

from tests.unit.commands.picture.drawn import svg
from tests.unit.commands.picture.jobs import JOBS, LONG
from tests.unit.commands.picture.machines import held
from tests.unit.commands.picture.pictures import read
from tests.unit.model import hardware


def test_a_long_name_is_cut_and_whole_in_the_title() -> None:
    node = hardware.eight()
    block = read(svg(node, held(node, JOBS))).block("mlx5_3")
    assert block.lines[-1].startswith("a-namespace-") and block.lines[-1].endswith("-17") and "…" in block.lines[-1]
    assert LONG in block.title

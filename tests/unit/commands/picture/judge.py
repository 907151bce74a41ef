"""What holds for every picture of a topology."""

from __future__ import annotations

import itertools

from nri_rdma.model.device import Node
from tests.unit.commands.picture.pictures import FRAMES, LEAVES, Picture, class_by_paths


def assert_boxes_are_apart(picture: Picture) -> None:
    for block in picture.blocks:
        assert picture.page.holds(block.area)
    for one, other in itertools.combinations(picture.blocks, 2):
        if one.area.meets(other.area):  # then a frame is around the other, which is drawn later
            assert one.kind in FRAMES, (one.name, other.name)
            assert one.area.holds(other.area), (one.name, other.name)
            assert FRAMES.index(one.kind) <= (*FRAMES, "gpu", "nic").index(other.kind)


def assert_texts_fit(picture: Picture) -> None:
    for block in picture.blocks:
        for words in block.words:
            assert block.area.holds(words.area), words.text
            for other in picture.blocks:
                assert not words.area.meets(other.area) or other.area.holds(block.area), words.text
    for words in picture.words:
        assert picture.page.holds(words.area), words.text
        assert words.size >= 15
    for words, beside in itertools.combinations(picture.words, 2):
        assert not words.area.meets(beside.area), (words.text, beside.text)


def assert_classes_are_true(node: Node, picture: Picture) -> None:
    gpus = {str(gpu.pci): gpu for gpu in node.gpus}
    devices = {escaped(device.name): device for device in node.devices}
    for line in picture.lines:
        assert line.distance == class_by_paths(gpus[line.gpu], devices[line.device])
        assert line.tag.holds(line.words.area)
    placed = any(device.pci_root or device.numa_node is not None for device in node.devices)
    assert {line.gpu for line in picture.lines} == (set(gpus) if placed else set())


def assert_lines_join(node: Node, picture: Picture) -> None:
    numbers = {str(gpu.pci): f"GPU{number}" for number, gpu in enumerate(node.gpus)}
    for line in picture.lines:
        gpu = picture.block(numbers[line.gpu]).area
        nics = [block for block in picture.of("nic") if f"{line.device}" in block.title]
        assert line.start[0] == gpu.right and gpu.top < line.start[1] < gpu.bottom
        assert any(nic.area.left == line.end[0] and nic.area.top < line.end[1] < nic.area.bottom for nic in nics)
        assert line.start[0] < line.tag.left < line.tag.right < line.bend < line.end[0]
    for leaf in picture.of(*LEAVES):  # the gap between the columns is the lines'
        assert all(leaf.area.right <= line.start[0] or line.end[0] <= leaf.area.left for line in picture.lines)
    for one, other in itertools.combinations(picture.lines, 2):
        assert not one.tag.meets(other.tag)


def escaped(name: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)

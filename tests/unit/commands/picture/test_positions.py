"""What a person sees in the picture of a topology, read from the SVG."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from nri_rdma.decide.placement import Taken
from nri_rdma.model.device import Node
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import Mode
from tests.unit.commands.picture.drawn import svg
from tests.unit.commands.picture.judge import (
    assert_boxes_are_apart,
    assert_classes_are_true,
    assert_lines_join,
    assert_texts_fit,
    escaped,
)
from tests.unit.commands.picture.machines import at, at_gpu, held
from tests.unit.commands.picture.pictures import read
from tests.unit.model import hardware


def test_boxes_stand_beside_or_in_one_another(machine: tuple[Node, Taken]) -> None:
    assert_boxes_are_apart(read(svg(*machine)))


def test_every_text_is_in_its_box_and_over_no_other(machine: tuple[Node, Taken]) -> None:
    assert_texts_fit(read(svg(*machine)))


def test_every_device_and_gpu_is_named(machine: tuple[Node, Taken]) -> None:
    node, taken = machine
    picture = read(svg(node, taken))
    titles = "\n".join(block.title for block in picture.of("nic"))
    for device in node.devices:
        assert escaped(device.name) in titles
    names = {block.name for block in picture.of("gpu")}
    assert names == {f"GPU{number}" for number in range(len(node.gpus))}
    for gpu in node.gpus:
        assert any(str(gpu.pci) in line for block in picture.of("gpu") for line in block.lines)


def test_every_holder_is_named(machine: tuple[Node, Taken]) -> None:
    node, taken = machine
    picture = read(svg(node, taken))
    for pod in {holding.owner for held_by in taken.values() for holding in held_by}:
        assert any(pod in block.title for block in picture.of("nic"))


def test_the_class_of_every_line_is_what_the_pci_paths_say(machine: tuple[Node, Taken]) -> None:
    assert_classes_are_true(machine[0], read(svg(*machine)))


def test_every_line_joins_its_boxes_and_crosses_none(machine: tuple[Node, Taken]) -> None:
    assert_lines_join(machine[0], read(svg(*machine)))


def test_the_classes_of_many_lines_of_one_gpu_stand_below_one_another() -> None:
    node = hardware.eight()
    picture = read(svg(node, held(node, {"jobs/wide": (tuple(it.name for it in node.devices), (3,))})))
    assert sum(line.gpu == "0001:13:00.0" for line in picture.lines) == 8
    assert_texts_fit(picture)
    assert_lines_join(node, picture)


_ADDRESSES = st.builds(PciAddress, st.just(0), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7))


@st.composite
def _nodes(draw: st.DrawFn) -> tuple[Node, Taken]:
    """Some GPUs and NICs anywhere in some tree, and pods that have some of both."""
    addresses = draw(st.lists(_ADDRESSES, unique=True, min_size=1, max_size=16))
    gpu_count = draw(st.integers(0, len(addresses)))
    places = []
    for address in addresses:
        root = draw(st.sampled_from(("pci0000:10", "pci0000:80")))
        bridges = draw(st.lists(st.sampled_from("abc"), max_size=5))
        way = [f"0000:{'-'.join(bridges[: depth + 1])}" for depth in range(len(bridges))]
        places.append((address, (root, *way, str(address)), draw(st.sampled_from((None, 0, 1)))))
    gpus = tuple(at_gpu(address, path, numa=numa) for address, path, numa in sorted(places[:gpu_count]))
    devices = tuple(
        at(number, address, path, numa=numa) for number, (address, path, numa) in enumerate(places[gpu_count:])
    )
    node = hardware.node(devices, gpus)
    names, numbers = [it.name for it in devices], list(range(len(gpus)))
    pods = {
        f"jobs/{'x' * draw(st.integers(1, 60))}-{number}": (
            tuple(draw(st.lists(st.sampled_from(names), unique=True)) if names else ()),
            tuple(draw(st.lists(st.sampled_from(numbers), unique=True)) if numbers else ()),
        )
        for number in range(draw(st.integers(0, 4)))
    }
    return node, held(node, pods, Mode.SHARED)


@settings(max_examples=60, deadline=None)
@given(_nodes())
def test_any_node_is_drawn_without_overlaps_and_truly(machine: tuple[Node, Taken]) -> None:
    picture = read(svg(*machine))
    assert_boxes_are_apart(picture)
    assert_texts_fit(picture)
    assert_classes_are_true(machine[0], picture)
    assert_lines_join(machine[0], picture)

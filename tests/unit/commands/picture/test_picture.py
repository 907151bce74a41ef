"""What a person sees in the picture of a topology, read from the SVG."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nri_rdma.decide.placement import Taken
from nri_rdma.model.device import Node
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import Mode
from tests.unit.commands.picture.drawn import svg
from tests.unit.commands.picture.machines import at, at_gpu, crowded, described, flat, held, hostile, switched
from tests.unit.commands.picture.pictures import FRAMES, LEAVES, Picture, class_by_paths, contrast, read
from tests.unit.model import hardware

LONG = "a-namespace-with-a-long-name/" + "a-job-whose-name-does-not-end-" * 6 + "17"
DESCRIBED = ("eight", "sixteen", "vf8", "ib2", "two", "small", "lab-eight", "lab-sriov")
JOBS = {"jobs/one": (("mlx5_0",), (0,)), "jobs/two": (("mlx5_1", "mlx5_2"), (1, 2)), LONG: (("mlx5_3",), (6,))}


def _described(name: str, work: Path) -> tuple[Node, Taken]:
    return described(name, work), {}


def _eight_with_jobs(work: Path) -> tuple[Node, Taken]:
    node = described("eight", work)
    return node, held(node, {**JOBS, "infra/backup": (("mlx5_5",), ())})


def _shared(work: Path) -> tuple[Node, Taken]:
    node = described("eight", work)
    pods = {f"jobs/reader-{number}": (("mlx5_0", "mlx5_4"), (number % 8,)) for number in range(30)}
    return node, held(node, pods, Mode.SHARED)


def _crowded(_work: Path) -> tuple[Node, Taken]:
    node = crowded()
    pods = {f"jobs/pod-{number}": ((f"mlx5_{number + 1}",), (number % 2,)) for number in range(20)}
    return node, held(node, {**pods, "jobs/sf": (("mlx5_66",), (1,))})


def _without_numa(_work: Path) -> tuple[Node, Taken]:
    node = hardware.eight()
    return replace(node, devices=tuple(replace(it, numa_node=None) for it in node.devices)), {}


def _one_pod_for_all(_work: Path) -> tuple[Node, Taken]:
    node = flat()
    return node, held(node, {"jobs/all": (tuple(it.name for it in node.devices), tuple(range(16)))})


MACHINES: dict[str, Callable[[Path], tuple[Node, Taken]]] = {
    **{name: partial(_described, name) for name in DESCRIBED},
    "eight with jobs": _eight_with_jobs,
    "shared": _shared,
    "crowded": _crowded,
    "switches": lambda _work: (switched(), held(switched(), JOBS)),
    "one root": _one_pod_for_all,
    "hostile": lambda _work: (hostile(), held(hostile(), {'a/<b>&"': (("m" * 60,), (2,))})),
    "NUMA nodes unknown": _without_numa,
    "no GPU": lambda _work: (replace(hardware.eight(), gpus=()), {}),
    "no RDMA device": lambda _work: (replace(hardware.eight(), devices=()), {}),
    "nothing": lambda _work: (hardware.node(), {}),
}


@pytest.fixture(params=MACHINES, scope="module")
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Node, Taken]:
    return MACHINES[request.param](tmp_path_factory.mktemp("machine"))


def test_boxes_stand_beside_or_in_one_another(machine: tuple[Node, Taken]) -> None:
    _assert_boxes_are_apart(read(svg(*machine)))


def test_every_text_is_in_its_box_and_over_no_other(machine: tuple[Node, Taken]) -> None:
    _assert_texts_fit(read(svg(*machine)))


def test_every_device_and_gpu_is_named(machine: tuple[Node, Taken]) -> None:
    node, taken = machine
    picture = read(svg(node, taken))
    titles = "\n".join(block.title for block in picture.of("nic"))
    for device in node.devices:
        assert _escaped(device.name) in titles
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
    _assert_classes_are_true(machine[0], read(svg(*machine)))


def test_every_line_joins_its_boxes_and_crosses_none(machine: tuple[Node, Taken]) -> None:
    _assert_lines_join(machine[0], read(svg(*machine)))


def test_texts_and_lines_are_told_from_what_is_behind_them(machine: tuple[Node, Taken]) -> None:
    text = svg(*machine)
    ink = text.partition(' fill="')[2][:7]
    picture = read(text)
    fills = {
        "#ffffff",
        *(block.fill for block in picture.blocks),
        *(it["fill"] for _, it in picture.legend if "rx" in it),
    }
    assert min(contrast(ink, fill) for fill in fills) >= 4.5
    behind = {"#ffffff", *(block.fill for block in picture.of(*FRAMES))}
    strokes = {line.colour for line in picture.lines} | {it["stroke"] for _words, it in picture.legend}
    assert min(contrast(stroke, fill) for stroke in strokes for fill in behind) >= 3


def test_the_file_is_plain(machine: tuple[Node, Taken]) -> None:
    text = svg(*machine)
    assert text.isascii()
    for word in ("<script", "href", "url(", "<style", "<image", "<foreignObject", "\x1b"):
        assert word not in text


def test_the_same_node_is_the_same_file() -> None:
    node = switched()
    backwards = dict(reversed(list(held(node, JOBS).items())))
    assert svg(node, held(node, JOBS)) == svg(node, backwards)


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


def test_a_long_name_is_cut_and_whole_in_the_title() -> None:
    node = hardware.eight()
    block = read(svg(node, held(node, JOBS))).block("mlx5_3")
    assert block.lines[-1].startswith("a-namespace-") and block.lines[-1].endswith("-17") and "…" in block.lines[-1]
    assert LONG in block.title


def test_virtual_functions_are_one_box_with_their_function() -> None:
    node, taken = _crowded(Path())
    picture = read(svg(node, taken))
    assert [block.name for block in picture.of("nic")] == ["mlx5_0", "mlx5_65"]
    assert picture.block("mlx5_0").lines == [
        *("mlx5_0", "rail 0", "0000:41:00.0 400G RoCE", "+ 64 virtual functions", "20 held, 44 free, 1 used by host"),
        *("mlx5_1: jobs/pod-0", "mlx5_2: jobs/pod-1", "mlx5_3: jobs/pod-2", "and 17 more"),
    ]
    for number in range(1, 65):
        assert f"mlx5_{number} 0000:41:" in picture.block("mlx5_0").title


def test_several_devices_of_one_function_are_one_box() -> None:
    node, taken = _crowded(Path())
    assert read(svg(node, taken)).block("mlx5_65").lines[3:] == ["6 devices", "1 held, 5 free", "mlx5_66: jobs/sf"]


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


def test_bridges_on_the_way_to_one_card_have_no_frame(tmp_path: Path) -> None:
    assert read(svg(described("eight", tmp_path))).of("bridge") == []
    assert read(svg(crowded())).of("bridge") == []


def test_every_gpu_of_a_pod_has_a_thick_line_however_few_its_devices() -> None:
    node = hardware.eight()
    lines = read(svg(node, held(node, {"jobs/few": (("mlx5_1",), (0, 1, 5))}))).lines
    thick = [(line.device, line.distance) for line in lines if "jobs/few has both" in line.title]
    assert thick == [("mlx5_1", "NODE"), ("mlx5_1", "PHB"), ("mlx5_1", "SYS")]


def test_the_classes_of_many_lines_of_one_gpu_stand_below_one_another() -> None:
    node = hardware.eight()
    picture = read(svg(node, held(node, {"jobs/wide": (tuple(it.name for it in node.devices), (3,))})))
    assert sum(line.gpu == "0001:13:00.0" for line in picture.lines) == 8
    _assert_texts_fit(picture)
    _assert_lines_join(node, picture)


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
    _assert_boxes_are_apart(picture)
    _assert_texts_fit(picture)
    _assert_classes_are_true(machine[0], picture)
    _assert_lines_join(machine[0], picture)


def _assert_boxes_are_apart(picture: Picture) -> None:
    for block in picture.blocks:
        assert picture.page.holds(block.area)
    for one, other in itertools.combinations(picture.blocks, 2):
        if one.area.meets(other.area):  # then a frame is around the other, which is drawn later
            assert one.kind in FRAMES, (one.name, other.name)
            assert one.area.holds(other.area), (one.name, other.name)
            assert FRAMES.index(one.kind) <= (*FRAMES, "gpu", "nic").index(other.kind)


def _assert_texts_fit(picture: Picture) -> None:
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


def _assert_classes_are_true(node: Node, picture: Picture) -> None:
    gpus = {str(gpu.pci): gpu for gpu in node.gpus}
    devices = {_escaped(device.name): device for device in node.devices}
    for line in picture.lines:
        assert line.distance == class_by_paths(gpus[line.gpu], devices[line.device])
        assert line.tag.holds(line.words.area)
    placed = any(device.pci_root or device.numa_node is not None for device in node.devices)
    assert {line.gpu for line in picture.lines} == (set(gpus) if placed else set())


def _assert_lines_join(node: Node, picture: Picture) -> None:
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


def _escaped(name: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)

"""The shape of the package does not get worse, and what measures it finds planted faults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import durations
from tests.house import measure
from tests.house.measure import PROJECT, Found, Source, read_sources

SOURCES = read_sources(PROJECT / measure.PACKAGE)

# A ratchet: a limit is lowered (for the mirror: raised) as soon as the figure is better, until it is the goal.
LIMITS: dict[str, tuple[int, Callable[[], int]]] = {  # goal
    "root files": (3, lambda: len(measure.root_files(SOURCES))),  # 3
    "largest class": (200, lambda: measure.classes(SOURCES)[0].figure),  # 200
    "widest constructor": (8, lambda: measure.constructors(SOURCES)[0].figure),  # 8
    "fan-out": (12, lambda: measure.fan_outs(SOURCES)[0].figure),  # 12
    "double names": (8, lambda: len(measure.double_names(SOURCES))),  # 8
}
LEAST_MIRROR_PERCENT = 90.0


@pytest.mark.parametrize("name", LIMITS)
def test_the_shape_gets_no_worse(name: str) -> None:
    limit, figure = LIMITS[name]
    assert figure() <= limit, "make it smaller: `python -m tests.house.measure -v` shows the places"


def test_no_fewer_modules_have_a_test_file_of_their_name() -> None:
    mirror = measure.mirror(SOURCES, PROJECT / "tests/unit")
    assert mirror.percent >= LEAST_MIRROR_PERCENT, "\n".join(
        ["write tests/unit/FOLDER/test_MODULE.py for some of these modules, as for your own:", *mirror.missing]
    )


# Planted trees


def plant(folder: Path, **files: str) -> tuple[Source, ...]:
    """A package nri_rdma of these files; a__b is a/b.py."""
    package = folder / "nri_rdma"
    for name, text in {"__init__": "", **files}.items():
        path = package / f"{name if name.startswith('__') else name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_sources(package)


def test_root_files_are_those_of_the_package_itself(tmp_path: Path) -> None:
    sources = plant(tmp_path, one="", room__two="", pb__made="")
    assert measure.root_files(sources) == ("__init__.py", "one.py")


def test_the_largest_class_comes_first_without_the_ttrpc_library(tmp_path: Path) -> None:
    large = "class Large:\n    a = 1\n    b = 2\n"
    huge = f"{large}    c = 3\n"
    sources = plant(tmp_path, one=f"class Small:\n    a = 1\n{large}", ttrpc__x=huge)
    assert measure.classes(sources) == (
        Found(figure=3, where="one.py:Large"),
        Found(figure=2, where="one.py:Small"),
    )


def test_all_kinds_of_parameters_make_a_constructor_wide(tmp_path: Path) -> None:
    wide = "class {}:\n    def __init__(self, a, /, b, *c, d, **e): ...\n"
    made = f"@dataclass(frozen=True)\n{wide.format('Made')}"
    sources = plant(tmp_path, one=wide.format("One") + made, errors=wide.format("Error"), ttrpc__x=wide.format("X"))
    assert measure.constructors(sources) == (Found(figure=5, where="one.py:One"),)


def test_fan_out_counts_modules_but_neither_generated_ones_nor_the_bare_package(tmp_path: Path) -> None:
    text = (
        "from nri_rdma import __version__, two\nfrom nri_rdma.room.a import x, y\nfrom nri_rdma.pb import made\n"
        "import os\ndef work():\n    from nri_rdma.room import b\n"
    )
    sources = plant(tmp_path, engine__one=text, two="", room__a="", room__b="", pb__made="")
    assert measure.fan_outs(sources, [("engine/*",)]) == (Found(figure=3, where="engine/one.py"),)


def test_what_only_the_wiring_uses_is_no_fan_out(tmp_path: Path) -> None:
    text = (
        "from nri_rdma.two import Two\nfrom nri_rdma.three import Three\n"
        "class Engine:\n    def make(self):\n        from nri_rdma import four\n        return Two(Three())\n"
        "    def run(self, it: Three): ...\n"
    )
    sources = plant(tmp_path, engine__engine=text, two="", three="", four="")
    assert measure.fan_outs(sources, [("engine/*",)]) == (Found(figure=1, where="engine/engine.py"),)


def test_a_group_of_files_that_a_move_emptied_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no file is in engine"):
        measure.fan_outs(plant(tmp_path, one=""), [("engine/*",)])


def test_names_of_classes_and_types_in_two_modules_are_double(tmp_path: Path) -> None:
    text = 'class Node: ...\nDoor: TypeAlias = "int"\nReader = int\nLIMIT = 1\nclass _Own: ...\n'
    sources = plant(tmp_path, one=text, two=text, ttrpc__x="class Other: ...", three="class Other: ...")
    assert measure.double_names(sources) == dict.fromkeys(("Door", "Node", "Reader"), ("one.py", "two.py"))


def test_a_module_has_its_test_where_the_tests_mirror_the_package(tmp_path: Path) -> None:
    sources = plant(tmp_path, __main__="", one="", room__one="", room__two="", pb__made="")
    tests = tmp_path / "unit"
    for path in (tests / "test_one.py", tests / "test_two.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    mirror = measure.mirror(sources, tests)
    assert mirror.having == ("one.py",)
    assert mirror.missing == ("room/one.py", "room/two.py")
    assert round(mirror.percent) == 33


# Walks


# Memories


# Durations


def test_the_slowest_files_come_first() -> None:
    seconds = {f"test_{number}.py": float(number) for number in range(20)}
    lines = durations.slowest(seconds)
    assert len(lines) == 15
    assert lines[0].split() == ["19.00", "s", "test_19.py"]


def test_durations_of_several_runs_are_kept_together(tmp_path: Path) -> None:
    path = tmp_path / "build" / "durations.json"
    durations.keep(path, {"a.py": 1.0, "b.py": 2.0})
    durations.keep(path, {"b.py": 3.004})
    assert path.read_text() == '{\n "a.py": 1.0,\n "b.py": 3.0\n}\n'


def test_durations_that_a_killed_run_left_half_are_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    path.write_text('{"a.py": ')
    durations.keep(path, {"b.py": 1.0})
    assert path.read_text() == '{\n "b.py": 1.0\n}\n'

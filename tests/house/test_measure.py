"""What measures the shape of the package finds planted faults. Its figures inform; only the root and the mirror of the
tests have a limit."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from graphlib import CycleError
from pathlib import Path
from types import ModuleType

import pytest

from tests import durations
from tests.house import measure
from tests.house.measure import PROJECT, Found, Source, read_sources
from tests.house.walks import (
    Walk,
    memories,
    memories_of_a_pod,
    record,
    walk_of_create_container,
    walk_of_run_pod,
)

SOURCES = read_sources(PROJECT / measure.PACKAGE)

LEAST_MIRROR_PERCENT = 90.0


def test_the_root_of_the_package_has_only_what_every_folder_needs() -> None:
    assert measure.root_files(SOURCES) == ("__init__.py", "__main__.py", "errors.py")


def test_no_fewer_modules_have_a_test_file_of_their_name() -> None:
    mirror = measure.mirror(SOURCES, PROJECT / "tests/unit")
    assert mirror.percent >= LEAST_MIRROR_PERCENT, "\n".join(
        ["write tests/unit/FOLDER/test_MODULE.py for some of these modules, as for your own:", *mirror.missing]
    )


def test_the_figures_that_have_no_limit_can_be_taken() -> None:
    assert measure.product_lines(SOURCES) > 0
    assert measure.rooms(SOURCES)
    measure.outside_writes(SOURCES)  # raises without an attachment


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


def test_lines_are_without_generated_code_and_the_ttrpc_library(tmp_path: Path) -> None:
    text = "\n".join(["pass"] * 10)
    sources = plant(tmp_path, one=text, ttrpc__wire__states=text, wire__mux=text, ttrpc__client=text, pb__made=text)
    assert measure.product_lines(sources) == 20


def test_an_import_within_a_function_is_an_arrow_and_the_longest_chain_counts_floors(tmp_path: Path) -> None:
    late = "def work():\n    from nri_rdma.low import value\n"
    sources = plant(tmp_path, top="import nri_rdma.mid.a\nfrom nri_rdma import low", mid__a=late, mid__b="", low="")
    assert measure.rooms(sources) == {"top", "mid", "low"}
    assert measure.arrows(sources) == {("top", "mid"), ("top", "low"), ("mid", "low")}
    assert measure.floors(sources) == 3


def test_relative_imports_count_and_the_bare_package_does_not(tmp_path: Path) -> None:
    sources = plant(
        tmp_path,
        one="from nri_rdma import __version__\nfrom . import two",
        two="",
        room__a="from ..two import x\nfrom .b import y",
        room__b="",
    )
    assert measure.arrows(sources) == {("one", "two"), ("room", "two")}


def test_a_circle_of_rooms_is_no_floor(tmp_path: Path) -> None:
    with pytest.raises(CycleError):
        measure.floors(plant(tmp_path, one="import nri_rdma.two", two="import nri_rdma.one"))


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


ATTACHMENT = """
class Attachment:
    part: str

    def __init__(self):
        self.state, self.error = 1, ""

    @property
    def record(self): ...

    @record.setter
    def record(self, value): ...

def change(it):
    it.state = 2
"""


def test_writes_to_the_attachment_from_outside_are_found_in_all_forms(tmp_path: Path) -> None:
    writes = """
def work(it, more):
    it.state = 1
    it.error, (more.part, x) = "", ("", 1)
    it.state += 1
    it.record: int = 1
    for it.part in (): ...
    with more as it.error: ...
    it.other = 1
    print(it.state)
class Other:
    def __init__(self):
        self.state = 1
        self.inner.state = 1
"""
    sources = plant(tmp_path, attach__attachment=ATTACHMENT, one=writes)
    found = sorted(target for _, _, target in measure.outside_writes(sources))
    assert found == ["it.error", "it.error", "it.part", "it.record", "it.state", "it.state", "more.part"]


def test_an_attachment_under_a_new_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no class of one attach"):
        measure.outside_writes(plant(tmp_path, attach__attachment="class Renamed: ..."))


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


def test_layers_are_those_of_the_first_contract_of_layers(tmp_path: Path) -> None:
    pyproject = tmp_path / "pyproject.toml"
    pyproject.write_text(
        '[[tool.importlinter.contracts]]\ntype = "forbidden"\n'
        '[[tool.importlinter.contracts]]\ntype = "layers"\ncontainers = ["p"]\n'
        'layers = ["top", "a | b", "(low)"]\n'
    )
    assert measure.read_layers(pyproject) == (("p.top",), ("p.a", "p.b"), ("p.low",))


# Walks


def test_equal_neighbours_are_one_stay_and_other_packages_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top, low = _import_planted(
        tmp_path,
        monkeypatch,
        top="import os\nfrom planted import low\n"
        "def begin():\n    own()\n    low.work()\n    os.getcwd()\n    own()\ndef own(): ...\ndef outside(): own()\n",
        low="from planted.errors import fail\ndef work():\n    fail()\n    again()\ndef again(): ...\n",
        errors="def fail(): ...\n",
    )

    def call() -> None:
        low.work()  # before the walk begins
        top.begin()
        top.outside()

    walk = record(top.begin.__code__, call, package="planted")
    assert walk.stays == ("planted.top", "planted.low", "planted.top")
    assert walk.climbs([("planted.top",), ("planted.low",)]) == (("planted.low", "planted.top"),)


def test_a_walk_that_does_not_begin_is_an_error() -> None:
    with pytest.raises(ValueError, match="was not called"):
        record(plant.__code__, lambda: None)


def test_modules_of_one_layer_or_of_none_are_no_climb() -> None:
    walk = Walk(stays=("p.low.x", "p.low.y", "p.side", "p.unknown", "p.top"))
    assert walk.climbs([("p.top",), ("p.low", "p.side")]) == ()


def _import_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **files: str) -> tuple[ModuleType, ModuleType]:
    folder = tmp_path / "planted"
    folder.mkdir()
    for name, text in {"__init__": "", **files}.items():
        (folder / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, f"planted.{name}", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module("planted.top"), importlib.import_module("planted.low")


@pytest.mark.parametrize(
    "walk",
    [
        walk_of_run_pod,
        partial(walk_of_create_container, is_told=False),
        partial(walk_of_create_container, is_told=True),
    ],
    ids=["run_pod", "create_container", "create_container of an attached pod"],
)
def test_the_engine_walks(walk: Callable[[], Walk]) -> None:
    assert len(walk().stays) > 1


# Memories


class Holder:
    """Holds containers, directly and behind other things."""

    __slots__ = ("items", "later", "names", "other")

    def __init__(self, inner: object) -> None:
        self.items: dict[object, object] = {"s-1": self, "s-2": inner}
        self.names = {"s-10", ("s-2", "s-1")}
        self.other = [{("s-1", "part"): 1}]
        self.later = lambda: inner


class Inner:
    """What a holder's function and dictionary know."""

    def __init__(self) -> None:
        self.parts = {"s-1+trainer"}
        self.foreign: Future[object] = Future()
        self.foreign.set_result({"s-1": 1})


def test_memories_are_found_behind_objects_lists_and_functions() -> None:
    found = memories(partial(lambda holder: None, Holder(Inner())), "s-1", package="tests")
    assert found == ("Holder.items", "Holder.other", "Inner.parts")


def test_the_engine_remembers_a_pod() -> None:
    assert memories_of_a_pod()


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

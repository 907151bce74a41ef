"""The rotation of CI: every door has its turn, the record says when, and the next turn is the oldest one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import rotation
from tests.lab.machine import MODELS
from tests.lab.recipe import DEFAULT_KERNEL, KERNELS
from tests.rig import cache
from tests.rig.build_runtimes import SOURCES
from tests.rotation import Green, Turn

PAGE = f"Before.\n\n{rotation.BEGIN}\n{rotation.END}\n\nAfter.\n"
PRINTS = "print('1| 41 passed, 1 skipped in 2.00s'); print('alone| 2 passed'); print('small: 43 passed, in 2 shares')"
FAILS = "import sys; print('3 passed, 1 failed'); sys.exit(3)"


def turn(*programs: str) -> Turn:
    """A turn of the first name, whose commands are these programs."""
    name = next(iter(rotation.TURNS))
    return Turn(name=name, what="", commands=tuple(("-c", program) for program in programs))


def green(date: str) -> Green:
    """The line of a turn that was green then."""
    return Green(date=date, commit="abc", minutes="1.5", passed="7")


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_make_can_quote_the_names_of_turns() -> None:
    assert not [name for name in rotation.TURNS if "'" in name]


def test_the_page_has_each_turn_as_it_is_run() -> None:
    before = rotation.PAGE.read_text()
    rotation.write(rotation.read())
    assert rotation.PAGE.read_text() == before, (
        "docs/rotation.md was not as tests/rotation.py says; it is now: commit it"
    )


def test_every_runtime_kernel_machine_and_file_of_the_cluster_is_tested_by_make_test_make_lab_core_or_in_one_turn() -> (
    None
):
    runtimes = {*SOURCES, *(it.name for it in cache.FETCHED)}
    assert sorted(rotation.RUNTIMES) == sorted(runtimes)
    assert set(rotation.KERNELS) == set(KERNELS) - {DEFAULT_KERNEL}
    assert sorted(name for names in rotation.MACHINES.values() for name in names) == sorted(MODELS)
    there = [it.stem for it in (rotation.PROJECT / "tests/cluster").glob("test_*.py")]
    in_turns = (*rotation.CLUSTER.values(), rotation.CHART_FILES, rotation.PRIVILEGES)
    assert sorted(name for files in in_turns for name in files) == sorted(there)


def test_files_and_modules_that_turns_name_are_there() -> None:
    words = [word for it in rotation.TURNS.values() for command in it.commands for word in command]
    files = [word for word in words if word.endswith(".py")]
    modules = {command[1].replace(".", "/") for it in rotation.TURNS.values() for command in it.commands}
    assert [it for it in files if not (rotation.PROJECT / it).is_file()] == []
    places = [rotation.PROJECT / it for it in modules]
    assert [it for it in places if not (it.with_suffix(".py").is_file() or (it / "__main__.py").is_file())] == []


def test_the_turn_that_was_green_longest_ago_is_next_and_one_that_never_was_has_to_be_run_by_name(page: Path) -> None:
    first, second, third, *others = rotation.TURNS
    record = {first: green("2026-11-27 08:00"), third: green("2026-11-26 23:59")}
    record |= {name: green("2026-11-27 09:00") for name in others}
    rotation.write(record, page)
    assert rotation.longest_ago(rotation.read(page)).name == third
    record[second] = green("2026-11-26 00:00")
    rotation.write(record, page)
    assert rotation.read(page) == record
    assert rotation.longest_ago(record).name == second
    assert rotation.longest_ago({}).name == first
    assert page.read_text().startswith("Before.\n")
    assert page.read_text().endswith("\n\nAfter.\n")


def test_a_green_turn_writes_its_line(page: Path, capfd: pytest.CaptureFixture[str]) -> None:
    it = turn(PRINTS, PRINTS)
    assert rotation.run(it, page) == 0
    assert "1| 41 passed" in capfd.readouterr().out
    written = rotation.read(page)[it.name]
    assert written.passed == "86"
    assert written.date.startswith("20")


@pytest.mark.parametrize(("programs", "code"), [((FAILS, PRINTS), 3), (("print('none')",), 1)])
def test_a_turn_that_fails_or_tests_nothing_goes_on_to_its_end_and_writes_no_line(
    page: Path, capfd: pytest.CaptureFixture[str], programs: tuple[str, ...], code: int
) -> None:
    it = turn(*programs)
    assert rotation.run(it, page) == code
    told = capfd.readouterr().out
    assert f"--- rotation: {it.name}: failed" in told
    assert ("41 passed" in told) == (PRINTS in programs)
    assert page.read_text() == PAGE


def test_what_is_no_turn_is_an_error_with_the_next_step() -> None:
    command = [sys.executable, "-m", "tests.rotation", "never-heard-of"]
    done = subprocess.run(command, cwd=rotation.PROJECT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("rotation: no turn 'never-heard-of'. Next: name one of containerd-2.0, ")

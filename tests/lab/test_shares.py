"""Every test of the guest runs on each machine that it is for, and none twice, however its files are dealt out."""

from pathlib import Path

import pytest

from tests.lab import shares
from tests.lab.machine import MODELS, SMALL, SRIOV, Model
from tests.lab.reports import Case
from tests.lab.shares import Part

ALL = tuple(MODELS.values())
A, B, C, D = (f"test_{letter}.py" for letter in "abcd")


@pytest.fixture(scope="module")
def parts() -> tuple[Part, ...]:
    """What `python -m tests.lab` runs on two cores."""
    return shares.plan(ALL, 2, shares.guest_files(), shares.load())


def test_every_machine_is_in_the_plan(parts: tuple[Part, ...]) -> None:
    assert {part.model.name for part in parts} == set(MODELS)


def test_the_machine_that_takes_longest_is_in_both_slots(parts: tuple[Part, ...]) -> None:
    assert {part.name for part in parts if part.model is SMALL} == {"small-1", "small-2"}


def test_two_slots_end_within_a_tenth_of_each_other(parts: tuple[Part, ...]) -> None:
    free = [0.0, 0.0]
    for part in parts:
        free[free.index(min(free))] += part.seconds
    assert max(free) < 1.1 * min(free)


def planned(models: tuple[Model, ...], slots: int, seconds: shares.Seconds) -> dict[str, tuple[str, ...]]:
    """What each part is given, in the order in which they begin."""
    found = shares.plan(models, slots, (A, B, C, D), seconds)
    return {part.name: tuple(word.replace(f"{shares.GUEST}/", "") for word in part.selection) for part in found}


def test_the_last_share_runs_what_the_others_do_not_name() -> None:
    seconds = {"small": {A: 100.0, B: 200.0, C: 300.0}}
    assert planned((SMALL,), 2, seconds) == {"small-1": (C,), "small-2": (shares.GUEST, f"--ignore={C}")}


def test_what_the_other_machines_take_is_left_to_their_slot() -> None:
    seconds = {"small": {A: 100.0, B: 100.0, C: 100.0, D: 100.0}, "sriov": {A: 150.0}}
    assert planned((SMALL, SRIOV), 2, seconds) == {
        "small-2": (shares.GUEST, f"--ignore={C}"),
        "sriov": (shares.GUEST,),
        "small-1": (C,),
    }


def test_one_slot_has_no_shares() -> None:
    assert planned((SMALL, SRIOV), 1, {"small": {A: 900.0, B: 900.0}}) == {
        "small": (shares.GUEST,),
        "sriov": (shares.GUEST,),
    }


def test_a_machine_that_takes_no_longer_than_the_others_is_one() -> None:
    assert list(planned((SMALL, SRIOV), 2, {"small": {A: 90.0, B: 90.0}, "sriov": {A: 180.0}})) == ["small", "sriov"]


def test_a_file_that_nobody_has_measured_is_in_the_plan_and_one_that_is_gone_is_not() -> None:
    seconds = {"small": {A: 300.0, B: 290.0, "test_gone.py": 600.0}}
    plan = planned((SMALL,), 2, seconds)
    assert plan == {"small-1": (A,), "small-2": (shares.GUEST, f"--ignore={A}")}  # which is B, C and D


def test_what_tests_took_is_written_down_as_it_is_read(tmp_path: Path) -> None:
    def took(part: str, file: str, seconds: float) -> Case:
        return Case(part=part, file=file, name="test", seconds=seconds, rows=())

    table = tmp_path / "durations.toml"
    table.write_text(shares.durations([took("small-1", A, 1.2), took("small-2", A, 2.0), took("sriov", B, 7.0)]))
    assert shares.load(table) == {"small": {A: 3}, "sriov": {B: 7}}

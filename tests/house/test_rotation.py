"""The rotation of CI: every runtime and kernel has its turn, by the day alone, and what it names is there."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta

import pytest

from tests import rotation
from tests.cluster.__main__ import SMOKE
from tests.lab.recipe import DEFAULT_KERNEL, KERNELS
from tests.rig.build_runtimes import SOURCES

FIRST = date(2026, 1, 1)


def test_six_days_have_each_runtime_each_kernel_and_the_cluster_once() -> None:
    wanted = {name: name for name in rotation.RUNTIMES}
    wanted |= {f"kernel {it} in the lab": it for it in rotation.KERNELS} | {"a real Kubernetes": "tests.cluster"}
    turns = {it.name: it for it in (rotation.turn_of(FIRST + timedelta(days=number)) for number in range(6))}
    assert set(turns) == set(wanted)
    for name, turn in turns.items():
        assert wanted[name] in [word for command in turn.commands for word in command]


def test_it_has_every_runtime_that_is_built_and_every_kernel_that_is_not_the_labs_own() -> None:
    assert set(rotation.RUNTIMES) == set(SOURCES)
    assert set(rotation.KERNELS) == set(KERNELS) - {DEFAULT_KERNEL}


def test_the_guests_files_are_there() -> None:
    folder = rotation.PROJECT / "tests/lab/guest"
    assert [name for name in rotation.GUEST_FILES if not (folder / name).exists()] == []


def test_the_clusters_smoke_is_there() -> None:
    assert [name for name in SMOKE if not (rotation.PROJECT / name).exists()] == []


def test_the_environment_names_another_day_than_today() -> None:
    assert rotation.chosen_day({rotation.DAY: "2026-02-03"}) == date(2026, 2, 3)
    assert abs(rotation.chosen_day({}) - datetime.now(UTC).date()) <= timedelta(days=1)  # midnight may pass
    with pytest.raises(ValueError, match="someday"):
        rotation.chosen_day({rotation.DAY: "someday"})


def test_what_is_no_day_is_an_error_with_the_next_step() -> None:
    command = [sys.executable, "-m", "tests.rotation"]
    environment = {**os.environ, rotation.DAY: "2026-13-01"}
    done = subprocess.run(command, cwd=rotation.PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"rotation: {rotation.DAY}: ")
    assert "Next: give a day such as " in done.stderr


def test_a_turn_goes_on_after_a_failure_and_ends_with_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    say = (sys.executable, "-c")
    commands = ((*say, "print('one')"), (*say, "import sys; sys.exit(3)"), (*say, "print('three')"))
    assert rotation.run(rotation.Turn(day=date(2026, 11, 23), name="three", commands=commands)) == 3
    told = capfd.readouterr().out
    assert "one\n" in told
    assert "three\n" in told
    assert told.startswith("--- rotation of 2026-11-23: ")
    assert told.endswith("failed; to repeat it: NRI_RDMA_ROTATION=2026-11-23 make rotation\n")

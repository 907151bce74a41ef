"""The tables of outcomes are whole, and say nowhere that a container starts incomplete but where that is known."""

import re
import shutil
from itertools import pairwise, product
from pathlib import Path

import pytest

from tests.rig.outcomes import ASKS, RUNTIMES, SITUATIONS, why_impossible
from tests.rig.outcomes_page import PAGE, expected, read, write

INCOMPLETE = {"cdi", "unguarded", "unguarded-unnamed"}
"""What has no guard: docs/outcomes.md says why."""
WHOLE = re.compile(r"complete|refused: [A-Z-]+( in the system's log)?, then complete")


def test_the_page_has_containerd_crio_podman_and_docker() -> None:
    assert read().keys() >= {
        "containerd-1.7",
        "containerd-2.0",
        "containerd-2.1",
        "containerd-2.3",
        "containerd-2.4",
        "cri-o-1.36",
        "podman-bookworm-runc",
        "podman-bookworm-crun",
        "podman-trixie-runc",
        "podman-trixie-crun",
        "podman-forky-runc",
        "podman-forky-crun",
        "docker-forky",
    }


@pytest.mark.parametrize("runtime", [name for name in RUNTIMES if name.startswith(("podman-", "docker-"))])
def test_containers_of_podman_and_docker_ask_by_annotation_as_well_as_by_cdi_device(runtime: str) -> None:
    for situation in SITUATIONS:
        assert ("annotation" in expected(runtime, situation)) == ("cdi" in expected(runtime, situation)), situation
    assert expected(runtime, "runs")["annotation"] == "complete"


@pytest.mark.parametrize("runtime", read())
def test_every_cell_is_known_and_only_what_has_no_guard_starts_incomplete(runtime: str) -> None:
    for situation, ask in product(SITUATIONS, ASKS):
        cell = expected(runtime, situation).get(ask)
        if why_impossible(runtime, situation, ask):
            assert cell is None, (situation, ask)
            continue
        if ask == "nothing":
            allowed = re.compile("runs")
        elif situation in {"runs", "upgraded"}:
            allowed = re.compile("complete")
        elif ask in INCOMPLETE and runtime.startswith(("containerd-", "cri-o-")):
            allowed = re.compile(r"\*\*starts (bare|without [a-z, ]+)\*\*, reported")
        else:
            allowed = WHOLE
        step = (
            "docs/outcomes.md has what a run saw: find out why a container started so, or whether the page was edited"
        )
        assert cell is not None and allowed.fullmatch(cell), f"{situation}, {ask}: {step}"


def test_the_page_is_as_it_is_written_from_its_own_tables(tmp_path: Path) -> None:
    page = tmp_path / "outcomes.md"
    shutil.copy(PAGE, page)
    write({}, page)
    assert page.read_text() == PAGE.read_text(), "run `python -m tests.rig.outcomes_page`, which writes the tables"


def test_each_heading_is_there_once_after_an_empty_line() -> None:
    lines = PAGE.read_text().splitlines()
    headings = [line for line in lines if line.startswith("#")]
    assert len(headings) == len({*headings})
    assert [line for before, line in pairwise(lines) if line.startswith("#") and before] == []

"""The tables of outcomes are whole, and say nowhere that a container starts incomplete but where that is known."""

import re
import shutil
from pathlib import Path

import pytest

from tests.rig.outcomes import ASKS, SITUATIONS, why_impossible
from tests.rig.outcomes_page import PAGE, expected, read, write

INCOMPLETE = {"cdi", "unguarded"}
"""What has no guard: docs/outcomes.md says why."""
WHOLE = re.compile(r"complete|refused: [A-Z-]+( in the system's log)?, then complete")
CELLS = [(runtime, situation, ask) for runtime in read() for situation in SITUATIONS for ask in ASKS]


def test_the_page_has_containerd_crio_podman_and_docker() -> None:
    assert read().keys() >= {
        "containerd-1.7",
        "containerd-2.1",
        "containerd-2.3",
        "cri-o-1.34",
        "podman-trixie-runc",
        "podman-trixie-crun",
        "docker-forky",
    }


@pytest.mark.parametrize(("runtime", "situation", "ask"), CELLS)
def test_every_cell_is_known_and_only_what_has_no_guard_starts_incomplete(
    runtime: str, situation: str, ask: str
) -> None:
    if why_impossible(runtime, situation, ask):
        assert ask not in expected(runtime, situation)
        return
    cell = expected(runtime, situation)[ask]
    if ask == "nothing":
        assert cell == "runs"
    elif situation in {"runs", "upgraded"}:
        assert cell == "complete"
    elif ask in INCOMPLETE and runtime.startswith(("containerd-", "cri-o-")):
        assert re.fullmatch(r"\*\*starts (bare|without [a-z, ]+)\*\*, reported", cell)
    else:
        assert WHOLE.fullmatch(cell)


def test_what_a_run_has_not_seen_stays_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "outcomes.md"
    shutil.copy(PAGE, page)
    before = read(page)
    write({"containerd-2.1": {"before": {"claim": "refused: OTHER, then complete"}}}, page)
    after = read(page)
    assert after["containerd-2.1"]["before"].pop("claim") == "refused: OTHER, then complete"
    before["containerd-2.1"]["before"].pop("claim")
    assert after == before
    assert page.read_text().count("containerd 2.1") == PAGE.read_text().count("containerd 2.1")

"""Tables of outcomes are written between their marks, once, and nothing else of the page changes."""

from pathlib import Path

import pytest

from tests.rig.outcomes_page import BEGIN, END, read, write

BEFORE = "# A page\n\nA sentence.\n\n"
AFTER = "\n\n## More\n\nThe last sentence.\n"
ROW = "| is killed before the pod comes | runs |"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """A page without tables: nothing but a line's end is between the marks."""
    made = tmp_path / "page.md"
    made.write_text(f"{BEFORE}{BEGIN}\n{END}{AFTER}")
    return made


def test_tables_are_written_between_the_marks(page: Path) -> None:
    write({"containerd-2.1": {"before": {"nothing": "runs"}}}, page)
    text = page.read_text()
    assert text.startswith(f"{BEFORE}{BEGIN}\n\n### containerd 2.1\n\n| the daemon | nothing |")
    assert text.endswith(f"\n\n{END}{AFTER}")
    assert text.count("### containerd 2.1\n") == text.count(f"{ROW} not run | not run |") == 1


def test_writing_again_changes_nothing(page: Path) -> None:
    seen = {name: {"before": {"nothing": "runs", "cdi": "complete"}} for name in ("containerd-2.1", "docker-forky")}
    write(seen, page)
    once = page.read_text()
    write(seen, page)
    assert page.read_text() == once
    write({}, page)
    assert page.read_text() == once


def test_a_run_of_one_runtime_changes_that_ones_rows_only(page: Path) -> None:
    write({name: {"before": {"nothing": "runs"}} for name in ("containerd-2.1", "containerd-2.3")}, page)
    assert "### containerd 2.1, containerd 2.3\n" in page.read_text()
    write({"containerd-2.3": {"before": {"claim": "complete"}}}, page)
    assert {name: table["before"] for name, table in read(page).items()} == {
        "containerd-2.1": {"nothing": "runs"},
        "containerd-2.3": {"nothing": "runs", "claim": "complete"},
    }
    first, second = page.read_text().split("### containerd 2.3\n")
    assert f"{ROW} not run | not run | not run |" in first.partition("### containerd 2.1\n")[2]
    assert f"{ROW} not run | not run | complete |" in second


@pytest.mark.parametrize(
    "text", ["", BEGIN, END, f"{END}\n{BEGIN}\n", f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n", f"{BEGIN}\n{BEGIN}\n{END}\n"]
)
def test_a_page_without_its_marks_is_refused_and_stays(page: Path, text: str) -> None:
    page.write_text(text)
    with pytest.raises(ValueError, match="needs one <!-- tables: begin --> and one <!-- tables: end --> after it"):
        write({"containerd-2.1": {"before": {"nothing": "runs"}}}, page)
    assert page.read_text() == text

"""The words of refusals as people read them, a file for each parser.

Texts change on purpose only: `NRI_RDMA_GOLDEN=write` writes the files anew, and the difference is for a person to read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def assert_as_before(name: str, told: Iterable[tuple[str, str]]) -> None:
    """Titles with what is told are the file of that name."""
    assert_in_file(FOLDER / name, "".join(f"# {title}\n{words}\n\n" for title, words in told))


def assert_in_file(path: Path, text: str) -> None:
    """The text is what the file has."""
    if os.environ.get("NRI_RDMA_GOLDEN") == "write":
        path.write_text(text)
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[0]
    step = f"If it is meant: NRI_RDMA_GOLDEN=write make test-one T={test}, then read `git diff`"
    assert text == path.read_text(), f"{path.name} is not what the code tells now. {step}"

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
    text = "".join(f"# {title}\n{words}\n\n" for title, words in told)
    if os.environ.get("NRI_RDMA_GOLDEN") == "write":
        (FOLDER / name).write_text(text)
    assert text == (FOLDER / name).read_text()

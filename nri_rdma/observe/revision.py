"""The commit that this program was made of, as a file in the package says: of an image, and of a wheel."""

from __future__ import annotations

from pathlib import Path

FILE = "REVISION"
"""The file in the package's folder; `python -m deploy.image` and hatch_build.py write it."""


def revision(folder: Path = Path(__file__).parents[1]) -> str:
    """Return the commit; "" where nobody knows."""
    try:
        return (folder / FILE).read_text().strip()
    except OSError:
        return ""

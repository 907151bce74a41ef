"""The git commit from which the program was built, read from a file in the package of an image or a wheel."""

from __future__ import annotations

from pathlib import Path

FILE = "REVISION"
"""The name of the file in the package's folder. `python -m deploy.image` and hatch_build.py write it."""


def revision(folder: Path = Path(__file__).parents[1]) -> str:
    """Return the git commit; "" if it is unknown."""
    try:
        return (folder / FILE).read_text().strip()
    except OSError:
        return ""

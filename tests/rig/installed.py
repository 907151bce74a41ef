"""The program as its users have it: the wheel of this tree, installed by pip into an environment of its own."""

import os
import subprocess
import sys
import venv
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
TTRPC = PROJECT / "wheels/pyttrpc"
"""The project of ttrpc's own wheel, which is made of the same sources."""


def install_wheel(folder: Path) -> Path:
    """The Python of a new environment below `folder` that has the wheel, its dependencies and nothing else of ours."""
    return make_environment(folder / "venv", build_wheel(PROJECT, folder))


def build_wheel(project: Path, folder: Path) -> Path:
    """Build the project's wheel into `folder`, where there may be an older one, and return its path."""
    for older in folder.glob("*.whl"):
        older.unlink()
    pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(project))
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path, *wheels: Path) -> Path:
    """Make a new environment with the wheels, what they depend on and nothing else, and return its Python."""
    venv.create(folder, with_pip=False)  # putting a pip into it takes longer than all the rest
    python = folder / "bin/python"
    pip("--python", str(python), "install", *map(str, wheels))
    return python


def clean_environment() -> dict[str, str]:
    """Without what would let the working tree be found."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def pip(*arguments: str) -> None:
    """Run pip, which keeps what it fetches in the cache; AssertionError with its words when it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments],
        cwd="/",
        env=clean_environment() | {"PIP_CACHE_DIR": str(PROJECT / ".cache/pip")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

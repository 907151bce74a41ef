"""The program as its users have it: the wheel of this tree, installed by pip into an environment of its own."""

import os
import subprocess
import sys
import venv
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]


def install_wheel(folder: Path) -> Path:
    """The Python of a new environment below `folder` that has the wheel, its dependencies and nothing else of ours."""
    _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(PROJECT))
    (wheel,) = folder.glob("nri_rdma-*.whl")
    venv.create(folder / "venv", with_pip=False)  # putting a pip into it takes longer than all the rest
    python = folder / "venv/bin/python"
    _pip("--python", str(python), "install", str(wheel))
    return python


def clean_environment() -> dict[str, str]:
    """Without what would let the working tree be found."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def _pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *arguments],
        cwd="/",
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

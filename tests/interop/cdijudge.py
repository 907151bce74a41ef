"""What the public Go library of CDI makes of files: runtimes read specs with it.

Everything Go fetches or builds stays in the cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any  # Any: the library's JSON

from tests.rig.cache import CACHE
from tests.rig.go import GoError, ensure_go

SOURCES = Path(__file__).parent / "go/cdi"
HOME = CACHE / "go"
BUILD_TIMEOUT_S = 540.0
_NO_NETWORK = ("dial tcp", "no such host", "i/o timeout", "TLS handshake", "module lookup disabled", "Forbidden")


class MissingError(Exception):
    """What this machine lacks to build the program, as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the library makes of one file: an error, or its spec as JSON and the least version for it."""

    error: str
    spec: dict[str, Any] | None
    minimum: str


def verdicts(folder: Path) -> dict[str, Verdict]:
    """Its verdict on each file of a folder, read alone. Raises MissingError."""
    return {name: Verdict(**item) for name, item in _ask("files", folder).items()}


def load(*folders: Path) -> dict[str, Any]:
    """Its `devices` by qualified name, and its `errors` by file, of folders in rising priority. Raises MissingError."""
    answer: dict[str, Any] = _ask("load", *folders)
    return answer


def inject(folder: Path, *devices: str) -> dict[str, Any]:
    """The OCI configuration of a container that asks for these devices, made from nothing. Raises MissingError."""
    answer: dict[str, Any] = _ask("inject", folder, *devices)
    return answer


def _ask(*arguments: str | Path) -> Any:
    done = subprocess.run([program(), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@cache
def program() -> Path:
    """The built program; the first time it takes up to a minute. Raises MissingError."""
    try:
        ensure_go()
    except GoError as error:
        raise MissingError(f"the Go library of CDI cannot be built: {error}") from error
    built = HOME / "programs" / "cdijudge"
    built.parent.mkdir(parents=True, exist_ok=True)
    nice = ["nice"] if shutil.which("nice") else []
    done = subprocess.run(
        [*nice, "go", "build", "-trimpath", "-o", str(built), "."],
        cwd=SOURCES,
        env=os.environ
        | {
            "GOPATH": str(HOME / "path"),
            "GOMODCACHE": str(HOME / "modules"),
            "GOCACHE": str(HOME / "build"),
            "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
            "GOTOOLCHAIN": "local",
            "GOWORK": "off",
            "CGO_ENABLED": "0",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )
    if done.returncode and any(phrase in done.stderr for phrase in _NO_NETWORK):
        raise MissingError(f"the Go module proxy cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return built

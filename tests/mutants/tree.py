"""Copies of the project in which mistakes are planted, so that the checkout stays as it is."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests import namespaces
from tests.mutants import chosen, reach
from tests.rig.cache import CACHE, PROJECT

FOLDER = CACHE / "mutants"
SUITES = ("tests/unit", "tests/contract", "tests/kernel")
"""What has to notice: the tests that need neither a container runtime nor the virtual machine."""
_BESIDE = ("tests/conftest.py", "tests/fakes/", "tests/parts.py", "tests/rig/", "tests/namespaces.py", "pyproject.toml")
_ONE_TEST_S = 60
_RUN_S = 1200
_REACH_S = 3600
_NOTHING_RAN = 5  # pytest.ExitCode.NO_TESTS_COLLECTED


@dataclass(frozen=True)
class Run:
    """How chosen tests ended."""

    passed: bool
    failed: tuple[str, ...]
    """Node ids; empty where pytest itself came to an end (a test that hung, an import that failed)."""


class Tree:
    """One copy. Tests in it run on a host of their own, where this machine can make one."""

    def __init__(self, number: int) -> None:
        self.path = FOLDER / f"tree-{number}"
        self._number = number
        self._own_host = not namespaces.why_not()
        shutil.rmtree(self.path, ignore_errors=True)
        for name in _files():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, target, follow_symlinks=False)
        (self.path / ".cache").symlink_to(CACHE)

    def measure(self, part: str, into: Path) -> bool:
        """Run every suite's tests of a part of the whole (`1/2`), and write into a file which lines each one runs.

        Returns whether all passed.
        """
        return self._pytest([*SUITES, f"--part={part}"], _REACH_S, {reach.FILE: str(into)})

    def run(self, tests: Sequence[str]) -> Run:
        """Run tests in this order until one fails."""
        listed = FOLDER / f"chosen-{self._number}"
        listed.write_text("\n".join(tests))
        passed = self._pytest(["-x", *_files_of(tests)], _RUN_S, {chosen.FILE: str(listed)})
        failed = listed.with_name(listed.name + chosen.FAILED)
        return Run(passed, tuple(failed.read_text().split("\n")[:-1]) if failed.exists() else ())

    def imports(self, tests: Sequence[str]) -> bool:
        """Tell whether the files of these tests can be imported."""
        return self._pytest(["--collect-only", *_files_of(tests)], _RUN_S, {})

    def _pytest(self, arguments: Sequence[str], seconds: float, more: dict[str, str]) -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", reach.__name__]
        command += ["-p", chosen.__name__, f"--timeout={_ONE_TEST_S}", "--timeout-method=thread", *arguments]
        command += [] if os.geteuid() == 0 else ["-m", "not root"]
        if self._own_host:
            command = namespaces.wrapped(command)
        environment = {**os.environ, "PYTHONPATH": str(self.path), "PYTHONDONTWRITEBYTECODE": "1", **more}
        kind = "measure" if reach.FILE in more else "log"
        with (FOLDER / f"{kind}-{self._number}").open("w") as log:
            try:
                done = subprocess.run(
                    command, cwd=self.path, env=environment, stdout=log, stderr=log, timeout=seconds, check=False
                )
            except subprocess.TimeoutExpired:
                return False
        return done.returncode in (0, _NOTHING_RAN)


def fingerprint() -> str:
    """Return a digest of everything that decides which test runs which line."""
    digest = hashlib.sha256()
    for name in _files():
        if name.startswith(("nri_rdma/", "hooks/", *SUITES, *_BESIDE)):
            digest.update(name.encode() + b"\0" + (PROJECT / name).read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _files_of(tests: Sequence[str]) -> dict[str, None]:
    return dict.fromkeys(test.partition("::")[0] for test in tests)


def _files() -> list[str]:
    """Return what git knows or would take, relative to the project."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in listed if (PROJECT / name).is_file()]

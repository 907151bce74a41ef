"""`python -m tests.rig.ttrpc_wheel`: builds ttrpc's own wheel into build/pyttrpc, and runs ttrpc's own tests on it.

They run unchanged, in a new environment that has the wheel, protobuf, and the tools of the tests.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.rig.installed import PROJECT, TTRPC, build_wheel, clean_environment, make_environment, pip

BUILT = PROJECT / "build/pyttrpc"
TESTS = "tests/unit/ttrpc"
PLUGIN = "tests.rig.ttrpc_as_wheel"


def main() -> int:
    """Build and test; the exit code is pytest's."""
    wheel = build_wheel(TTRPC, BUILT)
    with tempfile.TemporaryDirectory(prefix="pyttrpc-") as folder:
        python = make_environment(Path(folder) / "venv", wheel)
        pip("--python", str(python), "install", "--group", f"{PROJECT / 'pyproject.toml'}:test")
        code = run_tests(python)
    print(f"{wheel.relative_to(PROJECT)}: {'its tests pass' if code == 0 else 'its tests FAIL'}")
    return code


def run_tests(python: Path) -> int:
    """Run ttrpc's tests in the environment of this Python; conftest.py of the other tests is not for them."""
    options = ["-p", PLUGIN, "-p", "no:cacheprovider", "-q", f"--confcutdir={TESTS}"]
    return subprocess.run(
        [python, "-m", "pytest", *options, TESTS], cwd=PROJECT, env=clean_environment(), check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tests.image [-- PYTEST-ARGUMENTS]`: makes the images and runs what is in them (root)."""

import os
import subprocess
import sys

from tests.image.conftest import RUN
from tests.parts import PROJECT


def main(arguments: list[str]) -> int:
    """Run the tests; return pytest's exit code."""
    if os.geteuid() != 0:
        print("image-test: needs root, for a root folder of its own. Next: run it as root.", file=sys.stderr)
        return 1
    rest = arguments[1:] if arguments[:1] == ["--"] else arguments
    chosen = [] if any(it.startswith("tests/image/") for it in rest) else ["tests/image"]
    command = [sys.executable, "-m", "pytest", *chosen, *rest]
    return subprocess.run(command, cwd=PROJECT, env={**os.environ, RUN: "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

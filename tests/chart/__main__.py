"""`python -m tests.chart [-- PYTEST-ARGUMENTS]`: what helm makes of the chart, by Kubernetes' own schemas (no root).

helm is built once into the user's cache, and the schemas come from Python's index into the project's.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys

from tests.chart.conftest import RUN, SCHEMAS
from tests.cluster.errors import ClusterError
from tests.cluster.programs import ensure_helm
from tests.rig.cache import PROJECT

_PACKAGE = "kubernetes-validate==1.37.0"


def main(arguments: list[str]) -> int:
    """Run the tests; return pytest's exit code."""
    try:
        helm = ensure_helm()
        _ensure_schemas()
    except (ClusterError, subprocess.CalledProcessError) as error:
        print(f"chart-test: {error}", file=sys.stderr)
        return 1
    rest = arguments[1:] if arguments[:1] == ["--"] else arguments
    path = os.pathsep.join(filter(None, (str(SCHEMAS), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, RUN: str(helm), "PYTHONPATH": path}
    command = [sys.executable, "-m", "pytest", "tests/chart", *rest]
    return subprocess.run(command, cwd=PROJECT, env=environment, check=False).returncode


def _ensure_schemas() -> None:
    SCHEMAS.parent.mkdir(parents=True, exist_ok=True)
    with SCHEMAS.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not SCHEMAS.exists():
            fresh = SCHEMAS.with_suffix(".new")
            command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(fresh), _PACKAGE]
            subprocess.run(command, check=True)
            fresh.rename(SCHEMAS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

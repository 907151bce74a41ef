"""`python -m tests.oci [SUITE...] [-- PYTEST-ARGUMENTS]`: containers of real podman get their devices (root).

SUITE is a Debian suite whose container engines are fetched once into the cache: bookworm, trixie, forky; by default
trixie. The tests run in network, mount and process namespaces of their own, with all that they start.

With `--cost STARTS` it measures instead, in the first of the suites: cost.py.
"""

import argparse
import os
import subprocess
import sys

from tests import namespaces
from tests.lab.errors import LabError
from tests.oci.conftest import RUN
from tests.oci.roots import SUITES, TRIXIE, ensure_root

_PROCESSES = ("unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--propagation", "private")
_REAPER = "tests.oci.reaper"


def main() -> int:
    """Fetch what is missing and run the tests; returns the exit code."""
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(prog="python -m tests.oci", description=__doc__)
    parser.add_argument("suites", nargs="*", help="Debian suites")
    parser.add_argument("--cost", type=int, default=0, metavar="STARTS", help="measure so many starts of each kind")
    options = parser.parse_args(given[:at])
    known = [suite.name for suite in SUITES]
    if unknown := [name for name in options.suites if name not in known]:
        parser.error(f"there is no suite {unknown[0]}. Next: name one of {', '.join(known)}.")
    names = options.suites or [TRIXIE.name]
    if os.geteuid() != 0:
        print("oci: needs root, for namespaces. Next: run it as root.", file=sys.stderr)
        return 1
    try:
        for suite in SUITES:
            if suite.name in names:
                ensure_root(suite)
    except (LabError, subprocess.CalledProcessError) as error:
        print(f"oci: {error}", file=sys.stderr)
        return 1
    rest = given[at + 1 :]
    chosen = [] if any(it.startswith("tests/oci/") for it in rest) else ["tests/oci"]
    tests = [sys.executable, "-m", "pytest", *chosen, "-p", "no:cacheprovider", *rest]
    if options.cost:
        tests = [sys.executable, "-m", "tests.oci.cost", names[0], str(options.cost)]
    command = [*_PROCESSES, sys.executable, "-m", _REAPER, *namespaces.wrapped(tests)]
    return subprocess.run(command, env={**os.environ, RUN: ",".join(names)}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

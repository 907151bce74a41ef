"""`python -m tests.cluster [FILE...] [-- PYTEST-ARGUMENTS]`: the tests of tests/cluster, or of these files, on a real
Kubernetes. `--shell`: a prompt with kubectl instead; `--demo`: the chart is installed, used and removed.

KubeRay's operator, and helm with the image, are made only for the files that need them. NODES in the environment is the
number of nodes of the shell's cluster.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time

from tests import namespaces
from tests.cluster import demo, leaks
from tests.cluster.cluster import Cluster
from tests.cluster.errors import ClusterError
from tests.cluster.old_image import make_old_images
from tests.cluster.programs import ensure_helm, ensure_operator, ensure_programs
from tests.rig.build_runtimes import BuildError, ensure
from tests.rig.cache import CONTAINERD_2_3

FOLDER = "tests/cluster"
SETTLED_S = 60.0


def main() -> int:
    """Run the command; returns its exit code."""
    given = sys.argv[1:]
    at = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--shell", action="store_true", help="a prompt in a cluster that ends with it")
    parser.add_argument("--demo", action="store_true", help="install the chart, start pods, and remove it")
    parser.add_argument("files", nargs="*", help="files of tests/cluster; without any, all of them")
    options = parser.parse_args(given[:at])
    chosen = options.files or [FOLDER]
    if os.geteuid() != 0:
        print("cluster: needs root, for namespaces. Next: run it as root.", file=sys.stderr)
        return 1
    try:
        if leaks.RUN not in os.environ:
            ensure(CONTAINERD_2_3)  # outside: it needs the network
            ensure_programs()
            if options.demo or _has(chosen, "chart"):
                ensure_helm()
                _make_image()
            if not (options.demo or options.shell) and _has(chosen, "chart_upgrade"):
                make_old_images()
            if not (options.demo or options.shell) and _has(chosen, "kuberay"):
                ensure_operator()
            return _isolated([sys.executable, "-m", "tests.cluster", *given])
        if options.shell:
            return _shell()
        if options.demo:
            return demo.main()
    except (BuildError, ClusterError, namespaces.RefusedError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    tests = [sys.executable, "-m", "pytest", *chosen, "-p", "no:cacheprovider", *given[at + 1 :]]
    return subprocess.run(tests, check=False).returncode


def _isolated(command: list[str]) -> int:
    """Run a command in namespaces of its own, and compare the host before and after. What other programs of this
    machine make and remove meanwhile has SETTLED_S to go."""
    run = secrets.token_hex(2)
    before = leaks.look(run)
    ended = subprocess.run(namespaces.wrapped(command), env={**os.environ, leaks.RUN: run}, check=False)
    until = time.monotonic() + SETTLED_S
    while (found := leaks.left(before, leaks.look(run))) and time.monotonic() < until:
        time.sleep(1)
    for line in found:
        print(f"cluster: the host is not as it was: {line}", file=sys.stderr)
    if not found:
        print("cluster: the host is as it was: links, mounts, cgroups, processes, settings of the kernel")
    return ended.returncode or bool(found)


def _has(chosen: list[str], part: str) -> bool:
    """Tell whether files with this part in their names are among the tests."""
    return any(it == FOLDER or part in it for it in chosen)


def _make_image() -> None:
    """Make the image as `make image` does."""
    if subprocess.run([sys.executable, "-m", "deploy.image"], check=False).returncode:
        raise ClusterError("the image cannot be made: see above.")


def _shell() -> int:
    with Cluster(int(os.environ.get("NODES", "1"))) as cluster:
        print(f"cluster: ready: {cluster.times}; nodes: {', '.join(cluster.nodes)}; logs: {cluster.folder}/*/log")
        print("cluster: kubectl is there; `exit` ends the cluster")
        shell = os.environ.get("SHELL", "/bin/bash")
        return subprocess.run([shell], env={**os.environ, **cluster.environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

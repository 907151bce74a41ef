"""Holds a described node's links and trees in the machine that it runs in: `python -m tests.cluster.hardware NAME`."""

from __future__ import annotations

import json
import signal
import sys

from tests.rig.fabric import Fabric
from tests.rig.node import load


def main() -> None:
    """Make the node, print where its trees are, and hold it until SIGTERM."""
    with Fabric(load(sys.argv[1])) as fabric:
        print(json.dumps({"sysfs": str(fabric.sysfs), "dev": str(fabric.dev), "proc": str(fabric.proc)}), flush=True)
        signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    main()

"""Holds a described node's links and trees in the machine that it runs in: `python -m tests.cluster.hardware NAME`."""

from __future__ import annotations

import json
import signal
import sys

from tests.rig.fabric import Fabric
from tests.rig.node import load

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


def main() -> None:
    """Make the node, print where its trees are, and hold it until SIGTERM; SIGHUP brings lost links back."""
    with Fabric(load(sys.argv[1])) as fabric:
        print(json.dumps({"sysfs": str(fabric.sysfs), "dev": str(fabric.dev), "proc": str(fabric.proc)}), flush=True)
        while signal.sigwait(_SIGNALS) is signal.SIGHUP:
            fabric.bring_back()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    main()

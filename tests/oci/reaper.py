"""The first process of a process namespace: runs a command and waits for all that is left to it meanwhile.

Without it the processes that engines leave to the first one would stay as remains, and look alive to who counts them.
Its mount namespace, which must be its own, gets another /dev/shm: what rigs write down there names processes by numbers
that mean others outside (tests/rig/record.py), who would take the rigs for dead and remove them.
"""

import os
import subprocess
import sys


def main() -> int:
    """Run the command; returns its exit code."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm"], check=True)
    command = subprocess.Popen(sys.argv[1:])
    while True:
        pid, status = os.wait()
        if pid == command.pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())

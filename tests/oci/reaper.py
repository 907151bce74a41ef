"""The first process of a process namespace: runs a command and waits for all that is left to it meanwhile.

Without it the processes that engines leave to the first one would stay as remains, and look alive to who counts them.
"""

import os
import subprocess
import sys


def main() -> int:
    """Run the command; returns its exit code."""
    command = subprocess.Popen(sys.argv[1:])
    while True:
        pid, status = os.wait()
        if pid == command.pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())

"""What this process has open, to compare before and after."""

import os


def open_descriptors() -> set[tuple[str, str]]:
    """Return each descriptor's number and what it leads to; that of the look itself is not among them.

    What is there afterwards and was not before is left open. Compare with `<=`: sockets that earlier tests left to the
    collector or to a thread may go at any time.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a folder whose entries go while they are looked at
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))  # noqa: PTH115 - text is all that is compared
        except FileNotFoundError:
            continue
    return found

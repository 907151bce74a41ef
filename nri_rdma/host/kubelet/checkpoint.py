"""Reads the kubelet's checkpoint file of resource claims."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


def read_checkpoint(path: str) -> bytes:
    """Return the content of the kubelet's checkpoint file of resource claims; b"" if it does not exist or cannot be
    read.

    The kubelet replaces the file atomically. On a node that serves claims, the start of every pod waits for this
    function.
    """
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path would be made for every pod
            return file.readall()
    except FileNotFoundError:
        return b""
    except OSError as error:  # as if missing: no claim counts as prepared, and the guard refuses containers with claims
        log.warning("the kubelet's checkpoint cannot be read", extra={"path": path, "error": str(error)})
        return b""

"""The kubelet's checkpoint of claims, read as it is now."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)


def read_checkpoint(path: str) -> bytes:
    """Return the file's content; nothing where it is not there. The kubelet replaces it as a whole. Every pod of a node
    that serves claims waits for this."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path would be made for every pod
            return file.readall()
    except FileNotFoundError:
        return b""
    except OSError as error:  # as if it were not there: then no claim is prepared, and the guard refuses who has one
        log.warning("the kubelet's checkpoint cannot be read", extra={"path": path, "error": str(error)})
        return b""

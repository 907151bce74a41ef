"""The link to the runtime, as those see it who do not hold it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol


class Link(StrEnum):
    """The state of the registration with the runtime."""

    DISCONNECTED = "disconnected"
    CONNECTED = "connected"
    SYNCHRONIZED = "synchronized"
    NONE = "none"
    """There is no runtime with NRI here, and none is needed: podman or Docker asks by hooks."""


class Door(Protocol):
    """The owner of the sessions with the runtime: `Runner` connects to it, `Launched` was started by it."""

    @property
    def link(self) -> Link:
        """Return how far the present session is."""

    @property
    def last_error(self) -> str:
        """Say why there is no session, or why the last one ended; "" when all is well."""

    @property
    def last_error_at(self) -> float:
        """Since when that is the reason, in seconds since the epoch; 0 when all is well."""

    @property
    def launched(self) -> bool:
        """Return whether the runtime has started this process."""

    def run(self) -> None:
        """Serve until the end; blocks."""

    def stop(self) -> None:
        """Have `run` return, after the answers that are owed. For another thread."""

    def synchronized(self) -> None:
        """The runtime has told us its pods: from now on events come."""


def hooks_only(engines: Iterable[str]) -> str:
    """Return the sentence for people about a host on which only these engines ask, by their hooks."""
    return f"there is no runtime with NRI here, and our hook serves {' and '.join(engines)}"


def unsynchronized(link: str, socket: str, error: str) -> str:
    """Return the sentence for people about a link through which no events come; "" for one through which they do, and
    where nobody would send any."""
    if link in {Link.SYNCHRONIZED, Link.NONE}:
        return ""
    return f"the runtime is {link}, so that pods start without nri-rdma ({socket}){f': {error}' if error else ''}"

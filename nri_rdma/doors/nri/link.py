"""The link to the runtime, as those see it who do not hold it."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol


class Link(StrEnum):
    """The state of the registration with the runtime."""

    DISCONNECTED = "disconnected"
    CONNECTED = "connected"
    SYNCHRONIZED = "synchronized"


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


def unsynchronized(link: str, socket: str, error: str) -> str:
    """Return the sentence for people about a link through which no events come; "" for one through which they do."""
    if link == Link.SYNCHRONIZED:
        return ""
    return f"the runtime is {link}, so that pods start without nri-rdma ({socket}){f': {error}' if error else ''}"

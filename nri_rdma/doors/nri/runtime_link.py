"""The state of the connection to the runtime, for the code that reports it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol


class Link(StrEnum):
    """The state of the session with the runtime: not connected, connected, or synchronized (its pods are listed)."""

    DISCONNECTED = "disconnected"
    CONNECTED = "connected"
    SYNCHRONIZED = "synchronized"
    NONE = "none"
    """This host has no runtime with NRI and needs none: podman or Docker uses our OCI hook."""


class Door(Protocol):
    """The owner of the sessions with the runtime: `Runner`, which connects to the runtime, or `Launched`, for a plugin
    that the runtime started."""

    @property
    def link(self) -> Link:
        """Return the state of the session: not connected, connected or synchronized."""

    @property
    def last_error(self) -> str:
        """Return the reason why there is no session, or why the last one ended; "" without an error."""

    @property
    def last_error_at(self) -> float:
        """Return when `last_error` was first seen, in seconds since the epoch; 0 without an error."""

    @property
    def launched(self) -> bool:
        """Return whether the runtime started this process as its plugin."""

    def run(self) -> None:
        """Serve sessions. Blocks until `stop` is called, or until a runtime that started this process closes the
        connection."""

    def stop(self) -> None:
        """Make `run` return after the calls that have arrived are answered. Called from another thread."""

    def synchronized(self) -> None:
        """Note that the runtime has listed its pods, so that its events come from now on."""


def hooks_only(engines: Iterable[str]) -> str:
    """Return the sentence for a host that needs no NRI runtime, because only these engines (podman, Docker) use
    nri-rdma, through our OCI hook."""
    return f"there is no runtime with NRI here, and our hook serves {' and '.join(engines)}"


def unsynchronized(link: str, socket: str, error: str) -> str:
    """Return a sentence that says why no events of pods come; "" if they come, or if this host needs no runtime. `link`
    is the session's state, and `error` the reason for it."""
    if link in {Link.SYNCHRONIZED, Link.NONE}:
        return ""
    return f"the runtime is {link}, so that pods start without nri-rdma ({socket}){f': {error}' if error else ''}"

"""Keeps one session with the runtime alive: connects, and connects again after the runtime has restarted.

A plugin that was not started by the runtime must reconnect itself, and a restart of the runtime breaks every
connection. After a restart another socket with another inode is at the path. Therefore a runtime is identified by its
socket's inode, and a new one is tried without the pauses that the old one caused.

Law: there is at most one session; the old session is closed before a new one begins. It is closed as soon as a new
socket appears, so that the new runtime starts no pod without us.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from nri_rdma.doors.nri.pauses import ABSENT_S, Pauses, pieces
from nri_rdma.doors.nri.peer import peer_pid
from nri_rdma.doors.nri.runtime_link import Link
from nri_rdma.doors.nri.session import QUIET_S, Answers, RegistrationError, Session
from nri_rdma.wire.error import WireError

log = logging.getLogger(__name__)

UNNOTICED_S = 60.0
"""A connection on which no Synchronize comes is closed after this time.

The runtime registers its plugins one after the other, waits 5 s for each plugin that does not answer, and finishes
running calls before it synchronizes. With a shorter time we would lose our place in its queue.
"""

SocketId: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Connected:
    """A connection, and the identity of the socket to which it was made."""

    connection: socket.socket
    socket_id: SocketId


class SupersededError(Exception):
    """The session is useless, because another runtime has taken over the socket, or because the runtime ignores us."""


class Runner:
    """Holds the sessions with the runtime, one at a time. `run` blocks until another thread calls `stop`.

    `make_plugin` makes the handlers of one session from the runtime's process id (0: unknown). `clock` returns seconds.
    `wait` sleeps for some seconds, or until `stop` is called. `quiet_s` is the time without events after which the
    session is checked.
    """

    launched = False

    def __init__(
        self,
        socket_path: str,
        make_plugin: Callable[[int], Answers],
        *,
        name: str,
        index: str,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
        quiet_s: float = QUIET_S,
    ) -> None:
        self._socket_path = socket_path
        self._make_plugin = make_plugin
        self._name = name
        self._index = index
        self._stopped = threading.Event()
        self._clock = clock
        self._wait = wait or self._stopped.wait
        self._quiet_s = quiet_s
        self._session: Session | None = None
        self._was_synchronized = False
        self._was_absent = False
        """Whether no socket existed at the path in the last attempt."""
        self.link = Link.DISCONNECTED
        self.last_error = ""
        self.last_error_at = 0.0

    def run(self) -> None:
        """Serve one session after the other until `stop` is called.

        The pauses between sessions grow after sessions that fail. They do not grow while the socket does not exist, and
        a pause ends when another socket appears at the path.
        """
        known: SocketId | None = None
        pauses = Pauses()
        while not self._stopped.is_set():
            started = self._clock()
            connected = self._connect()
            if connected is None:
                self._wait(ABSENT_S)
                continue
            if connected.socket_id != known:
                known, pauses = connected.socket_id, Pauses()
            self._serve(connected, started + UNNOTICED_S)
            self.link = Link.DISCONNECTED
            self._pause(pauses.after(synchronized=self._was_synchronized, lasted_s=self._clock() - started), known)

    def stop(self) -> None:
        """End the session after the calls that have arrived are answered, and start no other session."""
        self._stopped.set()
        session = self._session
        if session is not None:
            session.finish()

    def synchronized(self) -> None:
        """Note that the runtime has listed its pods, so that its events come from now on."""
        self._was_synchronized = True
        self.link = Link.SYNCHRONIZED
        self.last_error, self.last_error_at = "", 0.0

    def _pause(self, pause_s: float, known: SocketId) -> None:
        for piece_s in pieces(pause_s):
            if self._stopped.is_set() or self._other_socket(known):
                return
            self._wait(piece_s)

    def _other_socket(self, known: SocketId) -> bool:
        """Return whether a socket other than `known` is now at the path; False if no socket is there."""
        found = _socket_id(self._socket_path)
        return found is not None and found != known

    def _connect(self) -> _Connected | None:
        before = _socket_id(self._socket_path)
        if before is None and self._was_absent:  # already logged; without NRI this happens 20 times a second
            return None
        self._was_absent = before is None
        with contextlib.ExitStack() as opened:
            connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                connection.connect(self._socket_path)
            except OSError as error:
                self._tell("runtime not reachable, trying again", f"{self._socket_path}: {error.strerror or error}")
                return None
            if before is None or self._other_socket(before):  # the socket was replaced while we connected: try again
                return None
            opened.pop_all()  # the session closes it from here on
        return _Connected(connection, before)

    def _serve(self, connected: _Connected, give_up_at: float) -> None:
        self._was_synchronized = False
        self.link = Link.CONNECTED
        plugin = self._make_plugin(peer_pid(connected.connection))
        session = Session(connected.connection, plugin, name=self._name, index=self._index)
        self._session = session
        if self._stopped.is_set():  # stop() came before the session existed, so it did not end it
            session.finish()
        try:
            session.run(lambda: self._look_after(connected, give_up_at), self._quiet_s)
            if not self._stopped.is_set():
                self._tell("the runtime closed the connection")
        except (RegistrationError, WireError, OSError, SupersededError) as error:
            if not self._stopped.is_set():
                self._tell("session ended", str(error))
        finally:
            self._session = None

    def _look_after(self, connected: _Connected, give_up_at: float) -> None:
        """Check a session in which no event has come for a while. Raises SupersededError if no event can come any more.

        That is the case if another runtime's socket is at the path now, or if the runtime has not synchronized before
        `give_up_at`, in seconds of the clock.
        """
        if self._other_socket(connected.socket_id):
            raise SupersededError("another runtime serves the socket now")
        if not self._was_synchronized and self._clock() >= give_up_at:
            raise SupersededError(f"the runtime took no notice of us for {UNNOTICED_S:.0f} s")

    def _tell(self, message: str, error: str = "") -> None:
        """Log why there is no session. A reason that was already logged is logged again only after a synchronized
        session."""
        why = error or message
        if why != self.last_error:
            log.warning(message, extra={"error": error} if error else {})
            self.last_error, self.last_error_at = why, time.time()


def _socket_id(path: str) -> SocketId | None:
    """Return device, inode and modification time of the socket; None if there is no socket. The time is needed because
    inode numbers are reused."""
    with contextlib.suppress(OSError, ValueError):
        found = os.stat(path)  # noqa: PTH116 - Path takes four times as long
        return found.st_dev, found.st_ino, found.st_mtime_ns
    return None

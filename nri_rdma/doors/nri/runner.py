"""Keeps one session alive: connects, and connects again when the runtime has restarted.

An external plugin is never started again by the runtime, and every connection breaks when the runtime restarts: the
socket has the same path and is another one. So a socket is known by its inode: another one is another runtime, which
has refused nothing yet, and which must not start pods while we listen to the one before it.

Law: there is one session at most; the one before is closed before the next is begun.
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

from nri_rdma.doors.nri.link import Link
from nri_rdma.doors.nri.pauses import ABSENT_S, Pauses, pieces
from nri_rdma.doors.nri.peer import peer_pid
from nri_rdma.doors.nri.session import QUIET_S, Answers, RegistrationError, Session
from nri_rdma.wire.error import WireError

log = logging.getLogger(__name__)

UNNOTICED_S = 60.0
"""After this long without Synchronize a connection is given up. The runtime takes its plugins one after the other, 5 s
for each that does not answer, and waits for running calls before it synchronizes: less would lose our place."""

SocketId: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Connected:
    """A connection, and which socket it is to."""

    connection: socket.socket
    socket_id: SocketId


class SupersededError(Exception):
    """The session leads nowhere: another runtime serves the socket by now, or this one takes no notice of us."""


class Runner:
    """Owns the sessions, one at a time. `run` blocks until `stop` is called from another thread.

    `make_plugin` gets the process id of the runtime (0 when it cannot be seen) and makes the handlers of one session.
    `clock` counts seconds, `wait` lets so many of them go by, or fewer when `stop` is called; `quiet_s` is how often a
    session in which nothing happens is looked after.
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
        """Whether there was nothing at the path at the last attempt."""
        self.link = Link.DISCONNECTED
        self.last_error = ""
        self.last_error_at = 0.0

    def run(self) -> None:
        """Serve sessions until stopped. Pauses grow after sessions that fail, not while the socket is absent, and end
        when another socket takes its place."""
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
        """End the session, after the answers that it owes, and do not start another."""
        self._stopped.set()
        session = self._session
        if session is not None:
            session.finish()

    def synchronized(self) -> None:
        """Called when the runtime has told us its pods: from now on events come."""
        self._was_synchronized = True
        self.link = Link.SYNCHRONIZED
        self.last_error, self.last_error_at = "", 0.0

    def _pause(self, pause_s: float, known: SocketId) -> None:
        for piece_s in pieces(pause_s):
            if self._stopped.is_set() or self._other_socket(known):
                return
            self._wait(piece_s)

    def _other_socket(self, known: SocketId) -> bool:
        """Tell whether the path leads to another socket; one that has gone is none yet."""
        found = _socket_id(self._socket_path)
        return found is not None and found != known

    def _connect(self) -> _Connected | None:
        before = _socket_id(self._socket_path)
        if before is None and self._was_absent:  # it was told why; on a host without NRI this happens 20 times a second
            return None
        self._was_absent = before is None
        with contextlib.ExitStack() as opened:
            connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                connection.connect(self._socket_path)
            except OSError as error:
                self._tell("runtime not reachable, trying again", f"{self._socket_path}: {error.strerror or error}")
                return None
            if before is None or self._other_socket(before):  # which of both is this? The next attempt is sure
                return None
            opened.pop_all()  # it is the session's now
        return _Connected(connection, before)

    def _serve(self, connected: _Connected, give_up_at: float) -> None:
        self._was_synchronized = False
        self.link = Link.CONNECTED
        plugin = self._make_plugin(peer_pid(connected.connection))
        session = Session(connected.connection, plugin, name=self._name, index=self._index)
        self._session = session
        if self._stopped.is_set():  # while we were connecting: nobody else ends this session
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
        """Nothing has come for a while. Raises SupersededError when nothing will."""
        if self._other_socket(connected.socket_id):
            raise SupersededError("another runtime serves the socket now")
        if not self._was_synchronized and self._clock() >= give_up_at:
            raise SupersededError(f"the runtime took no notice of us for {UNNOTICED_S:.0f} s")

    def _tell(self, message: str, error: str = "") -> None:
        """Log why there is no session, once until the reason changes or there was a session."""
        why = error or message
        if why != self.last_error:
            log.warning(message, extra={"error": error} if error else {})
            self.last_error, self.last_error_at = why, time.time()


def _socket_id(path: str) -> SocketId | None:
    """The socket's inode, and when it was made, because inodes' numbers are used again; None when there is nothing."""
    with contextlib.suppress(OSError, ValueError):
        found = os.stat(path)  # noqa: PTH116 - Path takes four times as long
        return found.st_dev, found.st_ino, found.st_mtime_ns
    return None

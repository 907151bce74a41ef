"""Keeps one session alive: connects, and connects again when the runtime has restarted.

An external plugin is never started again by the runtime, and every connection breaks when the runtime restarts: the
socket has the same path and is another one.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

from nri_rdma.nri.link import Link
from nri_rdma.nri.peer import peer_pid
from nri_rdma.nri.plugin import Plugin
from nri_rdma.nri.session import RegistrationError, Session
from nri_rdma.wire.error import WireError

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 30.0
ABSENT_PAUSE_S = 0.05
"""Between attempts to reach a socket that nobody serves: pods may start without us the moment it comes back."""
GOOD_SESSION_S = 5.0
"""After a synchronized session that lasted this long the next pause starts small again (docs/adr/0007)."""


class Runner:
    """Owns the sessions, one at a time. `run` blocks until `stop` is called from another thread.

    `make_plugin` gets the process id of the runtime (0 when it cannot be seen) and makes the handlers of one session.
    """

    launched = False

    def __init__(self, socket_path: str, make_plugin: Callable[[int], Plugin], *, name: str, index: str) -> None:
        self._socket_path = socket_path
        self._make_plugin = make_plugin
        self._name = name
        self._index = index
        self._stopped = threading.Event()
        self._session: Session | None = None
        self._was_synchronized = False
        self.link = Link.DISCONNECTED
        self.last_error = ""

    def run(self) -> None:
        """Serve sessions until stopped. Pauses grow after sessions that fail, not while the socket is absent."""
        pause = FIRST_PAUSE_S
        while not self._stopped.is_set():
            connection = self._connect()
            if connection is None:
                self._stopped.wait(ABSENT_PAUSE_S)
                continue
            started = time.monotonic()
            self._serve(connection)
            self.link = Link.DISCONNECTED
            if self._was_synchronized and time.monotonic() - started > GOOD_SESSION_S:
                pause = FIRST_PAUSE_S
            self._stopped.wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE_S)

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

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._socket_path)
        except OSError as error:
            connection.close()
            self._tell("runtime not reachable, trying again", f"{self._socket_path}: {error.strerror}")
            return None
        return connection

    def _serve(self, connection: socket.socket) -> None:
        plugin = self._make_plugin(peer_pid(connection))
        self._session = Session(connection, plugin, name=self._name, index=self._index)
        self._was_synchronized = False
        self.link = Link.CONNECTED
        if self._stopped.is_set():  # while we were connecting: nobody else ends this session
            self._session.finish()
        try:
            self._session.run()
            self._tell("the runtime closed the connection", "")
        except (RegistrationError, WireError, OSError) as error:
            if not self._stopped.is_set():
                self._tell("session ended", str(error))
        finally:
            self._session = None

    def _tell(self, message: str, error: str) -> None:
        if error != self.last_error or not error:
            log.warning(message, extra={"error": error})
        self.last_error = error

"""The door of a plugin that the runtime has started: one session, over a socket that is there from the start.

The settings come with Configure, after the registration: before that there is no daemon that could answer. When the
session ends the runtime has gone, or has dropped us, and starts us no second time: `run` returns for good.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Callable, Mapping

from nri_rdma.doors.nri.identity import SOCKET_VARIABLE, Identity
from nri_rdma.doors.nri.link import Link
from nri_rdma.doors.nri.peer import peer_pid
from nri_rdma.doors.nri.plugin import DEFAULT_REQUEST_TIMEOUT_S, abilities_in, answer_by
from nri_rdma.doors.nri.refusing import Refusing
from nri_rdma.doors.nri.session import Answers, Session
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError, RuntimeAnsweredError, SettingError
from nri_rdma.pb import nri_pb2 as pb
from nri_rdma.ttrpc.wire import Request

log = logging.getLogger(__name__)

Start = Callable[["Launched", str, float], Answers]
"""Makes the daemon from the text of Configure, by that moment of `time.monotonic`. Raises NriRdmaError."""


Asks = Callable[[Mapping[str, str]], bool]
"""Whether a pod with these annotations asks for devices."""


class Launched:
    """The one session; `start` is called at Configure, and the runtime is told what it raises.

    A runtime before NRI 0.7 ends when it is told an error there. It is told nothing, and pods that ask are refused with
    the error, unless another daemon answers this runtime: then that one serves them.
    """

    launched = True

    def __init__(self, connection: socket.socket, identity: Identity, start: Start, asks: Asks) -> None:
        self._start = start
        self._asks = asks
        self._plugin: Answers | None = None
        self._session = Session(connection, self, name=identity.name, index=identity.index)
        self.runtime_pid = peer_pid(connection)
        """Who made the connection; 0 when it cannot be seen."""
        self.link = Link.CONNECTED
        self.last_error = ""
        self.last_error_at = 0.0

    def run(self) -> None:
        """Register and answer until the runtime closes. Raises RegistrationError, WireError, OSError."""
        try:
            self._session.run()
        finally:
            self.link = Link.DISCONNECTED

    def stop(self) -> None:
        """End the session, after the answers that it owes."""
        self._session.finish()

    def synchronized(self) -> None:
        """Called when the runtime has told us its pods: from now on events come."""
        self.link = Link.SYNCHRONIZED

    def answer(self, request: Request) -> bytes:
        """The payload of the answer; raises as `Plugin.answer`, and what `start` raises."""
        if self._plugin is None:
            self._plugin = self._configured(request)
        return self._plugin.answer(request)

    def _configured(self, request: Request) -> Answers:
        if request.method != "Configure":
            raise NotReadyError(
                ErrorCode.NOT_READY, f"{request.method} came before Configure", hint="restart the runtime"
            )
        message = pb.ConfigureRequest.FromString(request.payload)
        budget_s = message.request_timeout / 1000 or DEFAULT_REQUEST_TIMEOUT_S
        try:
            return self._start(self, message.config, answer_by(request, budget_s))
        except NriRdmaError as error:
            if not abilities_in(message).before_0_7:
                raise
            log.critical(
                "not started, and this runtime would end if it were told: pods that ask are refused instead",
                extra={"error": str(error)},
            )
            asks = _nobody if isinstance(error, RuntimeAnsweredError) else self._asks
            return Refusing(error, asks)


def _nobody(_annotations: Mapping[str, str]) -> bool:
    return False


def inherited_socket(number: str) -> socket.socket:
    """The connection that the runtime has left open under this number. Raises SettingError when it is none.

    It is closed on exec from now on, and blocks, however the runtime made it.
    """
    try:
        fd = int(number)
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            raise _no_socket(number, "it is no socket")
        os.set_inheritable(fd, False)
        connection = socket.socket(fileno=fd)
        connection.setblocking(True)
    except (ValueError, OverflowError, OSError) as error:
        raise _no_socket(number, str(error)) from error
    return connection


def _no_socket(number: str, why: str) -> SettingError:
    return SettingError(
        ErrorCode.SETTING,
        f"{SOCKET_VARIABLE}={number!r} names no connection to the runtime: {why}",
        hint="leave this variable to the runtime; to connect to its socket: nri-rdma run",
    )

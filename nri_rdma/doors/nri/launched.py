"""The NRI session of a plugin that the runtime started: there is one session, over an inherited socket.

The settings come with Configure, after the registration, so the daemon is created only then. When the session ends, the
runtime has ended or dropped the plugin, and it will not start the plugin again; so `run` returns.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Callable, Mapping

from nri_rdma.doors.nri.identity import SOCKET_VARIABLE, Identity
from nri_rdma.doors.nri.peer import peer_pid
from nri_rdma.doors.nri.plugin import DEFAULT_REQUEST_TIMEOUT_S, abilities_in, answer_by
from nri_rdma.doors.nri.refusing import Refusing
from nri_rdma.doors.nri.runtime_link import Link
from nri_rdma.doors.nri.session import Answers, Session
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError, RuntimeAnsweredError, SettingError
from nri_rdma.pb import nri_pb2 as pb
from nri_rdma.ttrpc.wire import Request

log = logging.getLogger(__name__)

Start = Callable[["Launched", str, float], Answers]
"""Creates the daemon from the configuration text in Configure, before a deadline in seconds of `time.monotonic`. Raises
NriRdmaError if the daemon cannot be created."""


Asks = Callable[[Mapping[str, str]], bool]
"""Returns whether a pod with these annotations asks for devices."""


class Launched:
    """The one session with the runtime that started this plugin. `start` creates the daemon at Configure; if it fails,
    its error is the answer to Configure.

    A runtime before NRI 0.7 exits on such an answer. It gets a normal answer instead, and each pod that asks for
    devices is refused with the error later. No pod is refused if the error says that another daemon already serves this
    runtime.
    """

    launched = True

    def __init__(self, connection: socket.socket, identity: Identity, start: Start, asks: Asks) -> None:
        self._start = start
        self._asks = asks
        self._plugin: Answers | None = None
        self._session = Session(connection, self, name=identity.name, index=identity.index)
        self.runtime_pid = peer_pid(connection)
        """The id of the process that made the connection; 0 if it is in a PID namespace that we cannot see."""
        self.link = Link.CONNECTED
        self.last_error = ""
        self.last_error_at = 0.0

    def run(self) -> None:
        """Register, and answer calls until the runtime closes the connection.

        Raises RegistrationError if the runtime refuses us, WireError if it violates the protocol, and OSError if the
        connection breaks.
        """
        try:
            self._session.run()
        finally:
            self.link = Link.DISCONNECTED

    def stop(self) -> None:
        """End the session after the calls that have arrived are answered."""
        self._session.finish()

    def synchronized(self) -> None:
        """Note that the runtime has listed its pods, so that its events come from now on."""
        self.link = Link.SYNCHRONIZED

    def answer(self, request: Request) -> bytes:
        """Return the payload of the answer to a call. The first call must be Configure, at which the daemon is created.

        Raises NriRdmaError if the daemon cannot be created or refuses the call, UnknownMethodError or DecodeError for a
        call that it cannot serve, and WireError to end the session.
        """
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
                "not started, and an error would make this runtime exit: pods that ask are refused instead",
                extra={"error": str(error)},
            )
            asks = _nobody if isinstance(error, RuntimeAnsweredError) else self._asks
            return Refusing(error, asks)


def _nobody(_annotations: Mapping[str, str]) -> bool:
    return False


def inherited_socket(number: str) -> socket.socket:
    """Return the connection to the runtime, which this process inherited under the file descriptor `number`. The
    connection is set to blocking mode and close-on-exec.

    Raises SettingError if the descriptor is not a socket.
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

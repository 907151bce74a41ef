"""One NRI connection, from its start to its end.

One thread reads and answers, because the runtime sends one event at a time and waits for the answer. Work that blocks
on the kernel is done by worker threads; a handler waits for them, but not longer than its deadline. After the end of a
connection, its objects are thrown away and a new connection gets new ones.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import DecodeError

from nri_rdma.doors.nri.messages import NRI_VERSION, PLUGIN_SERVICE, RUNTIME_SERVICE
from nri_rdma.doors.nri.plugin import UnknownMethodError
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError, PlacementError, RequestError
from nri_rdma.pb import nri_pb2 as pb
from nri_rdma.ttrpc.wire import ClientConnection, Code, Rejected, Request, Response, ServerConnection
from nri_rdma.ttrpc.wire.error import ProtocolError
from nri_rdma.wire.error import WireError
from nri_rdma.wire.mux import PLUGIN_SERVICE_CONN, RUNTIME_SERVICE_CONN, MuxDecoder, encode_message

log = logging.getLogger(__name__)

_RECEIVE_SIZE = 64 << 10
"""Size of the receive buffer. From 128 KiB on, glibc may map and unmap the buffer for each call: 31 us per event
instead of 18 (bench/floor.py)."""
QUIET_S = 1.0
"""Seconds without events after which a session is checked."""
_REGISTER_TIMEOUT_NS = 5_000_000_000  # NRI's default


class RegistrationError(Exception):
    """The runtime refused to register this plugin."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The error answer to a call."""

    code: Code
    text: str


class Answers(Protocol):
    """A plugin that answers the runtime's calls."""

    def answer(self, request: Request) -> bytes:
        """Return the payload of the answer to a call.

        Raises NriRdmaError, UnknownMethodError or DecodeError if the call fails, and WireError if the session must end.
        Any other exception is a bug of ours.
        """


class Session:
    """One session of a plugin over one socket. `run` blocks until the connection ends; another thread may call `finish`
    to end it."""

    def __init__(self, connection: socket.socket, plugin: Answers, *, name: str, index: str) -> None:
        self._socket = connection
        self._plugin = plugin
        self._name = name
        self._index = index
        self._server = ServerConnection()
        self._client = ClientConnection()

    def run(self, on_quiet: Callable[[], None] = lambda: None, quiet_s: float = 0.0) -> None:
        """Register, and answer calls until the runtime closes the connection.

        `on_quiet` is called after each `quiet_s` seconds without data (0: never); it may raise to end the session.
        Raises RegistrationError if the runtime refuses us, WireError if it violates the protocol, and OSError if the
        connection breaks.
        """
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(quiet_s))
            self._register()
            self._serve(on_quiet)
        except ProtocolError as error:  # one error type for a peer that violates a protocol
            raise WireError(str(error)) from error
        finally:
            self._socket.close()

    def finish(self) -> None:
        """End the session from another thread: the calls that have arrived are answered, then `run` returns.

        If a call were not answered, the runtime would go on as if the pod had asked for nothing.
        """
        with contextlib.suppress(OSError):  # the connection has already ended
            self._socket.shutdown(socket.SHUT_RD)

    def _register(self) -> None:
        """Send the registration. Its answer is read in `_serve`, because the runtime may send Configure before it."""
        message = pb.RegisterPluginRequest(plugin_name=self._name, plugin_idx=self._index, NRI_version=NRI_VERSION)
        _, data = self._client.request(
            RUNTIME_SERVICE, "RegisterPlugin", message.SerializeToString(), timeout_ns=_REGISTER_TIMEOUT_NS
        )
        self._send(RUNTIME_SERVICE_CONN, data)

    def _serve(self, on_quiet: Callable[[], None]) -> None:
        trunk, receive = MuxDecoder(), self._socket.recv
        while True:
            try:
                data = receive(_RECEIVE_SIZE)
            except BlockingIOError:  # SO_RCVTIMEO has expired; a timeout of Python's would cost a poll per event
                on_quiet()
                continue
            if not data:
                return
            for conn, piece in trunk.receive_data(data):
                if conn == PLUGIN_SERVICE_CONN:
                    self._take_calls(piece)
                else:
                    self._take_answers(piece)

    def _take_calls(self, piece: bytes) -> None:
        self._server.receive_data(piece)
        while (event := self._server.next_event()) is not None:
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Rejected):  # no other event: we open no streams
                self._send(PLUGIN_SERVICE_CONN, event.reply)

    def _take_answers(self, piece: bytes) -> None:
        self._client.receive_data(piece)
        while (response := self._client.next_event()) is not None:
            if isinstance(response, Response) and response.code:  # RegisterPlugin is the only call we make
                raise RegistrationError(response.message)

    def _answer(self, request: Request) -> None:
        outcome = self._outcome(request)
        if isinstance(outcome, _Failure):
            frame = self._server.fail(request.stream_id, outcome.code, outcome.text)
        else:
            frame = self._server.respond(request.stream_id, outcome)
        self._send(PLUGIN_SERVICE_CONN, frame)

    def _outcome(self, request: Request) -> bytes | _Failure:
        """Return the payload of the answer, or the failure to report."""
        if request.service != PLUGIN_SERVICE:
            return _Failure(Code.UNIMPLEMENTED, f"service {request.service}")
        try:
            return self._plugin.answer(request)
        except UnknownMethodError:
            return _Failure(Code.UNIMPLEMENTED, f"method {request.method}")
        except NriRdmaError as error:
            if not error.is_logged:  # the engine has logged refusals together with their pod
                log.warning("refused", extra={"call": request.method, "code": str(error.code), "error": str(error)})
            return _Failure(status_code(error), error.for_author)
        except DecodeError as error:
            log.warning(
                "the runtime sent a message that cannot be decoded", extra={"call": request.method, "error": str(error)}
            )
            return _Failure(Code.INVALID_ARGUMENT, f"{request.method} cannot be read: {error}")
        except WireError:
            raise
        except Exception as error:
            log.exception("bug in a handler", extra={"call": request.method})
            return _Failure(Code.INTERNAL, str(_bug(error)))

    def _send(self, conn: int, message: bytes) -> None:
        self._socket.sendall(encode_message(conn, message))


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("ll", whole, int((seconds - whole) * 1e6))  # struct timeval


def _bug(error: Exception) -> NriRdmaError:
    what = f"{type(error).__name__}: {error}"
    return NriRdmaError(ErrorCode.INTERNAL, what, hint="report this with the daemon's log")


def status_code(error: NriRdmaError) -> Code:
    """Return the gRPC code for an error. It is never UNIMPLEMENTED, because the runtime would conclude that the plugin
    lacks the method."""
    match error:
        case RequestError():
            return Code.INVALID_ARGUMENT
        case NotReadyError():
            return Code.UNAVAILABLE
        case PlacementError(code=ErrorCode.DEVICES_EXHAUSTED):
            return Code.RESOURCE_EXHAUSTED
        case PlacementError():
            return Code.FAILED_PRECONDITION
        case _:
            return Code.INTERNAL


__all__ = ["RegistrationError", "Session", "WireError", "status_code"]

"""The socket of the OCI hooks of podman and Docker, in the state directory. Only root can use it, and each connection
carries one question.

The hook sends one packet with the question and a descriptor of the container's network namespace. It gets two packets:
one at once, which shows that the daemon is alive, and later the answer. The listening thread reads the question, and a
worker thread answers it.
"""

from __future__ import annotations

import array
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from nri_rdma.doors.oci.questions import (
    HEARD,
    LONGEST,
    Given,
    HookQuestion,
    Prepared,
    Verb,
    made_with,
    no,
    read_question,
    yes,
)
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.observe.durations import Durations, measured
from nri_rdma.tasks.listeners import Listeners, Source
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

WORKERS = 8
"""Maximum number of questions that are answered at the same time, so that one container's attach does not delay
others."""
MAX_CALLERS = 128
"""Maximum number of connections that have not sent their question yet."""
PATIENCE_S = 2.0
"""How long a hook may take to send its question."""
_BACKLOG = 128
_HOOKS = {Verb.PREPARE: "precreate", Verb.ATTACH: "createRuntime", Verb.RETURN: "poststop"}
_CREDENTIALS = struct.Struct("=iII")  # struct ucred, include/linux/socket.h


class Answering(Protocol):
    """An object that answers the questions of hooks in a worker's thread, such as
    nri_rdma.doors.oci.containers.Containers. Its methods raise NriRdmaError if a container is refused."""

    def prepare(self, question: HookQuestion, namespace: int | None) -> Prepared: ...

    def attach(self, question: HookQuestion, namespace: int) -> Given: ...

    def give_back(self, question: HookQuestion) -> Given: ...


class HookServer:
    """The server of the hooks' socket. `serve` starts it and `close` ends it."""

    def __init__(self, containers: Answering, listeners: Listeners, calls: Durations | None = None) -> None:
        """`calls` counts the questions by hook, with their durations; None: they are not counted."""
        self._containers = containers
        self._listeners = listeners
        self._calls = calls
        self._workers: Workers | None = None
        self._callers: set[_Caller] = set()
        self._path: Path | None = None
        self._socket: socket.socket | None = None
        self._source: Source | None = None

    def serve(self, path: Path) -> None:
        """Listen at the path and return at once. Raises OSError if the socket cannot be made."""
        path.unlink(missing_ok=True)  # left by a killed daemon; nobody else uses the state directory
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listening.bind(os.fspath(path))
            path.chmod(0o600)
            listening.listen(_BACKLOG)
            listening.setblocking(False)
        except BaseException:
            listening.close()
            raise
        self._path, self._socket = path, listening
        self._source = Source(name="oci hooks", fd=listening.fileno(), read=self._accept)
        self._listeners.add(self._source)

    def close(self, within_s: float) -> None:
        """Stop listening, and wait up to `within_s` seconds for running answers. Call it before the engine's workers
        are closed."""
        if self._source is not None and self._socket is not None and self._path is not None:
            self._listeners.remove(self._source)
            self._socket.close()
            self._path.unlink(missing_ok=True)
            self._source = self._socket = self._path = None
        for caller in tuple(self._callers):
            self._listeners.remove(caller.source)
            caller.close()
        self._callers.clear()
        running = self._workers.close(within_s) if self._workers is not None else ()
        if running:
            log.warning("hooks are still being answered", extra={"containers": list(running)})

    # -- in the listening thread -------------------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._socket is not None  # the listener calls this only while the socket is open
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return
        connection.setblocking(False)
        if _user_of(connection) != 0 or len(self._callers) >= MAX_CALLERS:
            connection.close()
            return
        with suppress(OSError):  # the hook has already closed
            connection.send(HEARD)
        caller = _Caller(connection, self._ask, self._forget)
        self._callers.add(caller)
        self._listeners.add(caller.source)

    def _forget(self, caller: _Caller) -> None:
        self._listeners.remove(caller.source)
        self._callers.discard(caller)

    def _ask(self, caller: _Caller, data: bytes, descriptors: tuple[int, ...]) -> None:
        """Parse a question and have a worker answer it."""
        self._forget(caller)
        try:
            question = read_question(data)
        except NriRdmaError as error:
            log.warning("a hook's question was refused", extra={"error": str(error)})
            _close_all(descriptors)
            caller.answer(no(str(error)))
            return
        except Exception as error:  # a bug; this thread must go on for other hooks
            log.exception("a hook's question was not read")
            _close_all(descriptors)
            caller.answer(no(str(_bug(error, "nri-rdma-oci-hook"))))
            return

        def work() -> None:
            try:
                caller.answer(self._answer(question, descriptors))
            finally:
                _close_all(descriptors)

        if self._workers is None:  # started late, since most nodes have no containers with this hook
            self._workers = Workers(WORKERS, name="oci")
        if self._workers.submit(question.container_id, work).cancelled():
            _close_all(descriptors)
            caller.close()

    # -- in a worker -------------------------------------------------------------------------------------------------

    def _answer(self, question: HookQuestion, descriptors: tuple[int, ...]) -> bytes:
        try:
            return measured(self._calls, _HOOKS[question.verb], lambda: self._made_or_done(question, descriptors))
        except NriRdmaError as error:
            if not error.is_logged:
                log.warning("refused", extra={"container": question.container_id, "error": str(error)})
            return no(str(error))
        except Exception as error:  # a bug: the container must not start
            log.exception("a hook's question was not answered", extra={"container": question.container_id})
            return no(str(_bug(error, question.container_id)))

    def _made_or_done(self, question: HookQuestion, descriptors: tuple[int, ...]) -> bytes:
        if question.verb is Verb.PREPARE:
            return made_with(self._containers.prepare(question, descriptors[0] if descriptors else None))
        return yes(self._done(question, descriptors))

    def _done(self, question: HookQuestion, descriptors: tuple[int, ...]) -> Given:
        if question.verb is Verb.RETURN:
            return self._containers.give_back(question)
        if len(descriptors) != 1:
            what, hint = f"a hook sent {len(descriptors)} descriptors with its question", "install hook and daemon anew"
            raise NriRdmaError(ErrorCode.OCI_STATE, what, where=question.container_id, hint=hint)
        return self._containers.attach(question, descriptors[0])


class _Caller:
    """A connection of a hook that has not sent its question yet."""

    def __init__(
        self,
        connection: socket.socket,
        on_asked: Callable[[_Caller, bytes, tuple[int, ...]], None],
        on_gone: Callable[[_Caller], None],
    ) -> None:
        self._connection = connection
        self._on_asked = on_asked
        self._on_gone = on_gone
        self._until = time.monotonic() + PATIENCE_S
        self.source = Source(
            name="oci hook", fd=connection.fileno(), read=self._read, due_at=lambda: self._until, settle=self._give_up
        )

    def answer(self, data: bytes) -> None:
        """Send the answer to the hook, and close the connection."""
        try:
            self._connection.setblocking(True)
            self._connection.settimeout(PATIENCE_S)
            self._connection.send(data)
        except OSError as error:  # the hook was killed; the end of the container is seen by its process
            log.warning("a hook did not wait for its answer", extra={"error": str(error)})
        finally:
            self.close()

    def close(self) -> None:
        self._connection.close()

    def _read(self) -> None:
        try:
            data, descriptors = _receive(self._connection)
        except BlockingIOError:
            return
        except OSError as error:
            log.warning("a hook's question was not received", extra={"error": str(error)})
            data, descriptors = b"", ()
        if data:
            self._on_asked(self, data, descriptors)
        else:
            _close_all(descriptors)
            self._give_up()

    def _give_up(self) -> None:
        self._on_gone(self)
        self.close()


def _bug(error: Exception, where: str) -> NriRdmaError:
    what, hint = f"{type(error).__name__} {error}", "report it with the daemon's log"
    return NriRdmaError(ErrorCode.INTERNAL, what, where=where, hint=hint)


def _user_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end of the connection."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(data)[1]
    return user


def _receive(connection: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    """Return a packet and the descriptors that came with it. The caller must close them. Raises OSError for a packet
    that is too large."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(2 * fds.itemsize)
    data, ancillary, flags, _ = connection.recvmsg(LONGEST, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        _close_all(tuple(fds))
        raise OSError("a packet that is too large")
    return data, tuple(fds)


def _close_all(descriptors: tuple[int, ...]) -> None:
    for fd in descriptors:
        os.close(fd)

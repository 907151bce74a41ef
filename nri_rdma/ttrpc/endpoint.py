"""A listening socket with its path, and a way to wake the thread that accepts connections."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import stat

log = logging.getLogger(__name__)


class Endpoint:
    """A listening socket, which it owns, with the file of its path. close() closes the socket and removes the file."""

    def __init__(self, listener: socket.socket, path: str | None = None) -> None:
        self.listener = listener
        """The non-blocking listening socket. Code that uses it directly instead of accept() still has to close the
        endpoint."""
        self.listener.setblocking(False)
        self._path = path
        self._identity = _identity(path) if path is not None else None
        self._waker, self._sleeper = socket.socketpair()

    def accept(self) -> socket.socket | None:
        """Return the next connection; None after wake(), or after another thread closed the socket."""
        poller = select.poll()
        poller.register(self._sleeper, select.POLLIN)
        poller.register(self.listener, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _events in poller.poll()}
            if self._sleeper.fileno() in ready:
                return None
            try:
                connection, _address = self.listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as exc:
                if exc.errno in (errno.EBADF, errno.EINVAL):
                    log.warning("the listening socket was closed from outside")
                    return None
                log.warning("accept failed", extra={"error": str(exc)})  # no descriptor is left: wait
                self._sleeper.settimeout(1.0)
                with contextlib.suppress(TimeoutError):
                    self._sleeper.recv(1, socket.MSG_PEEK)
                continue
            connection.setblocking(True)
            return connection

    def wake(self) -> None:
        """Make this and every later accept() return None."""
        with contextlib.suppress(OSError):  # already woken and closed
            self._waker.send(b"x")

    def close(self) -> None:
        """Stop listening, and remove the file, unless another server has replaced it."""
        self.listener.close()
        self._waker.close()
        self._sleeper.close()
        if self._path is not None:
            with contextlib.suppress(OSError):
                if _identity(self._path) == self._identity:
                    os.unlink(self._path)  # noqa: PTH108 - the socket module takes strings


def listen_unix(path: str, mode: int) -> Endpoint:
    """Listen on a Unix socket, whose file has the mode before anyone can connect. A socket file without a listener is
    replaced.

    Raises OSError: EADDRINUSE if another server listens there, EEXIST if the path is not a socket, or the error of
    bind.
    """
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        endpoint = Endpoint(listener, path)
    except BaseException:
        listener.close()
        raise
    os.chmod(path, mode)  # noqa: PTH101 - before listen, so nobody can have connected under another mode
    listener.listen()
    return endpoint


def adopted(given: socket.socket | int) -> socket.socket:
    """Return the socket, or a socket for the file descriptor, and make it close-on-exec. The caller owns it from now
    on."""
    if isinstance(given, int):
        given = socket.socket(fileno=given)
    given.set_inheritable(False)
    return given


def has_hung_up(descriptor: int) -> bool:
    """Return whether the peer of a connected Unix socket has closed it. What it sent before may be unread."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return bool(poller.poll(0))


def listens(given: socket.socket) -> bool:
    """Return whether the socket is a listening socket; False for a connection."""
    return bool(given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _remove_stale(path: str) -> None:
    """Remove a socket file without a listener. Raises OSError if a server listens there, or if the path is not a
    socket."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "in the way of the socket, and not a socket", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)  # a full backlog blocks, and shows that a server listens
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - the socket module takes strings
            return
        except TimeoutError:
            pass
    raise OSError(errno.EADDRINUSE, "another server listens here", path)


def name_path(error: OSError, path: str | os.PathLike[str]) -> None:
    """Add the path to an error of connect(2). Python's error for a Unix socket does not name the path."""
    if error.errno is not None:  # an error without errno is Python's own, such as for a path that is too long
        error.filename = os.fspath(path)

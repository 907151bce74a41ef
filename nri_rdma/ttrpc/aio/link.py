"""One connection in an event loop: bytes in and events out, frames in and bytes out, and the waiting of both sides.

Events are taken one at a time. One that cannot be taken yet, a message for a stream that is full or a call beyond those
that may run, is held, and nothing is read meanwhile: the peer's bytes wait in the kernel. Writers wait while the peer
does not read.
"""

from __future__ import annotations

import asyncio
from typing import Final, Generic, Protocol, TypeVar, cast

from ..error import ConnectionClosed

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)

HIGH_WATER: Final = 1 << 20
"""Most bytes that are written and not sent; from there on writers wait."""
WRITE_PATIENCE_S: Final = 10.0
"""Longest time in which the peer takes none of the written bytes; then it loses the connection."""

_RECEIVE_SIZE = 64 << 10
"""A plain asyncio.Protocol is given a new buffer of 256 KiB each time, for which glibc asks the kernel: 50 us here."""


class Source(Protocol[E_co]):
    """A ServerConnection or a ClientConnection (wire.ttrpc)."""

    def receive_data(self, data: bytes) -> None: ...
    def next_event(self) -> E_co | None: ...


class Link(asyncio.BufferedProtocol, Generic[E]):
    """The transport's end of a connection; take() and lost() are the subclass's."""

    def __init__(self, source: Source[E]) -> None:
        self._source = source
        self._transport: asyncio.Transport | None = None
        self._room = memoryview(bytearray(_RECEIVE_SIZE))
        self._gone: asyncio.Future[None] | None = None
        self._held: E | None = None
        self._is_reading = True
        self._is_blocked = False  # the transport holds bytes that the kernel did not take
        self._backlog: list[bytes] = []  # frames for when it does not
        self._backlog_size = 0
        self._may_write: asyncio.Future[None] | None = None  # while too much is not sent
        self._unsent_before = 0  # what the transport held at the last look
        self._patience: asyncio.TimerHandle | None = None
        self.closed: str | None = None
        """Why the connection has ended; None = it is open."""

    @property
    def is_connected(self) -> bool:
        """Return whether there is, or was, a socket."""
        return self._transport is not None

    def take(self, event: E) -> bool:
        """Take an event. False: the same event comes again at go_on()."""
        raise NotImplementedError

    def lost(self) -> None:
        """Handle the end of the connection; `closed` says why."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Take the events that are here, as far as they can be taken, and read on."""
        while self.closed is None and self._may_take():
            event = self._source.next_event() if self._held is None else self._held
            self._held = None if event is None or self.take(event) else event
            if event is None or self._held is not None:
                break
        self._read_as_we_take()

    def write(self, frame: bytes) -> None:
        """Send a frame, or keep it until the peer reads; wait for drained() before making the next one.

        The transport gets nothing while it holds something: it would add up all that it holds at each call.
        """
        if self._transport is None or self.closed is not None:
            return
        if not self._is_blocked:
            self._transport.write(frame)
        else:
            self._backlog.append(frame)
            self._backlog_size += len(frame)
            self._stop_writers_if_full()

    async def drained(self) -> None:
        """Wait while the peer does not read. Raises ConnectionClosed."""
        while self._may_write is not None and self.closed is None:
            await asyncio.shield(self._may_write)
        if self.closed is not None:
            raise ConnectionClosed(f"ttrpc connection: {self.closed}")

    def hang_up(self, reason: str, *, at_once: bool) -> None:
        """End the connection; written frames are still sent, unless at_once or the peer does not read them."""
        self._close(reason)
        if self._transport is None or self._gone is None or self._gone.done():
            return
        if at_once:
            self._transport.abort()
        else:
            self._transport.write(self._take_backlog())
            self._transport.close()
            self._patience = asyncio.get_running_loop().call_later(WRITE_PATIENCE_S, self._transport.abort)

    async def gone(self) -> None:
        """Wait until the socket is closed, if it was ever open."""
        if self._gone is not None:
            await asyncio.shield(self._gone)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gone = asyncio.get_running_loop().create_future()
        self._transport = cast("asyncio.Transport", transport)  # a Unix socket's
        self._transport.set_write_buffer_limits(0)  # tell us whenever the kernel does not take all

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._source.receive_data(bytes(self._room[:nbytes]))
        self.go_on()

    def eof_received(self) -> bool:
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self._close("closed by the peer" if exc is None else f"connection lost: {exc}")
        self._stop_looking()
        if self._gone is not None:
            self._gone.set_result(None)

    def pause_writing(self) -> None:
        self._is_blocked = True
        self._unsent_before = self._held_by_transport()
        self._patience = asyncio.get_running_loop().call_later(WRITE_PATIENCE_S, self._look_at_writing)
        self._stop_writers_if_full()

    def resume_writing(self) -> None:
        self._is_blocked = False
        self._stop_looking()
        if self._backlog and self._transport is not None:
            self._transport.write(self._take_backlog())  # which may block at once
        if self._unsent() < HIGH_WATER:
            self._let_writers_go()
            self.go_on()

    def _may_take(self) -> bool:
        """Return whether events may be taken now."""
        return True

    def _stop_writers_if_full(self) -> None:
        if self._may_write is None and self._unsent() >= HIGH_WATER:
            self._may_write = asyncio.get_running_loop().create_future()
            self._read_as_we_take()

    def _let_writers_go(self) -> None:
        if self._may_write is not None and not self._may_write.done():
            self._may_write.set_result(None)
        self._may_write = None

    def _look_at_writing(self) -> None:
        unsent = self._held_by_transport()
        if unsent >= self._unsent_before:
            self.hang_up(f"the peer read nothing for {WRITE_PATIENCE_S:g} s", at_once=True)
            return
        self._unsent_before = unsent
        self._patience = asyncio.get_running_loop().call_later(WRITE_PATIENCE_S, self._look_at_writing)

    def _stop_looking(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _unsent(self) -> int:
        return self._held_by_transport() + self._backlog_size

    def _held_by_transport(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _take_backlog(self) -> bytes:
        frames, self._backlog, self._backlog_size = self._backlog, [], 0
        return b"".join(frames)

    def _read_as_we_take(self) -> None:
        wanted = self._held is None and self._may_take()
        if self._transport is None or self.closed is not None or wanted == self._is_reading:
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _close(self, reason: str) -> None:
        if self.closed is None:
            self.closed = reason
            self._stop_looking()
            self._let_writers_go()
            self.lost()

"""One connection in an event loop: turns received bytes into events, sends frames, and limits both.

Events are processed one at a time. An event that cannot be processed yet (a message for a full stream, or a call beyond
the maximum) is kept, and reading stops: the peer's bytes wait in the kernel. Tasks that send wait while the peer does
not read.
"""

from __future__ import annotations

import asyncio
from typing import Final, Generic, Protocol, TypeVar, cast

from ..error import ConnectionClosed

E = TypeVar("E")
E_co = TypeVar("E_co", covariant=True)

HIGH_WATER: Final = 1 << 20
"""Number of unsent bytes from which tasks that send must wait."""
WRITE_PATIENCE_S: Final = 10.0
"""The connection is closed if the peer reads nothing for this many seconds."""

_RECEIVE_SIZE = 64 << 10
"""Size of the receive buffer, which is reused. A plain asyncio.Protocol gets a new buffer of 256 KiB for each read,
which takes 50 us."""


class Source(Protocol[E_co]):
    """Parses received bytes into events: a ServerConnection or a ClientConnection of the package wire."""

    def receive_data(self, data: bytes) -> None: ...
    def next_event(self) -> E_co | None: ...


class Link(asyncio.BufferedProtocol, Generic[E]):
    """The asyncio protocol of a connection. Subclasses implement take() for events and lost() for the connection's
    end."""

    def __init__(self, source: Source[E]) -> None:
        self._source = source
        self._transport: asyncio.Transport | None = None
        self._room = memoryview(bytearray(_RECEIVE_SIZE))
        self._gone: asyncio.Future[None] | None = None
        self._held: E | None = None
        self._is_reading = True
        self._is_blocked = False  # the transport has bytes that the kernel has not taken
        self._backlog: list[bytes] = []  # frames to write when the kernel has taken them
        self._backlog_size = 0
        self._may_write: asyncio.Future[None] | None = None  # set while there are too many unsent bytes
        self._unsent_before = 0  # the transport's unsent bytes at the last check
        self._patience: asyncio.TimerHandle | None = None
        self.closed: str | None = None
        """The reason why the connection has ended; None while it is open."""

    @property
    def is_connected(self) -> bool:
        """Return whether the connection was made. It stays True after the connection's end."""
        return self._transport is not None

    def take(self, event: E) -> bool:
        """Process an event, and return True. Return False if it cannot be processed yet; go_on() then passes it
        again."""
        raise NotImplementedError

    def lost(self) -> None:
        """Handle the end of the connection; the attribute `closed` has the reason."""
        raise NotImplementedError

    def go_on(self) -> None:
        """Process the received events as far as possible, then resume or stop reading."""
        while self.closed is None and self._may_take():
            event = self._source.next_event() if self._held is None else self._held
            self._held = None if event is None or self.take(event) else event
            if event is None or self._held is not None:
                break
        self._read_as_we_take()

    def write(self, frame: bytes) -> None:
        """Send a frame, or keep it until the peer reads. Await drained() before building the next frame.

        While the transport has unsent bytes, frames are kept here, because each write to the transport would sum up the
        sizes of all its buffers.
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
        """Wait until fewer than HIGH_WATER bytes are unsent. Raises ConnectionClosed if the connection ends."""
        while self._may_write is not None and self.closed is None:
            await asyncio.shield(self._may_write)
        if self.closed is not None:
            raise ConnectionClosed(f"ttrpc connection: {self.closed}")

    def hang_up(self, reason: str, *, at_once: bool) -> None:
        """Close the connection. With `at_once`, frames that wait to be sent are lost; otherwise they are sent first, if
        the peer reads them."""
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
        """Wait until the socket is closed, if the connection was ever made."""
        if self._gone is not None:
            await asyncio.shield(self._gone)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gone = asyncio.get_running_loop().create_future()
        self._transport = cast("asyncio.Transport", transport)  # that of a Unix socket
        self._transport.set_write_buffer_limits(0)  # call pause_writing whenever the kernel does not take all

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
            self._transport.write(self._take_backlog())  # may call pause_writing at once
        if self._unsent() < HIGH_WATER:
            self._let_writers_go()
            self.go_on()

    def _may_take(self) -> bool:
        """Return whether events may be processed now."""
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

"""The client's end of a connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from .error import ProtocolError
from .events import Data, End, Response
from .frames import (
    AFTER_MESSAGE,
    DATA,
    NO_DATA,
    REMOTE_CLOSED,
    REMOTE_OPEN,
    REQUEST,
    RESPONSE,
    data_frame,
    end_frame,
    oversize_text,
)
from .messages import Code, read_response, request_frame
from .states import CLIENT, Event, Row, row
from .streams import StreamTable

_STREAM_ID_LAST: Final = 0xFFFFFFFF

_SEND_REQUEST: Final = row(CLIENT, Event.SEND_REQUEST)
_SEND_REQUEST_FOR_MESSAGES: Final = row(CLIENT, Event.SEND_REQUEST_FOR_MESSAGES)
_SEND_REQUEST_WITH_MESSAGES: Final = row(CLIENT, Event.SEND_REQUEST_WITH_MESSAGES)
_SEND_REQUEST_TO_TALK: Final = row(CLIENT, Event.SEND_REQUEST_TO_TALK)
_SEND_DATA: Final = row(CLIENT, Event.SEND_DATA)
_SEND_END: Final = row(CLIENT, Event.SEND_END)
_RECEIVE_DATA: Final = row(CLIENT, Event.RECEIVE_DATA)
_RECEIVE_NOTHING: Final = row(CLIENT, Event.RECEIVE_NOTHING)
_RECEIVE_END: Final = row(CLIENT, Event.RECEIVE_END)
_RECEIVE_RESPONSE: Final = row(CLIENT, Event.RECEIVE_RESPONSE)
_GIVE_UP: Final = row(CLIENT, Event.GIVE_UP)


class ClientConnection(StreamTable):
    """The client's end of a connection.

    Stream ids must be written in increasing order. So hold one lock while you call request() or open_stream() and write
    the returned bytes. After each receive_data(), call next_event() until it returns None.
    """

    __slots__ = ("_next_stream_id",)

    def __init__(self) -> None:
        super().__init__()
        self._next_stream_id = 1

    def request(
        self,
        service: str,
        method: str,
        payload: bytes,
        *,
        timeout_ns: int = 0,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> tuple[int, bytes]:
        """Return the stream id of a new unary call and the bytes to write. A Response will end the call.

        Raises OversizedMessage if the request does not fit into a frame, and ProtocolError if a text is not valid
        Unicode or the connection has used all stream ids. The connection is unchanged after an error.
        """
        return self._open(_SEND_REQUEST, 0, service, method, payload, timeout_ns, metadata)

    def open_stream(
        self,
        service: str,
        method: str,
        payload: bytes = b"",
        *,
        client_streams: bool,
        server_streams: bool,
        timeout_ns: int = 0,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> tuple[int, bytes]:
        """Return the id of a new stream and the bytes to write. An End or a Response will end the stream.

        client_streams: the client may use send_data() and close_send(); a payload that is not empty is then its first
        message. server_streams: the server may send Data; without it, Data is a protocol error. Raises the errors of
        request().
        """
        if client_streams:
            event = _SEND_REQUEST_TO_TALK if server_streams else _SEND_REQUEST_WITH_MESSAGES
            return self._open(event, REMOTE_OPEN, service, method, payload, timeout_ns, metadata)
        event = _SEND_REQUEST_FOR_MESSAGES if server_streams else _SEND_REQUEST
        flags = REMOTE_CLOSED if server_streams else 0
        return self._open(event, flags, service, method, payload, timeout_ns, metadata)

    def send_data(self, stream_id: int, payload: bytes) -> bytes:
        """Return the frame of a message to the server.

        Raises OversizedMessage if the message is too long; the stream stays usable. Raises ProtocolError if the stream
        has ended, or if the client may not send messages on it.
        """
        frame = data_frame(stream_id, payload)
        if self._step(stream_id, _SEND_DATA) is None:
            raise _not_sending(stream_id)
        return frame

    def close_send(self, stream_id: int) -> bytes:
        """Return the frame that ends the messages to the server. Raises ProtocolError like send_data()."""
        if self._step(stream_id, _SEND_END) is None:
            raise _not_sending(stream_id)
        return end_frame(stream_id)

    def forget(self, stream_id: int) -> None:
        """Abandon a call: its later frames are dropped. The protocol has no message that would tell the server."""
        self._step(stream_id, _GIVE_UP)

    def next_event(self) -> Response | Data | End | None:
        """Return the next answer, message or end of an open stream; None if more bytes are needed.

        An invalid frame (too long, not decodable, or not allowed in the stream's state) ends only its own stream, with
        a Response that has an error code.
        """
        while (frame := self._next_frame()) is not None:
            stream_id, kind, data, length, flags = frame
            if kind == AFTER_MESSAGE:
                return End(stream_id)
            if stream_id not in self._states or kind not in (REQUEST, RESPONSE, DATA):
                continue
            if data is None:
                return self._failed(stream_id, Code.RESOURCE_EXHAUSTED, oversize_text(length))
            if kind == RESPONSE:
                self._step(stream_id, _RECEIVE_RESPONSE)
                return read_response(stream_id, data)
            if kind == REQUEST:
                return self._failed(stream_id, Code.INTERNAL, "protocol error: a request from the server")
            if (event := self._data(stream_id, data, flags)) is not None:
                return event
        return None

    def _open(
        self,
        event: Row,
        flags: int,
        service: str,
        method: str,
        payload: bytes,
        timeout_ns: int,
        metadata: Iterable[tuple[str, str]],
    ) -> tuple[int, bytes]:
        stream_id = self._next_stream_id
        if stream_id > _STREAM_ID_LAST:
            raise ProtocolError("ttrpc stream ids are used up: open a new connection")
        frame = request_frame(stream_id, flags, service, method, payload, timeout_ns, metadata)
        self._next_stream_id += 2
        self._step(stream_id, event)
        return stream_id, frame

    def _data(self, stream_id: int, data: bytes, flags: int) -> Response | Data | End | None:
        if flags & NO_DATA:
            ended = flags & REMOTE_CLOSED
            if self._step(stream_id, _RECEIVE_END if ended else _RECEIVE_NOTHING) is None:
                return self._unexpected(stream_id)
            return End(stream_id) if ended else None
        if self._step(stream_id, _RECEIVE_DATA) is None:
            return self._unexpected(stream_id)
        if flags & REMOTE_CLOSED:
            self._step(stream_id, _RECEIVE_END)
            self._hold_end(stream_id, len(data))
        return Data(stream_id, data)

    def _unexpected(self, stream_id: int) -> Response:
        return self._failed(stream_id, Code.INTERNAL, "protocol error: data where one answer was due")

    def _failed(self, stream_id: int, code: Code, text: str) -> Response:
        """End a stream, and return a Response with this error, as if the server had sent it."""
        self._step(stream_id, _RECEIVE_RESPONSE)
        return Response(stream_id, code, text, b"")


def _not_sending(stream_id: int) -> ProtocolError:
    return ProtocolError(f"ttrpc stream {stream_id} takes no messages: it is over, or closed for sending")

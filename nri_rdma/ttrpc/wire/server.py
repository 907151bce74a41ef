"""The server's end of a connection."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from .error import ProtocolError
from .events import Data, End, Rejected, Request
from .frames import (
    AFTER_MESSAGE,
    DATA,
    NO_DATA,
    REMOTE_CLOSED,
    REQUEST,
    data_frame,
    end_frame,
    oversize_text,
)
from .messages import Code, decode_request, failed_response, ok_response
from .states import SERVER, Event, State, row
from .streams import StreamTable

_OPENED: Final = tuple(
    SERVER[State.NONE, event]
    for event in (
        Event.RECEIVE_REQUEST,
        Event.RECEIVE_REQUEST_FOR_MESSAGES,
        Event.RECEIVE_REQUEST_TO_TALK,
        Event.RECEIVE_REQUEST_FOR_MESSAGES,  # both flags, which contradict each other: the client sends no more
    )
)
"""The state of a new stream, by the flags of its Request."""
_RECEIVE_DATA: Final = row(SERVER, Event.RECEIVE_DATA)
_RECEIVE_NOTHING: Final = row(SERVER, Event.RECEIVE_NOTHING)
_RECEIVE_END: Final = row(SERVER, Event.RECEIVE_END)
_SEND_DATA: Final = row(SERVER, Event.SEND_DATA)
_SEND_END: Final = row(SERVER, Event.SEND_END)
_SEND_RESPONSE: Final = row(SERVER, Event.SEND_RESPONSE)

_EVEN: Final = "StreamID must be odd for client initiated streams"
_REUSED: Final = "StreamID cannot be re-used and must increment"
_INACTIVE: Final = "StreamID is no longer active"
_CLOSED: Final = "data handling error: ttrpc: stream closed"
_END_WITH_DATA: Final = "data close message cannot include data"


class ServerConnection(StreamTable):
    """The server's end of a connection.

    After each receive_data(), call next_event() until it returns None; otherwise the buffer grows. A stream is open
    from its Request until respond(), fail() or close_send(). If the peer violates the protocol, the stream ends with a
    Rejected event, and a later answer to it raises ProtocolError.

    respond() and fail() may be called from a thread that does not read. To use the other methods from several threads,
    hold one lock around them and next_event().
    """

    __slots__ = ("_last_stream_id",)

    def __init__(self) -> None:
        super().__init__()
        self._last_stream_id = 0

    def next_event(self) -> Request | Data | End | Rejected | None:
        """Return the next event; None if more bytes are needed.

        An event is a call, a message of a stream, the end of a caller's messages, or a protocol error with the reply to
        write.
        """
        while (frame := self._next_frame()) is not None:
            stream_id, kind, data, length, flags = frame
            if kind == REQUEST and stream_id & 1 and data is not None:  # first, as nearly all frames are calls
                return self._request(stream_id, data, flags)
            if data is None:
                event = self._without_data(stream_id, kind, length)
            elif not stream_id & 1:
                return self._reject(stream_id, Code.INVALID_ARGUMENT, _EVEN)
            elif kind == DATA:
                event = self._data(stream_id, data, flags)
            else:
                continue
            if event is not None:
                return event
        return None

    def respond(self, stream_id: int, payload: bytes) -> bytes:
        """Return the frame of the answer. If the payload does not fit into a frame, return the frame of the error
        RESOURCE_EXHAUSTED.

        Raises ProtocolError if the stream is unknown or already answered.
        """
        # As in _request(), _step() is inlined: it would take 8 % of a unary call. Tests compare both with the table.
        if self._states.pop(stream_id, None) is None:
            raise _not_open(stream_id)
        answer = ok_response(stream_id, payload)
        if answer is None:
            return failed_response(stream_id, Code.RESOURCE_EXHAUSTED, oversize_text(len(payload)))
        return answer

    def fail(self, stream_id: int, code: int, message: str) -> bytes:
        """Return the frame of an error. A code of OK is replaced by UNKNOWN, and a very long message is cut.

        Raises ProtocolError if the stream is unknown or already answered.
        """
        if self._step(stream_id, _SEND_RESPONSE) is None:
            raise _not_open(stream_id)
        return failed_response(stream_id, code, message)

    def send_data(self, stream_id: int, payload: bytes) -> bytes:
        """Return the frame of a message to the caller.

        Raises OversizedMessage if the message is too long; the stream stays usable. Raises ProtocolError if the stream
        is not open, or is a unary call.
        """
        frame = data_frame(stream_id, payload)
        if self._step(stream_id, _SEND_DATA) is None:
            raise _not_open(stream_id)
        return frame

    def close_send(self, stream_id: int) -> bytes:
        """Return the frame that ends the messages to the caller, which also ends the call.

        Raises ProtocolError if the stream is not open, or is a unary call.
        """
        if self._step(stream_id, _SEND_END) is None:
            raise _not_open(stream_id)
        return end_frame(stream_id)

    def _request(self, stream_id: int, data: bytes, flags: int) -> Request | Rejected:
        if stream_id <= self._last_stream_id:
            return self._reject(stream_id, Code.INVALID_ARGUMENT, _REUSED)
        self._last_stream_id = stream_id
        try:
            message = decode_request(data)
        except DecodeError as exc:
            return self._reject(stream_id, Code.INVALID_ARGUMENT, f"unmarshal request error: {exc}")
        self._states[stream_id] = _OPENED[flags & 3]  # REMOTE_CLOSED and REMOTE_OPEN
        return Request(stream_id, message, flags)

    def _data(self, stream_id: int, data: bytes, flags: int) -> Data | End | Rejected | None:
        before = self._states.get(stream_id)
        if before is None or before is State.ANSWERING:
            return self._reject(stream_id, Code.INVALID_ARGUMENT, _INACTIVE)
        if not flags & NO_DATA:
            return self._message(stream_id, data, flags)
        if not flags & REMOTE_CLOSED:
            self._step(stream_id, _RECEIVE_NOTHING)
            return None
        self._step(stream_id, _RECEIVE_END)
        if data:
            return self._reject(stream_id, Code.INVALID_ARGUMENT, _END_WITH_DATA)
        return End(stream_id) if before is State.TALKING else None

    def _message(self, stream_id: int, data: bytes, flags: int) -> Data | Rejected:
        if self._step(stream_id, _RECEIVE_DATA) is None:
            return self._reject(stream_id, Code.INVALID_ARGUMENT, _CLOSED)
        if flags & REMOTE_CLOSED:
            self._step(stream_id, _RECEIVE_END)
            self._hold_end(stream_id, len(data))
        return Data(stream_id, data)

    def _without_data(self, stream_id: int, kind: int, length: int) -> Data | End | Rejected | None:
        """Return the event of a frame that is too long, or of the end of a stream that came in one frame with a
        message. If that message is not empty, the end is rejected; the Go server does so, too. `length` is the length
        of the frame's data or of the message."""
        if kind != AFTER_MESSAGE:
            return self._reject(stream_id, Code.RESOURCE_EXHAUSTED, oversize_text(length))
        if length:
            return self._reject(stream_id, Code.INVALID_ARGUMENT, _END_WITH_DATA)
        return End(stream_id) if stream_id in self._states else None

    def _reject(self, stream_id: int, code: Code, text: str) -> Rejected:
        """Return the event for a frame that violates the protocol, with the error to send. If the frame's stream was
        open, it ends."""
        self._step(stream_id, _SEND_RESPONSE)
        return Rejected(stream_id, failed_response(stream_id, code, text))


def _not_open(stream_id: int) -> ProtocolError:
    return ProtocolError(f"ttrpc stream {stream_id} is not open: unknown, or answered already")

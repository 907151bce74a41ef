"""The effect of each frame on its stream, as one table for the client and one for the server; docs/ttrpc.md prints
them.

The state `none` stands for streams that are not yet open and for those that have ended. Stream ids only grow, which
distinguishes the two. A frame that is not in the table violates the protocol: sending it raises, and receiving it ends
the stream with an error. A repeated end changes nothing, and neither does a Data frame without message or end; the Go
implementation does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """The state of a stream, as seen by one end of the connection."""

    NONE = "none"
    """The stream is not open; the next Request may open it."""

    WAITING = "waiting"
    """The client has sent everything and expects one Response."""
    SENDING_FOR_ANSWER = "sending for an answer"
    """The client sends messages and expects one Response."""
    TALKING = "talking"
    """Both ends send messages."""
    LISTENING = "listening"
    """The client has sent everything and receives messages."""

    ANSWERING = "answering"
    """The server has to answer a unary call with one Response."""
    REPLYING = "replying"
    """The client has sent everything; the server sends messages or a Response."""


class Event(StrEnum):
    """The sending or receiving of a kind of frame, as seen by one end of the connection."""

    SEND_REQUEST = "send Request"
    SEND_REQUEST_FOR_MESSAGES = "send Request, remote closed"
    SEND_REQUEST_WITH_MESSAGES = "send Request, remote open, one answer"
    SEND_REQUEST_TO_TALK = "send Request, remote open"
    RECEIVE_REQUEST = "receive Request"
    RECEIVE_REQUEST_FOR_MESSAGES = "receive Request, remote closed"
    RECEIVE_REQUEST_TO_TALK = "receive Request, remote open"

    SEND_DATA = "send Data"
    SEND_END = "send Data, remote closed"
    SEND_RESPONSE = "send Response"
    RECEIVE_DATA = "receive Data"
    RECEIVE_NOTHING = "receive Data, no data"
    RECEIVE_END = "receive Data, remote closed"
    RECEIVE_RESPONSE = "receive Response"
    GIVE_UP = "give up, nothing is sent"


Table = Mapping[tuple[State, Event], State]
Row = Mapping[State, State]
"""The transitions of one event: each state in which the event is allowed, with the next state."""

CLIENT: Final[Table] = MappingProxyType(
    {
        (State.NONE, Event.SEND_REQUEST): State.WAITING,
        (State.NONE, Event.SEND_REQUEST_WITH_MESSAGES): State.SENDING_FOR_ANSWER,
        (State.NONE, Event.SEND_REQUEST_TO_TALK): State.TALKING,
        (State.NONE, Event.SEND_REQUEST_FOR_MESSAGES): State.LISTENING,
        (State.WAITING, Event.RECEIVE_RESPONSE): State.NONE,
        (State.WAITING, Event.GIVE_UP): State.NONE,
        (State.SENDING_FOR_ANSWER, Event.SEND_DATA): State.SENDING_FOR_ANSWER,
        (State.SENDING_FOR_ANSWER, Event.SEND_END): State.WAITING,
        (State.SENDING_FOR_ANSWER, Event.RECEIVE_RESPONSE): State.NONE,
        (State.SENDING_FOR_ANSWER, Event.GIVE_UP): State.NONE,
        (State.TALKING, Event.SEND_DATA): State.TALKING,
        (State.TALKING, Event.SEND_END): State.LISTENING,
        (State.TALKING, Event.RECEIVE_DATA): State.TALKING,
        (State.TALKING, Event.RECEIVE_NOTHING): State.TALKING,
        # The server's end ends the stream, because a server forgets a stream that it has ended.
        (State.TALKING, Event.RECEIVE_END): State.NONE,
        (State.TALKING, Event.RECEIVE_RESPONSE): State.NONE,
        (State.TALKING, Event.GIVE_UP): State.NONE,
        (State.LISTENING, Event.RECEIVE_DATA): State.LISTENING,
        (State.LISTENING, Event.RECEIVE_NOTHING): State.LISTENING,
        (State.LISTENING, Event.RECEIVE_END): State.NONE,
        (State.LISTENING, Event.RECEIVE_RESPONSE): State.NONE,
        (State.LISTENING, Event.GIVE_UP): State.NONE,
    }
)

SERVER: Final[Table] = MappingProxyType(
    {
        (State.NONE, Event.RECEIVE_REQUEST): State.ANSWERING,
        (State.NONE, Event.RECEIVE_REQUEST_TO_TALK): State.TALKING,
        (State.NONE, Event.RECEIVE_REQUEST_FOR_MESSAGES): State.REPLYING,
        (State.ANSWERING, Event.SEND_RESPONSE): State.NONE,
        (State.TALKING, Event.RECEIVE_DATA): State.TALKING,
        (State.TALKING, Event.RECEIVE_NOTHING): State.TALKING,
        (State.TALKING, Event.RECEIVE_END): State.REPLYING,
        (State.TALKING, Event.SEND_DATA): State.TALKING,
        (State.TALKING, Event.SEND_END): State.NONE,
        (State.TALKING, Event.SEND_RESPONSE): State.NONE,
        (State.REPLYING, Event.RECEIVE_NOTHING): State.REPLYING,
        (State.REPLYING, Event.RECEIVE_END): State.REPLYING,
        (State.REPLYING, Event.SEND_DATA): State.REPLYING,
        (State.REPLYING, Event.SEND_END): State.NONE,
        (State.REPLYING, Event.SEND_RESPONSE): State.NONE,
    }
)


def row(table: Table, event: Event) -> Row:
    """Return the transitions of one event: each state in which the event is allowed, with the next state."""
    return {before: after for (before, what), after in table.items() if what is event}

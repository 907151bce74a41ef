"""The effect of a frame on its stream: one table for each end, read by the code and by docs/ttrpc.md.

A stream that nobody has opened yet and one that is over are both `none`: the numbers tell them apart, which only grow.
A frame that is not in a table breaks the protocol: sending it raises, receiving it ends the stream with an error. An
end that the peer repeats, and a Data frame that holds nothing and ends nothing, change nothing, as in Go.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """The state of a stream, as one end sees it."""

    NONE = "none"
    """Not open: the next Request may open it."""

    WAITING = "waiting"
    """The client has sent everything and expects one Response."""
    SENDING_FOR_ANSWER = "sending for an answer"
    """The client sends messages and expects one Response."""
    TALKING = "talking"
    """Both ends send messages."""
    LISTENING = "listening"
    """The client has sent everything and takes messages."""

    ANSWERING = "answering"
    """The server owes one Response to a unary call."""
    REPLYING = "replying"
    """The client has sent everything; the server sends messages, or a Response."""


class Event(StrEnum):
    """A frame, or its part that matters here, and its sender as one end sees it."""

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
"""The next state for each state in which one event is allowed."""

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
        # A server that ends ends the stream: it keeps none that it has closed and the client has not.
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
    """Return the next state for each state in which the event is allowed."""
    return {before: after for (before, what), after in table.items() if what is event}

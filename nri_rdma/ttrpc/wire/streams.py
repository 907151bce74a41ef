"""The streams of one connection, and the door that every frame goes through."""

from __future__ import annotations

from typing import Final

from .frames import FrameReader
from .states import Row, State

_NONE: Final = State.NONE  # bound once: an enum's member is looked up in Python


class StreamTable(FrameReader):
    """The common part of both ends of a connection: a reader of frames, and the state of each stream that is open."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        super().__init__()
        self._states: dict[int, State] = {}

    @property
    def open_streams(self) -> int:
        """Number of open streams: the bound for a caller that answers later than it reads."""
        return len(self._states)

    def _step(self, stream_id: int, event: Row) -> State | None:
        """Move a stream as the event's row of the table says; None where the frame is not allowed, nothing moves then.

        Of two threads that end one stream one gets None.
        """
        states = self._states
        state = event.get(states.get(stream_id, _NONE))
        if state is _NONE:
            if states.pop(stream_id, None) is None:
                return None
        elif state is not None:
            states[stream_id] = state
        return state

"""The open streams of a connection, and the check of every frame against the table of states."""

from __future__ import annotations

from typing import Final

from .frames import FrameReader
from .states import Row, State

_NONE: Final = State.NONE  # bound once, because access to an enum's member is slow


class StreamTable(FrameReader):
    """The base class of ClientConnection and ServerConnection: a reader of frames, with the state of each open
    stream."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        super().__init__()
        self._states: dict[int, State] = {}

    @property
    def open_streams(self) -> int:
        """The number of open streams. A caller can use it to bound the number of unanswered calls."""
        return len(self._states)

    def _step(self, stream_id: int, event: Row) -> State | None:
        """Change the state of a stream by an event, and return the new state. If the event is not allowed, change
        nothing and return None.

        If two threads end a stream at once, one of them gets None.
        """
        states = self._states
        state = event.get(states.get(stream_id, _NONE))
        if state is _NONE:
            if states.pop(stream_id, None) is None:
                return None
        elif state is not None:
            states[stream_id] = state
        return state

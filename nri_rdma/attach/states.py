"""The life of one attachment as a table: states x events -> next state, effects. Pure.

An attachment is one attach of a sandbox: what its pod asked for, or what a container brought along later. Everything
that decides what happens to it next is in this file; docs/architecture.md prints TABLE.

Theory of operation. Whoever has news feeds one event to `Attachment.step`, the only writer of the state, and then
carries out the effects of the row in their order, in its own thread and without a lock. An event that has no row for
the present state is late news and has no effect: a timer that was cancelled too late, a task whose attachment has
ended. So nothing has to be taken back from a queue. Two rules make that safe. A task that was queued says what it is
(PLAN_PICKED, ATTACH_PICKED, UNDO_PICKED, SEEK_PICKED), and so never does another task's work. And while a task is at
work (PLANNING, NOTING, ATTACHING, ROLLING_BACK, SEEKING), END changes the state only: the task stops at its next step,
and its own last event queues the undo. One thread works on an attachment at a time.

`queue` effects hand the work to a pool; the effect of the same name without `queue` does it in this thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """A stage in the life of an attachment. From STOPPING on it never goes back."""

    WAITING = "waiting"
    """The pod's older sandbox still gives its devices back."""
    QUEUED = "queued"
    """A planner will come to it; a worker, where somebody waits for the attach itself."""
    PLANNING = "planning"
    """A planner selects devices, opens the namespace and decides the steps; nothing on the host changes."""
    NOTING = "noting"
    """The plan was told; the planner writes down who gets what."""
    PLANNED = "planned"
    """A worker will come to it."""
    ATTACHING = "attaching"
    """A worker carries out the steps."""
    ATTACHED = "attached"
    ROLLING_BACK = "rolling back"
    """An attempt failed and is being undone; another one follows."""
    PAUSED = "paused"
    """The pause before the next attempt."""
    READING = "reading"
    """The node is read again before the next attempt."""
    LEFT = "left"
    """An earlier daemon left it; nobody has looked yet what became of it."""
    SEEKING = "seeking"
    """A worker looks, or will look, what became of what an earlier daemon left."""

    STOPPING = "stopping"
    """It ends, and the thread that works on it has not stopped yet."""
    UNSEEN = "unseen"
    """It ends, and a worker looks for its namespace first: an undo without it would lose virtual netdevs."""
    UNSEEN_PAUSED = "unseen, paused"
    """The same, in the pause before a worker looks again."""
    RETURNING = "returning"
    """Its undo is queued or at work."""
    UNDO_PAUSED = "undo paused"
    """The undo failed and is tried again after a pause."""
    HOME = "home"
    """Everything is as it was before; its devices are not released yet."""
    RELEASE_PAUSED = "release paused"
    """The release failed and is tried again after a pause."""
    GONE = "gone"


class Event(StrEnum):
    """An event in the life of an attachment."""

    OLDER_HOME = "older home"
    """The pod's older sandbox has given everything back."""
    PLAN_PICKED = "plan picked"
    MADE = "plan made"
    NOTED = "plan noted"
    """The plan is in the journal, or could not be written: then the attach will fail."""
    ATTACH_PICKED = "attach picked"
    CONFIRMED = "confirmed"
    """All steps are done, numbers read, the journal written."""
    FAILED = "failed"
    """A plan or an attach failed, and attempts are left."""
    LAST_FAILED = "last failed"
    """The same, and no other attempt follows."""
    DUE = "due"
    """The pause before the next attempt is over."""
    READ = "node read"
    """The node was read again, successfully or not."""

    TAKE_UP = "take up"
    """What an earlier daemon left may be looked at now."""
    SEEK_PICKED = "seek picked"
    THERE = "there"
    """The pod is there, and it was attached."""
    HALF = "half"
    """The pod is there, and its attach was cut short."""
    ABSENT = "absent"
    """The pod is not there, or its devices were on their way back, or only a part of it was half attached."""
    UNSEEABLE = "unseeable"
    """The kernel did not let us look (no descriptors, no memory)."""

    END = "end"
    """The runtime stopped the sandbox, or its namespace or process is gone."""
    UNDO_PICKED = "undo picked"
    UNDONE = "undone"
    UNDO_FAILED = "undo failed"
    UNDO_DUE = "undo due"
    """The pause after a failed undo or release is over."""
    RELEASED = "released"
    """The node was read again and the devices are free for others."""
    RELEASE_FAILED = "release failed"


class Effect(StrEnum):
    """An action that follows a transition; the thread that fed the event carries it out."""

    QUEUE_PLAN = "queue plan"
    PLAN = "plan"
    TELL_PLANNED = "tell planned"
    NOTE = "note"
    QUEUE_ATTACH = "queue attach"
    ATTACH = "attach"
    TELL_ATTACHED = "tell attached"
    ROLL_BACK = "roll back"
    PAUSE = "pause"
    READ_NODE = "read node"
    QUEUE_SEEK = "queue seek"
    SEEK = "seek"
    PAUSE_SEEK = "pause seek"
    QUEUE_UNDO = "queue undo"
    UNDO = "undo"
    PAUSE_UNDO = "pause undo"
    TELL_HOME = "tell home"
    """Who waits for the host to be as before is told."""
    RELEASE = "release"
    TELL_ERROR = "tell error"
    """Who waits for the plan or the attach and was not told yet is told the error."""
    FORGET = "forget"


Row = tuple[State, tuple[Effect, ...]]
Table = Mapping[tuple[State, Event], Row]

S, E, F = State, Event, Effect

TABLE: Final[Table] = MappingProxyType(
    {
        # Plan
        (S.WAITING, E.OLDER_HOME): (S.QUEUED, (F.QUEUE_PLAN,)),
        (S.QUEUED, E.PLAN_PICKED): (S.PLANNING, (F.PLAN,)),
        (S.PLANNING, E.MADE): (S.NOTING, (F.TELL_PLANNED, F.NOTE)),
        (S.NOTING, E.NOTED): (S.PLANNED, (F.QUEUE_ATTACH,)),
        # Attach
        (S.PLANNED, E.ATTACH_PICKED): (S.ATTACHING, (F.ATTACH,)),
        (S.ATTACHING, E.CONFIRMED): (S.ATTACHED, (F.TELL_ATTACHED,)),
        # An attempt failed
        (S.PLANNING, E.FAILED): (S.ROLLING_BACK, (F.ROLL_BACK,)),
        (S.PLANNING, E.LAST_FAILED): (S.RETURNING, (F.UNDO, F.TELL_ERROR)),
        (S.ATTACHING, E.FAILED): (S.ROLLING_BACK, (F.ROLL_BACK,)),
        (S.ATTACHING, E.LAST_FAILED): (S.RETURNING, (F.UNDO, F.TELL_ERROR)),
        (S.ROLLING_BACK, E.UNDONE): (S.PAUSED, (F.PAUSE,)),
        (S.ROLLING_BACK, E.UNDO_FAILED): (S.RETURNING, (F.UNDO, F.TELL_ERROR)),
        (S.PAUSED, E.DUE): (S.READING, (F.READ_NODE,)),
        (S.READING, E.READ): (S.QUEUED, (F.QUEUE_PLAN,)),
        # What an earlier daemon left
        (S.LEFT, E.TAKE_UP): (S.SEEKING, (F.QUEUE_SEEK,)),
        (S.SEEKING, E.SEEK_PICKED): (S.SEEKING, (F.SEEK,)),
        (S.SEEKING, E.UNSEEABLE): (S.LEFT, (F.PAUSE_SEEK,)),
        (S.SEEKING, E.THERE): (S.ATTACHED, (F.TELL_ATTACHED,)),
        (S.SEEKING, E.HALF): (S.ROLLING_BACK, (F.TELL_PLANNED, F.ROLL_BACK)),
        (S.SEEKING, E.ABSENT): (S.RETURNING, (F.QUEUE_UNDO,)),
        # The end, while nobody works on it
        (S.WAITING, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.QUEUED, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.PLANNED, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.PAUSED, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.READING, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.ATTACHED, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        # The end, while somebody does
        (S.PLANNING, E.END): (S.STOPPING, ()),
        (S.NOTING, E.END): (S.STOPPING, ()),
        (S.ATTACHING, E.END): (S.STOPPING, ()),
        (S.ROLLING_BACK, E.END): (S.STOPPING, ()),
        (S.STOPPING, E.MADE): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.STOPPING, E.NOTED): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.STOPPING, E.CONFIRMED): (S.RETURNING, (F.TELL_ERROR, F.QUEUE_UNDO)),
        (S.STOPPING, E.FAILED): (S.RETURNING, (F.TELL_ERROR, F.QUEUE_UNDO)),
        (S.STOPPING, E.LAST_FAILED): (S.RETURNING, (F.TELL_ERROR, F.QUEUE_UNDO)),
        (S.STOPPING, E.UNDONE): (S.RETURNING, (F.TELL_ERROR, F.QUEUE_UNDO)),
        (S.STOPPING, E.UNDO_FAILED): (S.RETURNING, (F.TELL_ERROR, F.QUEUE_UNDO)),
        # The end of what an earlier daemon left: its namespace is found first
        (S.LEFT, E.END): (S.UNSEEN, (F.QUEUE_SEEK,)),
        (S.SEEKING, E.END): (S.UNSEEN, ()),
        (S.UNSEEN, E.SEEK_PICKED): (S.UNSEEN, (F.SEEK,)),
        (S.UNSEEN, E.UNSEEABLE): (S.UNSEEN_PAUSED, (F.PAUSE_SEEK,)),
        (S.UNSEEN_PAUSED, E.TAKE_UP): (S.UNSEEN, (F.QUEUE_SEEK,)),
        (S.UNSEEN, E.THERE): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.UNSEEN, E.HALF): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.UNSEEN, E.ABSENT): (S.RETURNING, (F.QUEUE_UNDO,)),
        # Undo
        (S.RETURNING, E.UNDO_PICKED): (S.RETURNING, (F.UNDO,)),
        (S.RETURNING, E.UNDONE): (S.HOME, (F.TELL_HOME, F.RELEASE)),
        (S.RETURNING, E.UNDO_FAILED): (S.UNDO_PAUSED, (F.PAUSE_UNDO,)),
        (S.UNDO_PAUSED, E.UNDO_DUE): (S.RETURNING, (F.QUEUE_UNDO,)),
        # Release
        (S.HOME, E.UNDO_PICKED): (S.HOME, (F.RELEASE,)),
        (S.HOME, E.RELEASED): (S.GONE, (F.TELL_ERROR, F.FORGET)),
        (S.HOME, E.RELEASE_FAILED): (S.RELEASE_PAUSED, (F.PAUSE_UNDO,)),
        (S.RELEASE_PAUSED, E.UNDO_DUE): (S.HOME, (F.QUEUE_UNDO,)),
    }
)

ENDING: Final = frozenset(
    {S.STOPPING, S.UNSEEN, S.UNSEEN_PAUSED, S.RETURNING, S.UNDO_PAUSED, S.HOME, S.RELEASE_PAUSED, S.GONE}
)
"""The states from which an attachment never comes back."""

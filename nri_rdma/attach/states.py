"""The life of one attachment as a table: state and event -> next state and effects. Pure.

An attachment is one attach of a sandbox: of the devices that its pod requested, or of devices that a container brought
later. This file alone decides what happens to an attachment next; docs/architecture.md prints TABLE.

A thread with news about an attachment feeds an event to `Attachment.step`, which looks up the row, sets the state, and
returns the effects, which are actions. The thread then carries out these actions in order, without a lock.

An event without a row for the present state comes too late and is ignored. Examples are a timer that was cancelled too
late, and a queued task whose attachment has ended. So nothing must be removed from a queue.

Only one thread at a time works on an attachment. A queued task begins with its own event (PLAN_PICKED, ATTACH_PICKED,
UNDO_PICKED, SEEK_PICKED), and stops if that event has no row. While a task runs (PLANNING, NOTING, ATTACHING,
ROLLING_BACK, SEEKING), the event END changes only the state. The task sees this at its next step and stops, and its
last event queues the undo.

An effect with `queue` in its name hands the work to a thread pool; the effect without `queue` does the work in this
thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """A stage in the life of an attachment. From STOPPING on, it never returns to an earlier stage."""

    WAITING = "waiting"
    """An older sandbox of this pod still returns its devices."""
    QUEUED = "queued"
    """The plan is queued: for a planner thread, or for a worker thread if somebody waits for the whole attach."""
    PLANNING = "planning"
    """A planner thread selects devices, opens the namespace and decides the steps; nothing on the host changes."""
    NOTING = "noting"
    """The plan was reported to those who wait for it; the planner writes it to the journal."""
    PLANNED = "planned"
    """The attach is queued for a worker."""
    ATTACHING = "attaching"
    """A worker carries out the steps."""
    ATTACHED = "attached"
    ROLLING_BACK = "rolling back"
    """An attempt failed and is being undone; another attempt follows."""
    PAUSED = "paused"
    """The pause before the next attempt."""
    READING = "reading"
    """The node is being rescanned before the next attempt."""
    LEFT = "left"
    """An earlier daemon left the attachment; nobody has checked its state yet."""
    SEEKING = "seeking"
    """A worker checks, or will check, the state of an earlier daemon's attachment."""

    STOPPING = "stopping"
    """The attachment ends, but the thread that works on it has not stopped yet."""
    UNSEEN = "unseen"
    """An earlier daemon's attachment ends, but its namespace must be found first: an undo without the namespace would
    lose virtual netdevs."""
    UNSEEN_PAUSED = "unseen, paused"
    """An earlier daemon's attachment ends, and the search for its namespace pauses before the next try."""
    RETURNING = "returning"
    """The undo is queued or running."""
    UNDO_PAUSED = "undo paused"
    """The undo failed; it is retried after a pause."""
    HOME = "home"
    """The devices are on the host and configured as before the attach. They are not released for other pods yet."""
    RELEASE_PAUSED = "release paused"
    """The release failed; it is retried after a pause."""
    GONE = "gone"


class Event(StrEnum):
    """The events that change an attachment's state, such as the end of a queued task, a failure, or the end of its
    sandbox."""

    OLDER_HOME = "older home"
    """The older sandbox of this pod has returned its devices to the host."""
    PLAN_PICKED = "plan picked"
    MADE = "plan made"
    NOTED = "plan noted"
    """The plan was written to the journal, or the write failed. After a failed write the attach will fail."""
    ATTACH_PICKED = "attach picked"
    CONFIRMED = "confirmed"
    """All steps are done, the numbers of the character devices are read, and the journal is written."""
    FAILED = "failed"
    """A plan or an attach failed, and attempts are left."""
    LAST_FAILED = "last failed"
    """A plan or an attach failed, and no attempt is left."""
    DUE = "due"
    """The pause before the next attempt is over."""
    READ = "node read"
    """The rescan of the node has ended, successfully or not."""

    TAKE_UP = "take up"
    """The attachment of an earlier daemon may be checked now."""
    SEEK_PICKED = "seek picked"
    THERE = "there"
    """The pod exists, and its devices are attached."""
    HALF = "half"
    """The pod exists, but its attach was interrupted."""
    ABSENT = "absent"
    """The pod does not exist, or the return of its devices had begun. Or the interrupted attach was one of devices that
    a container brought after the sandbox started."""
    UNSEEABLE = "unseeable"
    """The state of the attachment could not be checked, because the kernel refused (no descriptors, no memory)."""

    END = "end"
    """The runtime stopped the sandbox, or its namespace or its process is gone."""
    UNDO_PICKED = "undo picked"
    UNDONE = "undone"
    UNDO_FAILED = "undo failed"
    UNDO_DUE = "undo due"
    """The pause after a failed undo or release is over."""
    RELEASED = "released"
    """The node was rescanned, and the devices are free for other pods."""
    RELEASE_FAILED = "release failed"


class Effect(StrEnum):
    """An action that follows a transition. The thread that fed the event carries it out."""

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
    """Wake those who wait until the host has its devices back as before the attach."""
    RELEASE = "release"
    TELL_ERROR = "tell error"
    """Wake those who still wait for the plan or the attach, with the error."""
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
        # An earlier daemon's attachment
        (S.LEFT, E.TAKE_UP): (S.SEEKING, (F.QUEUE_SEEK,)),
        (S.SEEKING, E.SEEK_PICKED): (S.SEEKING, (F.SEEK,)),
        (S.SEEKING, E.UNSEEABLE): (S.LEFT, (F.PAUSE_SEEK,)),
        (S.SEEKING, E.THERE): (S.ATTACHED, (F.TELL_ATTACHED,)),
        (S.SEEKING, E.HALF): (S.ROLLING_BACK, (F.TELL_PLANNED, F.ROLL_BACK)),
        (S.SEEKING, E.ABSENT): (S.RETURNING, (F.QUEUE_UNDO,)),
        # The end, while no thread works on it
        (S.WAITING, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.QUEUED, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.PLANNED, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.PAUSED, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.READING, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        (S.ATTACHED, E.END): (S.RETURNING, (F.QUEUE_UNDO,)),
        # The end, while a thread works on it
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
        # The end of an earlier daemon's attachment: find its namespace first
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
"""The states from which an attachment never becomes usable again."""

"""The table of an attachment's life: what every sequence of events that can happen does, and never does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

import pytest

from nri_rdma.attach.states import ENDING, TABLE, Effect, Event, State, Table

STARTS = (State.QUEUED, State.WAITING, State.LEFT)

ANSWERS: Mapping[Effect, tuple[Event, ...]] = {
    Effect.QUEUE_PLAN: (Event.PLAN_PICKED,),
    Effect.PLAN: (Event.MADE, Event.FAILED, Event.LAST_FAILED),
    Effect.NOTE: (Event.NOTED,),
    Effect.QUEUE_ATTACH: (Event.ATTACH_PICKED,),
    Effect.ATTACH: (Event.CONFIRMED, Event.FAILED, Event.LAST_FAILED),
    Effect.ROLL_BACK: (Event.UNDONE, Event.UNDO_FAILED),
    Effect.PAUSE: (Event.DUE,),
    Effect.READ_NODE: (Event.READ,),
    Effect.QUEUE_SEEK: (Event.SEEK_PICKED,),
    Effect.SEEK: (Event.THERE, Event.HALF, Event.ABSENT, Event.UNSEEABLE),
    Effect.PAUSE_SEEK: (Event.TAKE_UP,),
    Effect.QUEUE_UNDO: (Event.UNDO_PICKED,),
    Effect.UNDO: (Event.UNDONE, Event.UNDO_FAILED),
    Effect.PAUSE_UNDO: (Event.UNDO_DUE,),
    Effect.RELEASE: (Event.RELEASED, Event.RELEASE_FAILED),
}
"""What the work of an effect can report. Effects that are not here report nothing."""
PENDING_AT_START = {
    State.QUEUED: (Event.PLAN_PICKED,),
    State.WAITING: (Event.OLDER_HOME,),
    State.LEFT: (Event.TAKE_UP,),
}
WORK = (Effect.PLAN, Effect.NOTE, Effect.ATTACH, Effect.ROLL_BACK, Effect.SEEK, Effect.UNDO)

Pending = tuple[Effect | Event, ...]
"""What is under way, sorted: effects whose work will report, and events of timers, queues and others."""
Node = tuple[State, Pending, bool]
"""State, what is under way, and whether somebody may still end it."""


def moves(table: Table, node: Node) -> Iterator[tuple[Event, Node, tuple[Effect, ...] | None]]:
    """Every event that can come now, what it leads to, and its effects; None: late news."""
    state, pending, may_end = node
    events: list[tuple[Event, Pending, bool]] = [(Event.END, pending, False)] if may_end else []
    for item in set(pending):
        left = list(pending)
        left.remove(item)
        reports = (item,) if isinstance(item, Event) else ANSWERS[item]
        events += [(event, tuple(left), may_end) for event in reports]
    for event, others, may in events:
        row = table.get((state, event))
        if row is None:
            yield event, (state, others, may), None
            continue
        after, effects = row
        more: list[Effect | Event] = list(others)
        for effect in effects:
            if effect in WORK or effect is Effect.RELEASE:
                more.append(effect)
            else:
                more += ANSWERS.get(effect, ())
        yield event, (after, tuple(sorted(more)), may), effects


def reachable(table: Table) -> dict[Node, list[tuple[Event, Node, tuple[Effect, ...] | None]]]:
    """Every situation that a life can come to, with what can happen next."""
    starts: list[Node] = [(start, tuple(sorted(PENDING_AT_START[start])), True) for start in STARTS]
    found: dict[Node, list[tuple[Event, Node, tuple[Effect, ...] | None]]] = {}
    todo = deque(starts)
    while todo:
        node = todo.popleft()
        if node in found:
            continue
        assert len(node[1]) < 8, f"work piles up: {node}"
        found[node] = list(moves(table, node))
        todo.extend(after for _, after, _ in found[node])
    return found


def faults(table: Table) -> set[str]:
    """What is wrong in any situation that a life can come to."""
    found = set[str]()
    graph = reachable(table)
    for (state, pending, _may_end), steps in graph.items():
        if sum(item in WORK for item in pending) > 1:
            found.add(f"two threads work on it in {state}: {pending}")
        if state is State.GONE and any(item in WORK for item in pending):
            found.add("somebody works on what is gone")
        if state not in {State.ATTACHED, State.GONE} and not any(event is not Event.END for event, _, _ in steps):
            found.add(f"nothing happens by itself in {state}")
        for event, after, effects in steps:
            if event is Event.END and effects is None and state not in ENDING:
                found.add(f"the end is lost in {state}")
            if state in ENDING and after[0] not in ENDING:
                found.add(f"{state} + {event} comes back to {after[0]}")
            if state in ENDING and {Effect.ATTACH, Effect.PLAN, Effect.NOTE} & set(effects or ()):
                found.add(f"{state} + {event} attaches after the end")
            if Effect.RELEASE in (effects or ()) and after[0] is not State.HOME:
                found.add(f"released in {after[0]}, not at home")
            if Effect.FORGET in (effects or ()) and (effects or ()).index(Effect.FORGET) < (effects or ()).index(
                Effect.TELL_ERROR
            ):
                found.add("forgotten before told")
            if event in _REPORTS and effects is None:
                found.add(f"the report {event} is lost in {state}")
    can_end = {node for node in graph if node[0] is State.GONE}
    grown = True
    while grown:
        more = {node for node, steps in graph.items() if node not in can_end and any(it[1] in can_end for it in steps)}
        can_end |= more
        grown = bool(more)
    found |= {f"gone cannot be reached from {node[0]}" for node in graph if node not in can_end and node[2]}
    return found


_REPORTS = {event for effect in (*WORK, Effect.RELEASE) for event in ANSWERS[effect]}
"""What a thread reports of its own work: an event that the table passes over would leave the attachment for ever."""


def test_no_sequence_of_events_breaks_a_law() -> None:
    assert faults(TABLE) == set()


@pytest.mark.parametrize("row", sorted(TABLE), ids=" + ".join)
def test_every_row_matters(row: tuple[State, Event]) -> None:
    """An event that is lost in the table is noticed: some life then stops, or a report is passed over."""
    without = {key: value for key, value in TABLE.items() if key != row}
    states = {node[0] for node in reachable(without)}
    assert faults(without) or states != {node[0] for node in reachable(TABLE)}


def test_every_row_can_happen() -> None:
    lives = reachable(TABLE).items()
    assert set(TABLE) == {
        (node[0], event) for node, steps in lives for event, _, effects in steps if effects is not None
    }


def test_nothing_but_late_news_comes_after_the_end() -> None:
    assert not [row for row in TABLE if row[0] is State.GONE]


def test_an_undo_is_queued_or_done_once_in_a_life_until_it_fails() -> None:
    """RETURNING is entered by one row of every path, and left for the next try only by a failure."""
    entries = {(before, event) for (before, event), (after, _) in TABLE.items() if after is State.RETURNING}
    assert {before for before, _ in entries} & ENDING <= {
        State.STOPPING,
        State.UNSEEN,
        State.UNDO_PAUSED,
        State.RETURNING,
    }
    for key in entries - {(State.RETURNING, Event.UNDO_PICKED)}:
        undos = [effect for effect in TABLE[key][1] if effect in (Effect.UNDO, Effect.QUEUE_UNDO)]
        assert len(undos) == 1, key


def test_who_waits_is_told_before_it_is_forgotten() -> None:
    for _, effects in TABLE.values():
        if Effect.FORGET in effects:
            assert effects == (Effect.TELL_ERROR, Effect.FORGET)


def test_every_state_event_and_effect_is_in_the_table() -> None:
    assert {state for state, _ in TABLE} | {state for state, _ in TABLE.values()} == set(State)
    assert {event for _, event in TABLE} == set(Event)
    assert {effect for _, effects in TABLE.values() for effect in effects} == set(Effect)

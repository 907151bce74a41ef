"""The tables of states: what ttrpc's documents promise, and what the shortcuts assume."""

from __future__ import annotations

import pytest

from nri_rdma.ttrpc.wire.states import CLIENT, SERVER, Event, State, Table, row

BOTH = pytest.mark.parametrize("table", [CLIENT, SERVER], ids=["client", "server"])


def states(table: Table) -> set[State]:
    return {before for before, _event in table} | set(table.values())


@BOTH
def test_every_state_can_be_reached_and_left_for_the_end(table: Table) -> None:
    reached, grown = set[State](), {State.NONE}
    while grown != reached:
        reached, grown = grown, grown | {after for (before, _), after in table.items() if before in grown}
    assert reached == states(table)
    ending, grown = set[State](), {State.NONE}
    while grown != ending:
        ending, grown = grown, grown | {before for (before, _), after in table.items() if after in grown}
    assert ending == states(table)


@BOTH
def test_only_a_request_opens_a_stream_and_a_request_does_nothing_else(table: Table) -> None:
    for before, event in table:
        assert (before is State.NONE) == ("Request" in event), (before, event)


@BOTH
def test_one_end_of_messages_is_all_that_is_ever_sent(table: Table) -> None:
    after_end = {after for (_, event), after in table.items() if event is Event.SEND_END}
    more = {(state, event) for state in after_end for event in (Event.SEND_DATA, Event.SEND_END)}
    assert not more & set(table)


def test_what_one_end_sends_the_other_may_receive() -> None:
    """Both ends walk through every run of four frames in step: what is legal to send is legal to receive.

    But for frames that cross: the server may end a stream while the client still sends.
    """
    sent = [event for event in Event if event.startswith("send") and event is not Event.SEND_REQUEST_WITH_MESSAGES]
    mirror: dict[Event, Event] = {event: Event(event.replace("send", "receive")) for event in sent}
    mirror[Event.SEND_REQUEST_WITH_MESSAGES] = Event.RECEIVE_REQUEST_TO_TALK  # one frame, two intentions
    frontier, seen = {(State.NONE, State.NONE)}, set[tuple[State, State]]()
    while frontier:
        client, server = pair = frontier.pop()
        seen.add(pair)
        for sender, receiver, table, other, flip in (
            (client, server, CLIENT, SERVER, False),
            (server, client, SERVER, CLIENT, True),
        ):
            for event, received in mirror.items():
                if (sender, event) not in table:
                    continue
                one_answer = flip and receiver in (State.WAITING, State.SENDING_FOR_ANSWER)
                if one_answer and event in (Event.SEND_DATA, Event.SEND_END):
                    continue  # the server's handler promised one answer; nothing on the wire tells
                after = (table[sender, event], other[receiver, received])
                after = (after[1], after[0]) if flip else after
                if after not in seen:
                    frontier.add(after)
    assert {pair for pair in seen if State.NONE in pair} == {(State.NONE, State.NONE)}


def test_an_answer_ends_a_server_s_stream_in_every_state() -> None:
    """respond() takes it for granted, and so does every rejection."""
    assert row(SERVER, Event.SEND_RESPONSE) == dict.fromkeys(states(SERVER) - {State.NONE}, State.NONE)


def test_a_client_may_be_answered_or_give_up_in_every_state() -> None:
    for event in (Event.RECEIVE_RESPONSE, Event.GIVE_UP):
        assert row(CLIENT, event) == dict.fromkeys(states(CLIENT) - {State.NONE}, State.NONE)


def test_every_event_is_in_a_table() -> None:
    assert {event for _, event in [*CLIENT, *SERVER]} == set(Event)

"""Events that are fed: their effects are carried out in order; late news change nothing."""

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.state_machine import StateMachine
from nri_rdma.attach.states import TABLE, Effect, Event, State
from tests.unit.attach.builders import make_pod
from tests.unit.attach.sandbox_life import Start, begin_attach, end_sandbox
from tests.unit.rigs.attachments import SOON, Rig, make_world


def _machine_of(rig: Rig) -> StateMachine:
    return rig.sandboxes._machine


def test_every_effect_of_the_table_is_carried_out_by_somebody(start: Start) -> None:
    used = {effect for _, effects in TABLE.values() for effect in effects}
    assert used == set(Effect) == set(_machine_of(start(make_world()))._handlers)


def test_an_event_without_a_row_has_no_effect(start: Start) -> None:
    rig = start(make_world())
    attachment = begin_attach(rig)
    attachment.attach_done.result(SOON)
    before = attachment.now
    for event in (Event.UNDO_DUE, Event.PLAN_PICKED, Event.RELEASED):
        _machine_of(rig).feed(attachment, event, change=lambda now: now._replace(last_error="late"))
    assert attachment.now is before
    end_sandbox(rig)
    assert rig.gone == ["sandbox-1"]


def test_the_undo_belongs_to_the_span_of_who_ended_it(start: Start) -> None:
    rig = start(make_world())
    attachment = begin_attach(rig)
    attachment.attach_done.result(SOON)
    with rig.spans.span("StopPodSandbox") as stop:
        end_sandbox(rig)
    assert attachment.now.ended_by is stop
    (undo,) = [span for span in rig.spans.recent() if span.name == "undo"]
    assert undo.parent_id == stop.span_id


def test_what_is_told_the_error_of_an_event_is_who_waits(start: Start) -> None:
    rig, error = start(make_world()), RuntimeError("the last attempt")
    attachment = Attachment(make_pod(), state=State.PLANNING)
    _machine_of(rig).feed(attachment, Event.LAST_FAILED, error)
    assert attachment.planned.exception(SOON) is error
    assert attachment.attach_done.exception(SOON) is error
    assert attachment.undo_done.done()

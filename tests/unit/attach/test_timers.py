"""The pauses of attachments."""

from __future__ import annotations

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.timers import Timers
from tests.unit.attach.builders import make_pod
from tests.unit.rigs.attachments import Clock


def test_what_is_due_is_called_once_and_nothing_is_kept_of_it() -> None:
    clock, called, waiting = Clock(), list[str](), Attachment(make_pod())
    timers = Timers(clock)
    timers.start(waiting, 0.5, lambda: called.append("due"))
    clock.pass_one()
    assert (called, clock.pending, timers._cancels) == (["due"], [], {})
    timers.cancel(waiting)
    assert called == ["due"]


def test_what_is_cancelled_is_not_called() -> None:
    clock, waiting = Clock(), Attachment(make_pod())
    timers = Timers(clock)
    timers.start(waiting, 0.5, lambda: None)
    timers.cancel(waiting)
    assert clock.pending == []


def test_nothing_begins_after_the_end() -> None:
    clock, waiting = Clock(), Attachment(make_pod())
    timers = Timers(clock)
    timers.start(waiting, 0.5, lambda: None)
    timers.close()
    timers.start(waiting, 0.5, lambda: None)
    assert (clock.pending, timers.is_closed) == ([], True)

"""The undo of an attachment: its pauses, its words, and what it cancels."""

import logging

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import ATTEMPTS
from nri_rdma.attach.states import State
from nri_rdma.attach.undo import RETRY_SECONDS
from nri_rdma.errors import AttachError
from nri_rdma.tasks.workers import Workers
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import POD_PATH, make_pod
from tests.unit.attach.sandbox_life import (
    Start,
    assert_nothing_left,
    begin_attach,
    end_sandbox,
    occupy,
)
from tests.unit.rigs.attachments import SOON, add_rail, make_world, placed_on


@pytest.mark.parametrize(
    "error",
    [
        AttachError("it is stuck", device="mlx5_rail0", hint="this is a test"),
        ExceptionGroup("it is stuck; so is this", [OSError("it is stuck"), OSError("so is this")]),
    ],
    ids=["one", "several"],
)
def test_an_undo_is_retried_with_growing_pauses_and_then_with_the_longest(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    world = make_world(physical=True)
    before = world.snapshot()
    rig = start(world)
    attachment = begin_attach(rig)
    attachment.attach_done.result(SOON)
    held: list[int] = []
    bring_home = rig.work.bring_home

    def fail(attachment: Attachment) -> None:
        held.append(rig.sandboxes.held())
        raise error

    monkeypatch.setattr(rig.work, "bring_home", fail)
    world.remove_namespace(POD_PATH)  # held open, until it is let go
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    pauses: list[float] = []
    for _ in range(len(RETRY_SECONDS) + 2):
        pauses.append(rig.clock.wait_for_one())
        assert "it is stuck" in attachment.now.undo_error
        assert "sub-exceptions" not in attachment.now.undo_error  # Python's words for a group are no sentence
        rig.clock.pass_one()
    assert pauses == [*RETRY_SECONDS, RETRY_SECONDS[-1], RETRY_SECONDS[-1]]
    rig.clock.wait_for_one()
    # It is let go before the pause that follows the last of them.
    assert held == [1] * (len(RETRY_SECONDS) + 1) + [0, 0]
    monkeypatch.setattr(rig.work, "bring_home", bring_home)
    rig.clock.pass_one()
    done.result(SOON)
    assert attachment.now.undo_error == ""
    told = [vars(it) for it in caplog.records if it.message == "undo failed, trying again"]
    assert len(told) == len(held)
    assert all(it["pod"] == "ml/train" and "it is stuck" in it["error"] for it in told)
    assert world.snapshot() == before
    assert_nothing_left(rig)


def test_the_log_says_which_devices_have_returned(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    rig = start(make_world())
    begin_attach(rig).attach_done.result(SOON)
    with caplog.at_level(logging.INFO):
        end_sandbox(rig)
        wait_until(lambda: "returned" in caplog.messages, "the log line", SOON)
    (told,) = (vars(it) for it in caplog.records if it.message == "returned")
    assert told["devices"] == "mlx5_rail0"


def test_an_undo_comes_before_an_attach_that_was_queued_before_it(start: Start) -> None:
    world = make_world()
    add_rail(world, "rail1")
    rig = start(world, planners=Workers(1, name="planner"))
    begin_attach(rig).attach_done.result(SOON)
    free_one, free_other = (occupy(rig.workers, key) for key in ("sandbox-8", "sandbox-9"))
    other = rig.sandboxes.begin(make_pod("sandbox-2"), placed_on(world, "rail1"), None, attempts=ATTEMPTS)
    wait_until(lambda: other.now.state is State.PLANNED, "the queue", SOON)
    done = rig.sandboxes.end("sandbox-1")
    free_one()
    assert done is not None
    done.result(SOON)
    other.attach_done.result(SOON)
    order = [
        it for it in rig.gate.passed if it in ("after undo move-netdev mlx5_rail0", "before move-netdev mlx5_rail1")
    ]
    assert order == ["after undo move-netdev mlx5_rail0", "before move-netdev mlx5_rail1"]
    free_other()
    end_sandbox(rig, "sandbox-2")
    assert_nothing_left(rig)

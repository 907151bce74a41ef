"""An attach that fails is tried again, and when not."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from nri_rdma.attach.attachment import Attachment, Selection
from nri_rdma.attach.attachments import ATTEMPTS
from nri_rdma.attach.attempts import ATTEMPT_PAUSES_S
from nri_rdma.attach.record import Phase
from nri_rdma.attach.states import State
from nri_rdma.attach.undo import RETRY_SECONDS
from nri_rdma.errors import NotReadyError, PlacementError
from nri_rdma.tasks.workers import Workers
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import POD_PATH, make_pod
from tests.unit.attach.sandbox_life import (
    Start,
    assert_nothing_left,
    begin_attach,
    begin_often,
    drop,
    end_sandbox,
    occupy,
    records_of,
    take_name,
)
from tests.unit.rigs.attachments import SOON, Rig, make_world, placed_on


def test_an_attach_that_fails_is_tried_again_and_its_device_stays_taken(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = "after configure-netdev"
    sandbox = begin_often(rig)
    assert rig.clock.wait_for_one() == ATTEMPT_PAUSES_S[0]
    assert (sandbox.planned.result(SOON), sandbox.attach_done.done(), rig.gone) == (None, False, [])
    assert (world.snapshot(), world.held, records_of(rig)) == (before, 0, {})
    assert (sandbox.state, sandbox.now.attempt, "injected" in sandbox.now.last_error) == (Phase.PLANNED, 2, True)
    rig.gate.fail_at = ""
    rig.clock.pass_one()
    sandbox.attach_done.result(SOON)
    assert (sandbox.state, records_of(rig)) == (Phase.ATTACHED, {"sandbox-1": Phase.ATTACHED})
    end_sandbox(rig)
    assert world.snapshot() == before
    assert_nothing_left(rig)


@pytest.mark.parametrize(("begins", "written"), [(begin_often, 3), (begin_attach, 2)])
def test_the_plan_is_written_down_before_its_attach_where_the_runtime_was_answered_with_it(
    start: Start, begins: Callable[[Rig], Attachment], written: int
) -> None:
    rig = start(make_world())
    begins(rig).attach_done.result(SOON)
    assert rig.gate.passed.count("after write-journal sandbox-1") == written


def test_an_attach_that_fails_again_and_again_is_given_up(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = "after move-netdev"
    sandbox = begin_often(rig)
    for pause in ATTEMPT_PAUSES_S:
        assert rig.clock.wait_for_one() == pause
        assert not sandbox.attach_done.done()
        rig.clock.pass_one()
    assert isinstance(sandbox.attach_done.exception(SOON), RuntimeError)
    assert (sandbox.now.attempt, world.snapshot(), rig.gone) == (ATTEMPTS, before, ["sandbox-1"])
    assert_nothing_left(rig)


def test_each_attempt_that_fails_is_logged_with_its_pod_and_number(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rig = start(make_world())
    rig.gate.fail_at = "after move-netdev"
    sandbox = begin_often(rig)
    for _ in ATTEMPT_PAUSES_S:
        rig.clock.pass_one()
    assert sandbox.attach_done.exception(SOON) is not None
    told = [vars(it) for it in caplog.records if it.message == "attach failed"]
    assert [it["attempt"] for it in told] == list(range(1, ATTEMPTS + 1))
    assert {(it["pod"], it["error"]) for it in told} == {("ml/train", "injected after move-netdev mlx5_rail0")}


def test_a_sandbox_that_ends_between_two_attempts_is_not_tried_again(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = "after move-netdev"
    sandbox = begin_often(rig)
    rig.clock.wait_for_one()
    end_sandbox(rig)
    assert isinstance(sandbox.attach_done.exception(SOON), NotReadyError)
    assert (world.snapshot(), rig.gone) == (before, ["sandbox-1"])
    assert_nothing_left(rig)


def test_a_sandbox_that_ends_as_its_attempt_gives_way_to_a_pause_has_no_pause(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    rig = start(make_world())
    ended: list[Future[None] | None] = []

    class Ending(logging.Handler):
        """Ends the sandbox when the next attempt is announced."""

        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage() == "trying again":
                ended.append(rig.sandboxes.end("sandbox-1"))

    logger, handler = logging.getLogger("nri_rdma.attach.attempts"), Ending()
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO):
            rig.gate.fail_at = "after move-netdev"
            sandbox = begin_often(rig)
            sandbox.undo_done.result(SOON)
    finally:
        logger.removeHandler(handler)
    assert len(ended) == 1
    assert_nothing_left(rig)


@pytest.mark.parametrize("pool", ["planners", "workers"])
def test_who_waits_for_an_attach_that_the_end_of_the_daemon_keeps_from_beginning_is_told(
    start: Start, pool: str
) -> None:
    rig, held = start(make_world(), planners=Workers(1, name="planner")), threading.Event()
    assert rig.planners is not None
    busy: Workers = getattr(rig, pool)
    busy.submit("sandbox-1", lambda: drop(held.wait(SOON)))
    sandbox = begin_often(rig)
    wait_until(lambda: sandbox.now.state is (State.QUEUED if pool == "planners" else State.PLANNED), "the queue", SOON)
    closing = threading.Thread(target=busy.close)
    closing.start()
    assert isinstance(sandbox.attach_done.exception(SOON), NotReadyError)
    held.set()
    closing.join(SOON)


def test_an_attach_that_somebody_waits_for_follows_its_plan_in_the_same_thread(start: Start) -> None:
    rig = start(make_world(), planners=Workers(1, name="planner"))
    assert rig.planners is not None
    go = occupy(rig.planners, "sandbox-1")
    begin_attach(rig).attach_done.result(SOON)
    go()
    assert rig.gate.threads["before plan sandbox-1"] == rig.gate.threads["before move-netdev mlx5_rail0"]
    end_sandbox(rig)
    assert_nothing_left(rig)


def test_a_refusal_by_the_plan_is_told_at_once_and_not_tried_again(start: Start) -> None:
    world = make_world()
    rig = start(world)
    next(link for link in world.host.links.values() if link.name == "rail0").master = 99
    sandbox = begin_often(rig)
    assert isinstance(sandbox.planned.exception(SOON), PlacementError)
    assert isinstance(sandbox.attach_done.exception(SOON), PlacementError)
    assert_nothing_left(rig)


def test_a_pod_whose_namespace_was_removed_meanwhile_is_not_attached_before_the_news_come(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.stop_at = "before resolve-numbers"
    sandbox = begin_attach(rig)
    assert rig.gate.reached.wait(SOON)
    world.remove_namespace(POD_PATH)  # and nobody tells
    rig.gate.open.set()
    assert isinstance(sandbox.attach_done.exception(SOON), NotReadyError)
    wait_until(lambda: rig.sandboxes.all() == (), "the undo", SOON)
    assert world.snapshot() == before
    assert_nothing_left(rig)


def test_the_next_attempt_has_the_devices_of_the_first_unless_somebody_chooses_anew(start: Start) -> None:
    world = make_world()
    rig = start(world)
    chosen: list[Selection] = []

    def choose() -> Selection:
        chosen.append(Selection(placed=placed_on(world, "rail0"), rdma_cm=None))
        return chosen[-1]

    rig.gate.fail_at = "after move-netdev"
    done = Future[None]()
    done.set_result(None)
    sandbox = rig.sandboxes.begin_after((done,), make_pod(), choose, attempts=ATTEMPTS)
    rig.clock.wait_for_one()
    rig.gate.fail_at = ""
    rig.clock.pass_one()
    sandbox.attach_done.result(SOON)
    assert (sandbox.now.attempt, len(chosen)) == (2, 1)
    end_sandbox(rig)
    assert_nothing_left(rig)


def test_the_plan_of_a_sandbox_that_waited_for_an_older_one_is_made_again(start: Start) -> None:
    """Its start was answered before the plan, so that the kubelet would not make another sandbox."""
    world = make_world()
    rig = start(world)
    done = Future[None]()
    done.set_result(None)
    rig.gate.fail_at = "before plan"
    selection = Selection(placed=placed_on(world, "rail0"), rdma_cm=None)
    sandbox = rig.sandboxes.begin_after((done,), make_pod(), lambda: selection, attempts=ATTEMPTS)
    rig.clock.wait_for_one()
    rig.gate.fail_at = ""
    rig.clock.pass_one()
    sandbox.attach_done.result(SOON)
    end_sandbox(rig)
    assert_nothing_left(rig)


def test_an_attempt_whose_undo_fails_is_the_last_one(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = rig.gate.stop_at = "after move-netdev"
    sandbox = begin_often(rig)
    assert rig.gate.reached.wait(SOON)
    free = take_name(world, "rail0")
    rig.gate.open.set()
    assert isinstance(sandbox.attach_done.exception(SOON), RuntimeError)
    assert (sandbox.state, rig.clock.wait_for_one()) == (Phase.RETURNING, RETRY_SECONDS[0])
    assert sandbox.now.is_given_up
    free()
    rig.clock.pass_one()
    assert sandbox.undo_done is not None
    sandbox.undo_done.result(SOON)
    assert world.snapshot() == before
    assert_nothing_left(rig)

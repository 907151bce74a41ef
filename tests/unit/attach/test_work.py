"""What a worker does for an attachment that is not, or no longer, as it was when the work was queued."""

from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.news import node_removed
from nri_rdma.attach.record import Phase
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.request import Scope
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import World
from tests.rig.deadline import wait_until
from tests.unit.attach.rdma_life import attach, begin, device_of
from tests.unit.attach.sandbox_life import begin_often, occupy, take_name
from tests.unit.rigs.attachments import SOON, Rig, placed_on

NIC = "a.example.com/nic=0"


def test_no_container_is_covered_by_what_is_not_attached_yet(world: World, tmp_path: Path) -> None:
    rig = Rig(state=tmp_path, world=world, planners=Workers(1, name="planner"))
    rig.gate.stop_at = "before plan"
    sandbox = begin_often(rig)
    assert rig.gate.reached.wait(SOON)
    assert sandbox.now.record is None
    error = rig.sandboxes.cover(sandbox, NIC, "main").exception(SOON)
    assert isinstance(error, NotReadyError)
    assert error.code is ErrorCode.RETURNING
    rig.gate.open.set()
    sandbox.attach_done.result(SOON)
    rig.sandboxes.cover(sandbox, NIC, "main").result(SOON)
    rig.close()


def test_no_container_is_covered_by_what_goes_home(rig: Rig, world: World) -> None:
    sandbox = attach(rig)
    free = take_name(world, "rail0")
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    rig.clock.wait_for_one()
    assert sandbox.state is Phase.RETURNING
    assert isinstance(rig.sandboxes.cover(sandbox, NIC, "main").exception(SOON), NotReadyError)
    (record,), _ = rig.journal.load()
    assert record.state is Phase.RETURNING
    free()
    rig.clock.pass_one()
    done.result(SOON)


def test_who_is_covered_is_in_the_journal_for_the_next_daemon(rig: Rig) -> None:
    (placed,) = placed_on(rig.world, "rail0")
    request = replace(placed.admitted.request, cdi_device=NIC, scope=Scope(only=frozenset({"main"})))
    sandbox = attach(rig, (replace(placed, admitted=replace(placed.admitted, request=request)),))
    for is_covered in (True, False):
        rig.sandboxes.cover(sandbox, NIC, "sidecar", is_covered=is_covered).result(SOON)
        (record,), _ = rig.journal.load()
        (item,) = record.attached
        assert item.admitted.request.scope.covers("sidecar") is is_covered
        assert record == sandbox.now.record


def test_the_span_of_an_attach_says_how_isolated_its_devices_are(rig: Rig) -> None:
    attach(rig)
    (span,) = [it for it in rig.spans.recent() if it.name == "attach"]
    assert (span.attributes["rdma.isolation"], span.attributes["rdma.attempt"]) == ("hard", 1)


def test_a_pod_that_is_attached_or_looked_at_again_costs_no_socket(rig: Rig) -> None:
    sandbox = attach(rig)
    wait_until(lambda: rig.fake.sockets == 0, "its sockets to be closed", SOON)
    assert rig.sandboxes.held() == 1
    rig.sandboxes.look_again(sandbox).result(SOON)
    assert rig.fake.sockets == 0


def test_the_event_of_a_node_that_was_gone_when_numbers_were_read_again_has_them_read_no_more(
    rig: Rig, world: World
) -> None:
    sandbox = attach(rig)
    rig.event_sequence = 9
    rig.sandboxes.look_again(sandbox).result(SOON)
    looked, number = sandbox.now.looked_again, (231, device_of(world).minor)
    node_removed(rig.sandboxes, number, sequence=9)
    assert sandbox.now.looked_again is looked
    node_removed(rig.sandboxes, number, sequence=10)
    assert sandbox.now.looked_again is not looked


def test_who_waits_for_the_plan_of_a_sandbox_that_ends_is_told_before_its_undo(world: World, tmp_path: Path) -> None:
    rig = Rig(state=tmp_path, world=world, planners=Workers(1, name="planner"))
    go_on = occupy(rig.workers, "sandbox-8", "sandbox-9")
    rig.gate.stop_at = "after plan"
    sandbox = begin_often(rig)
    assert rig.gate.reached.wait(SOON)
    done = rig.sandboxes.end("sandbox-1")
    rig.gate.open.set()
    assert isinstance(sandbox.planned.exception(SOON), NotReadyError)
    assert done is not None
    assert not done.done()
    go_on()
    done.result(SOON)
    rig.close()


def test_what_ends_at_the_last_moment_is_not_called_attached(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig.gate.stop_at = "after resolve-numbers"
    sandbox = begin(rig)
    assert rig.gate.reached.wait(SOON)
    done = rig.sandboxes.end("sandbox-1")
    rig.gate.open.set()
    assert isinstance(sandbox.attach_done.exception(SOON), NotReadyError)
    assert done is not None
    done.result(SOON)
    assert "attached" not in caplog.messages


def test_the_numbers_of_what_goes_home_are_not_read_again(rig: Rig, world: World) -> None:
    """Its devices may be on the host by now, where nobody looks for them."""
    sandbox = attach(rig)
    free = take_name(world, "rail0")
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    rig.clock.wait_for_one()
    device_of(world).minor = world.new_minor()
    before = sandbox.now.record
    rig.sandboxes.look_again(sandbox).result(SOON)
    assert sandbox.now.record is before
    free()
    rig.clock.pass_one()
    done.result(SOON)

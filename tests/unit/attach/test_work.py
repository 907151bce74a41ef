"""What a worker does for an attachment that is not, or no longer, as it was when the work was queued."""

from pathlib import Path

from nri_rdma.attach.record import Phase
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import World
from tests.unit.attach.rdma_life import attach, begin, device_of
from tests.unit.attach.rig import SOON, Rig
from tests.unit.attach.sandbox_life import take_name

NIC = "a.example.com/nic=0"


def test_no_container_is_covered_by_what_is_not_attached_yet(world: World, tmp_path: Path) -> None:
    rig = Rig(state=tmp_path, world=world, planners=Workers(1, name="planner"))
    rig.gate.stop_at = "before plan"
    sandbox = begin(rig)
    assert rig.gate.reached.wait(SOON)
    assert sandbox.record is None
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


def test_the_numbers_of_what_goes_home_are_not_read_again(rig: Rig, world: World) -> None:
    """Its devices may be on the host by now, where nobody looks for them."""
    sandbox = attach(rig)
    free = take_name(world, "rail0")
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    rig.clock.wait_for_one()
    device_of(world).minor = world.new_minor()
    before = sandbox.record
    rig.sandboxes.look_again(sandbox).result(SOON)
    assert sandbox.record is before
    free()
    rig.clock.pass_one()
    done.result(SOON)

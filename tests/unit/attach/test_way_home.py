"""What goes wrong on the way home is tried again until all is home."""

import errno
from collections.abc import Sequence

import pytest

from nri_rdma.attach.ops import AddAltName, DropAltName, Op
from nri_rdma.attach.port import KernelError, Namespace, Refused
from nri_rdma.attach.record import Phase
from nri_rdma.attach.undo import RETRY_SECONDS
from tests.fakes.kernel import FakeKernel, FaultyKernel
from tests.unit.attach.builders import POD_PATH
from tests.unit.attach.sandbox_life import (
    Start,
    assert_nothing_left,
    begin_attach,
    end_sandbox,
    records_of,
    take_name,
)
from tests.unit.rigs.attachments import SOON, add_rail, make_world


def test_xdp_that_the_pod_attached_does_not_come_home(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    for link in pod.links.values():
        link.xdp = True
    end_sandbox(rig)
    assert world.snapshot() == before


def test_of_ebpf_programs_the_pods_own_stay_not_and_the_hosts_do(start: Start) -> None:
    """They follow a link through all namespaces."""
    world = make_world()
    for link in world.host.links.values():
        link.tcx = (7, 8)
    before = world.snapshot()
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    for link in pod.links.values():
        link.tcx = (9, 7, 8)
    end_sandbox(rig)
    assert world.snapshot() == before


def test_a_virtual_netdev_that_the_pod_deleted_is_told_as_lost(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    world = make_world()
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    pod.links.clear()
    end_sandbox(rig)
    (line,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert line.message == "the host has lost a netdev"
    assert (line.__dict__["netdev"], line.__dict__["kind"]) == ("rail0", "veth")
    (lost,) = rig.sandboxes.lost().rows()
    assert (lost.netdev, lost.why) == ("rail0", "it is neither on the host nor in the pod")


def test_a_physical_netdev_whose_card_was_removed_is_lost_and_its_pod_ends(start: Start) -> None:
    world = make_world(physical=True)
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    (parent,) = (link.parent for link in pod.links.values() if link.parent)
    world.unplug(parent)
    end_sandbox(rig)
    (lost,) = rig.sandboxes.lost().rows()
    assert (lost.netdev, lost.why) == ("rail0", f"{parent} was removed from the machine")
    assert_nothing_left(rig)


def test_a_virtual_netdev_that_the_pod_replaced_is_lost_and_the_other_one_stays(start: Start) -> None:
    """Of the same kind, number, name and address: all that a pod can see of its own."""
    world = make_world()
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    (link,) = pod.links.values()
    other = world.add_link(pod, link.name, ifindex=link.ifindex, mac=link.mac)
    end_sandbox(rig)
    assert list(world.host.links.values()) == []
    assert list(pod.links.values()) == [other]
    (lost,) = rig.sandboxes.lost().rows()
    assert (lost.netdev, lost.why) == ("rail0", "the pod has replaced it with another veth that has its number")


def test_a_failing_undo_is_tried_again_until_it_succeeds_and_only_then_done(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    sandbox = begin_attach(rig)
    sandbox.attach_done.result(SOON)
    free = take_name(world, "rail0")
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    for pause in RETRY_SECONDS[:3]:
        assert rig.clock.wait_for_one() == pause
        assert not done.done()
        assert "EEXIST" in sandbox.now.undo_error
        assert (sandbox.state, rig.gone, rig.sandboxes.end("sandbox-1")) == (Phase.RETURNING, [], done)
        rig.clock.pass_one()
    rig.clock.wait_for_one()
    assert len(rig.clock.pending) == 1
    free()
    rig.clock.pass_one()
    done.result(SOON)
    assert (world.snapshot(), rig.gone, sandbox.now.undo_error) == (before, ["sandbox-1"], "")
    told = [span.error for span in rig.spans.recent() if span.name == "undo"]
    assert ["EEXIST" in it for it in told] == [True, True, True, True, False] and told[-1] == ""
    assert_nothing_left(rig)


def test_a_rollback_that_fails_is_retried_once_at_a_time_though_stop_and_remove_follow(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = "after move-netdev"
    rig.gate.stop_at = "after move-netdev"
    sandbox = begin_attach(rig)
    assert rig.gate.reached.wait(SOON)
    free = take_name(world, "rail0")
    rig.gate.open.set()
    assert isinstance(sandbox.attach_done.exception(SOON), RuntimeError)
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    assert rig.sandboxes.end("sandbox-1") is done
    rig.clock.wait_for_one()
    assert (len(rig.clock.pending), done.done()) == (1, False)
    free()
    rig.clock.pass_one()
    done.result(SOON)
    assert world.snapshot() == before
    assert_nothing_left(rig)


def test_a_listener_that_fails_is_told_again_and_the_devices_are_not_touched_again(start: Start) -> None:
    world = make_world()
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    rig.failing_gone = 2
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    rig.clock.wait_for_one()
    assert (world.held, records_of(rig), done.done()) == (0, {}, False)
    world.host.links[next(iter(world.host.links))].mtu = 9000  # the administrator's, from now on
    now = world.snapshot()
    rig.clock.pass_one()
    rig.clock.pass_one()
    done.result(SOON)
    assert (world.snapshot(), rig.gone) == (now, ["sandbox-1"])
    assert_nothing_left(rig)


@pytest.mark.parametrize("refused", [False, True])
def test_a_namespace_is_let_go_without_the_names_that_the_pod_gave(
    start: Start, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(physical=True)
    stuck = _StuckMoves(FakeKernel(world))
    rig = start(world, kernel=stuck)
    begin_attach(rig).attach_done.result(SOON)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    (moved,) = (link for link in pod.links.values() if link.parent)
    moved.alt_names.append("pods-own")
    stuck.stuck, stuck.names_stuck = True, True
    rig.sandboxes.end("sandbox-1")
    for attempt in range(len(RETRY_SECONDS)):
        rig.clock.wait_for_one()
        is_last = attempt == len(RETRY_SECONDS) - 1
        stuck.names_stuck = refused or not is_last
        stuck.names_refused = int(is_last)  # to the attempt itself; what comes after it removes them
        rig.clock.pass_one()
    rig.clock.wait_for_one()
    assert rig.sandboxes.held() == 0
    assert ("pods-own" in moved.alt_names) == refused
    told = [vars(it)["error"] for it in caplog.records if it.message == "alternative names not removed"]
    assert told == ["set alternative names: EBUSY"] * refused


@pytest.mark.parametrize("physical", [True, False])
def test_after_thirty_seconds_the_namespace_of_physical_devices_is_let_go(start: Start, physical: bool) -> None:
    world = make_world(physical=physical)
    before = world.snapshot()
    fake = FakeKernel(world)
    stuck = _StuckMoves(fake)
    rig = start(world, kernel=stuck)
    begin_attach(rig).attach_done.result(SOON)
    stuck.stuck = True
    world.remove_namespace(POD_PATH)
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    for _ in RETRY_SECONDS:
        rig.clock.pass_one()
    rig.clock.wait_for_one()
    assert sum(RETRY_SECONDS) >= 30
    assert rig.sandboxes.held() == (0 if physical else 1)
    if not physical:
        stuck.stuck = False
    rig.clock.pass_one()
    done.result(SOON)
    assert world.snapshot() == before
    assert_nothing_left(rig)


class _StuckMoves(FaultyKernel):
    """A driver that does not let its netdev go."""

    stuck = names_stuck = False
    names_refused = 0
    """How often names are refused besides."""

    def apply(self, namespace: Namespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
        about_names = any(isinstance(op, AddAltName | DropAltName) for op in ops)
        if about_names and self.names_refused:
            self.names_refused -= 1
            return tuple(Refused(op=op, error=KernelError("set alternative names", errno.EBUSY)) for op in ops)
        if self.names_stuck and any(isinstance(op, AddAltName | DropAltName) for op in ops):
            return tuple(Refused(op=op, error=KernelError("set alternative names", errno.EBUSY)) for op in ops)
        return super().apply(namespace, index, ops)

    def move_link(self, *arguments: object, **more: object) -> None:
        if self.stuck:
            raise KernelError("move link", errno.EBUSY)
        super().move_link(*arguments, **more)  # type: ignore[arg-type]  # as given


def test_closing_cancels_what_is_pending_and_lets_namespaces_go_but_keeps_the_journal(start: Start) -> None:
    world = make_world()
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    take_name(world, "rail0")
    rig.sandboxes.end("sandbox-1")
    rig.clock.wait_for_one()
    rig.close()
    assert (rig.clock.pending, world.held) == ([], 0)
    assert records_of(rig) == {"sandbox-1": Phase.RETURNING}
    rig.close()


def test_closing_leaves_the_namespace_of_an_attach_that_still_runs_open_for_it(start: Start) -> None:
    world = make_world()
    rig = start(world)
    rig.gate.stop_at = "before configure-netdev"
    sandbox = begin_attach(rig)
    assert rig.gate.reached.wait(SOON)
    running = rig.workers.close(0.01)
    assert running == ("sandbox-1",)
    rig.sandboxes.close(busy=running)
    assert world.held == 1
    rig.gate.open.set()
    assert sandbox.attach_done.result(SOON) is None


def test_a_name_that_the_pod_gave_to_its_netdev_and_a_link_of_the_host_has_keeps_it_from_nothing(start: Start) -> None:
    world = make_world()
    add_rail(world, "rail1")
    before = world.snapshot()
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    (moved,) = pod.links.values()
    moved.alt_names.append("rail1")
    end_sandbox(rig)
    assert world.snapshot() == before
    assert_nothing_left(rig)

"""The life of sandboxes: who waits for what, what a restart makes of a journal, and that nothing is held at the end."""

import errno
from collections.abc import Callable, Iterator
from concurrent.futures import wait as wait_for
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.port import KernelError, Namespace
from nri_rdma.attach.processes import ProcessIdentity
from nri_rdma.attach.record import State
from nri_rdma.attach.resolution import Resolve, Resolved
from nri_rdma.attach.sandbox import Chosen, Sandbox
from nri_rdma.attach.sandboxes import ATTEMPT_PAUSES_S, ATTEMPTS, RETRY_SECONDS
from nri_rdma.errors import AttachError, ErrorCode, NotReadyError, NriRdmaError, PlacementError
from nri_rdma.model.device import CharDevice, CharKind
from nri_rdma.model.request import Mode
from tests.fakes.kernel import FakeKernel, FaultyKernel, World
from tests.unit.attach.builders import POD_PATH, make_pod
from tests.unit.attach.rig import SOON, FakeProcesses, Rig, add_rail, await_taken_up, make_world, placed_on

Start = Callable[..., Rig]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons, one after the other, on one state directory."""
    rigs: list[Rig] = []

    def make(world: World, **more: object) -> Rig:
        rigs.append(Rig(state=tmp_path, world=world, **more))  # type: ignore[arg-type]  # fields of the dataclass
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def _attach(
    rig: Rig, *names: str, sandbox_id: str = "sandbox-1", mode: Mode = Mode.EXCLUSIVE, path: str = POD_PATH
) -> Sandbox:
    pod = make_pod(sandbox_id, path=path)
    return rig.sandboxes.begin(pod, placed_on(rig.world, *(names or ("rail0",)), mode=mode), None)


def _end(rig: Rig, sandbox_id: str = "sandbox-1") -> None:
    done = rig.sandboxes.end(sandbox_id)
    if done is not None:
        done.result(SOON)


def _records(rig: Rig) -> dict[str, State]:
    records, errors = rig.journal.load()
    assert not errors
    return {record.pod.sandbox_id: record.state for record in records}


def _assert_nothing_left(rig: Rig) -> None:
    assert rig.sandboxes.all() == ()
    assert rig.sandboxes.held() == 0
    assert rig.world.held == 0
    assert _records(rig) == {}
    assert rig.clock.pending == []


def test_an_attached_sandbox_holds_its_namespace_until_it_ends(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    sandbox = _attach(rig)
    assert sandbox.attach_done.result(SOON) is None
    assert (sandbox.state, sandbox.devices_done, sandbox.devices_total) == (State.ATTACHED, 1, 1)
    assert (rig.sandboxes.held(), world.held, _records(rig)) == (1, 1, {"sandbox-1": State.ATTACHED})
    assert rig.watched == [POD_PATH]
    _end(rig)
    assert (world.snapshot(), sandbox.state, rig.gone) == (before, State.GONE, ["sandbox-1"])
    _assert_nothing_left(rig)
    assert rig.sandboxes.end("sandbox-1") is None


def test_everybody_who_ends_a_sandbox_joins_one_undo(start: Start) -> None:
    rig = start(make_world())
    _attach(rig).attach_done.result(SOON)
    first, second = rig.sandboxes.end("sandbox-1"), rig.sandboxes.end("sandbox-1")
    assert first is not None
    assert first is second or second is None
    first.result(SOON)
    assert rig.gone == ["sandbox-1"]


def test_an_end_during_the_attach_stops_it_at_the_next_step(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.stop_at = "after move-netdev"
    sandbox = _attach(rig)
    assert rig.gate.reached.wait(SOON)
    done = rig.sandboxes.end("sandbox-1")
    assert sandbox.state is State.RETURNING
    rig.gate.open.set()
    with pytest.raises(NotReadyError) as caught:
        sandbox.attach_done.result(SOON)
    assert caught.value.code is ErrorCode.RETURNING
    assert done is not None
    done.result(SOON)
    assert (world.snapshot(), rig.gone) == (before, ["sandbox-1"])
    _assert_nothing_left(rig)


def test_an_end_before_the_attach_began_leaves_the_host_alone(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    add_rail(world, "rail1")
    before = world.snapshot()
    rig.gate.stop_at = "before move-netdev mlx5_rail0"
    _attach(rig, "rail0")
    assert rig.gate.reached.wait(SOON)
    rig.workers.submit("sandbox-2", lambda: _drop(rig.gate.open.wait(SOON)))  # the second worker is busy, too
    sandbox = _attach(rig, "rail1", sandbox_id="sandbox-2")
    done = rig.sandboxes.end("sandbox-2")
    rig.gate.open.set()
    assert done is not None
    done.result(SOON)
    assert isinstance(sandbox.attach_done.exception(SOON), NotReadyError)
    _end(rig)
    assert world.snapshot() == before
    _assert_nothing_left(rig)


def test_a_failed_attach_is_undone_before_its_error_is_told(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = "after configure-netdev"
    with pytest.raises(RuntimeError, match="injected"):
        _attach(rig).attach_done.result(SOON)
    assert (world.snapshot(), rig.gone) == (before, ["sandbox-1"])
    _assert_nothing_left(rig)


@pytest.mark.parametrize("operation", range(1, 6))
def test_whatever_the_kernel_refuses_in_an_attach_nothing_is_held(start: Start, operation: int) -> None:
    world = make_world()
    before = world.snapshot()
    fake = FakeKernel(world)
    rig = start(world, kernel=FaultyKernel(fake, fail_at=operation, after=bool(operation % 2)))
    with pytest.raises(AttachError):
        _attach(rig).attach_done.result(SOON)
    while rig.clock.pending:
        rig.clock.pass_one()
    assert (world.snapshot(), rig.gone) == (before, ["sandbox-1"])
    _assert_nothing_left(rig)


# Attempts


def _begin_often(rig: Rig) -> Sandbox:
    return rig.sandboxes.begin(make_pod(), placed_on(rig.world, "rail0"), None, attempts=ATTEMPTS)


def test_an_attach_that_fails_is_tried_again_and_its_device_stays_taken(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = "after configure-netdev"
    sandbox = _begin_often(rig)
    assert rig.clock.wait_for_one() == ATTEMPT_PAUSES_S[0]
    assert (sandbox.planned.result(SOON), sandbox.attach_done.done(), rig.gone) == (None, False, [])
    assert (world.snapshot(), world.held, _records(rig)) == (before, 0, {})
    assert (sandbox.state, sandbox.attempt, "injected" in sandbox.last_error) == (State.PLANNED, 2, True)
    rig.gate.fail_at = ""
    rig.clock.pass_one()
    sandbox.attach_done.result(SOON)
    assert (sandbox.state, _records(rig)) == (State.ATTACHED, {"sandbox-1": State.ATTACHED})
    _end(rig)
    assert world.snapshot() == before
    _assert_nothing_left(rig)


def test_an_attach_that_fails_again_and_again_is_given_up(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = "after move-netdev"
    sandbox = _begin_often(rig)
    for pause in ATTEMPT_PAUSES_S:
        assert rig.clock.wait_for_one() == pause
        assert not sandbox.attach_done.done()
        rig.clock.pass_one()
    assert isinstance(sandbox.attach_done.exception(SOON), RuntimeError)
    assert (sandbox.attempt, world.snapshot(), rig.gone) == (ATTEMPTS, before, ["sandbox-1"])
    _assert_nothing_left(rig)


def test_a_sandbox_that_ends_between_two_attempts_is_not_tried_again(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = "after move-netdev"
    sandbox = _begin_often(rig)
    rig.clock.wait_for_one()
    _end(rig)
    assert isinstance(sandbox.attach_done.exception(SOON), NotReadyError)
    assert (world.snapshot(), rig.gone) == (before, ["sandbox-1"])
    _assert_nothing_left(rig)


def test_a_refusal_by_the_plan_is_told_at_once_and_not_tried_again(start: Start) -> None:
    world = make_world()
    rig = start(world)
    next(link for link in world.host.links.values() if link.name == "rail0").master = 99
    sandbox = _begin_often(rig)
    assert isinstance(sandbox.planned.exception(SOON), PlacementError)
    assert isinstance(sandbox.attach_done.exception(SOON), PlacementError)
    _assert_nothing_left(rig)


def test_an_attempt_whose_undo_fails_is_the_last_one(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = rig.gate.stop_at = "after move-netdev"
    sandbox = _begin_often(rig)
    assert rig.gate.reached.wait(SOON)
    free = _take_name(world, "rail0")
    rig.gate.open.set()
    assert isinstance(sandbox.attach_done.exception(SOON), RuntimeError)
    assert (sandbox.state, rig.clock.wait_for_one()) == (State.RETURNING, RETRY_SECONDS[0])
    free()
    rig.clock.pass_one()
    assert sandbox.undo_done is not None
    sandbox.undo_done.result(SOON)
    assert world.snapshot() == before
    _assert_nothing_left(rig)


def test_an_end_while_the_plan_is_made_is_undone_by_who_plans(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.stop_at = "after plan"
    sandbox = _begin_often(rig)
    assert rig.gate.reached.wait(SOON)
    done = rig.sandboxes.end("sandbox-1")
    rig.gate.open.set()
    assert done is not None
    done.result(SOON)
    assert isinstance(sandbox.planned.exception(SOON), NotReadyError)
    assert (world.snapshot(), rig.gone) == (before, ["sandbox-1"])
    _assert_nothing_left(rig)


def test_what_an_older_sandbox_holds_is_chosen_when_it_is_home(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    world.add_namespace("/run/netns/pod-2")
    _attach(rig).attach_done.result(SOON)
    free = _take_name(world, "rail0")
    undo = rig.sandboxes.end("sandbox-1")
    assert undo is not None
    chosen: list[object] = []

    def choose() -> Chosen:
        chosen.append(world.snapshot())
        return Chosen(placed=placed_on(world, "rail0"), rdma_cm=None)

    younger = rig.sandboxes.begin_after((undo,), make_pod("sandbox-2", path="/run/netns/pod-2"), choose)
    rig.clock.wait_for_one()
    assert (chosen, younger.planned.done(), rig.sandboxes.knows("sandbox-2")) == ([], False, True)
    free()
    rig.clock.pass_one()
    younger.attach_done.result(SOON)
    assert chosen == [before]
    _end(rig, "sandbox-2")
    assert world.snapshot() == before
    _assert_nothing_left(rig)


def test_a_pod_without_a_namespace_of_its_own_is_refused(start: Start) -> None:
    world = make_world()
    rig = start(world)
    for path, code in (("", ErrorCode.NO_NETWORK_NAMESPACE), ("/proc/self/ns/net", ErrorCode.HOST_NETWORK)):
        sandbox = rig.sandboxes.begin(make_pod(path=path), placed_on(world, "rail0"), None)
        with pytest.raises(PlacementError) as caught:
            sandbox.attach_done.result(SOON)
        assert caught.value.code is code
    _assert_nothing_left(rig)


def test_a_namespace_that_is_gone_already_fails_the_attach(start: Start) -> None:
    world = make_world()
    rig = start(world)
    with pytest.raises(AttachError, match="ENOENT"):
        rig.sandboxes.begin(make_pod(path="/run/netns/no"), placed_on(world, "rail0"), None).attach_done.result(SOON)
    _assert_nothing_left(rig)


def test_a_watch_that_cannot_be_set_does_not_leak_the_namespace(start: Start) -> None:
    world = make_world()
    rig = start(world)

    def refuse(_path: str) -> None:
        raise OSError(errno.ENOSPC, "no more watches")

    rig.sandboxes._ends._on_held = refuse  # the daemon's watcher
    _attach(rig).attach_done.result(SOON)
    _end(rig)
    _assert_nothing_left(rig)


def test_a_journal_that_cannot_be_written_refuses_the_attach(start: Start, tmp_path: Path) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    (tmp_path / "sandbox-1.new").mkdir()
    with pytest.raises(AttachError, match="the journal cannot be written"):
        _attach(rig).attach_done.result(SOON)
    assert world.snapshot() == before
    (tmp_path / "sandbox-1.new").rmdir()
    _assert_nothing_left(rig)


def test_a_journal_that_cannot_be_written_does_not_keep_devices_in_the_pod(start: Start, tmp_path: Path) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    (tmp_path / "sandbox-1.new").mkdir()
    _end(rig)
    assert world.snapshot() == before


def test_shared_devices_move_nothing_and_hold_no_namespace(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    _attach(rig, mode=Mode.SHARED).attach_done.result(SOON)
    assert (world.snapshot(), world.held, rig.sandboxes.held()) == (before, 0, 0)
    assert rig.watched == [POD_PATH]  # its end is noticed all the same
    _end(rig)
    _assert_nothing_left(rig)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("moves", [True, False])
def test_a_netdev_that_was_enslaved_since_the_node_was_read_is_not_given(start: Start, mode: Mode, moves: bool) -> None:
    world = make_world()
    add_rail(world, "rail1")
    rig = start(world)
    placed = placed_on(world, "rail0", mode=mode) + (placed_on(world, "rail1") if moves else ())
    bond = world.add_link(world.host, "bond0")
    next(link for link in world.host.links.values() if link.name == "rail0").master = bond.ifindex
    before = world.snapshot()
    with pytest.raises(PlacementError, match="rail0 is enslaved to bond0") as caught:
        rig.sandboxes.begin(make_pod(), placed, None).attach_done.result(SOON)
    assert caught.value.code is ErrorCode.DEVICE_IN_USE
    assert world.snapshot() == before
    _assert_nothing_left(rig)


def test_a_second_sandbox_of_the_same_pod_is_another_one(start: Start) -> None:
    world = make_world()
    add_rail(world, "rail1")
    before = world.snapshot()
    rig = start(world)
    world.add_namespace("/run/netns/pod-2")
    one = _attach(rig, "rail0")
    two = _attach(rig, "rail1", sandbox_id="sandbox-2", path="/run/netns/pod-2")
    for sandbox in (one, two):
        sandbox.attach_done.result(SOON)
    _end(rig, "sandbox-1")
    assert (one.state, two.state) == (State.GONE, State.ATTACHED)
    assert [link.name for link in world.host.links.values()] == ["rail0"]
    _end(rig, "sandbox-2")
    assert world.snapshot() == before


# Character devices


RDMA_CM = CharDevice(kind=CharKind.RDMA_CM, path="/dev/infiniband/rdma_cm", major=10, minor=122, mode=0, uid=0, gid=0)


def _without(*kinds: CharKind) -> Resolve:
    """A node that lost these."""

    def resolve(known: Resolved) -> Resolved:
        devices = tuple(
            replace(it, char_devices=tuple(char for char in it.char_devices if char.kind not in kinds))
            for it in known.devices
        )
        return Resolved(devices=devices, rdma_cm=None if CharKind.RDMA_CM in kinds else RDMA_CM)

    return resolve


@pytest.mark.parametrize(
    ("lost", "module"), [(CharKind.UVERBS, "modprobe ib_uverbs"), (CharKind.RDMA_CM, "modprobe rdma_ucm")]
)
@pytest.mark.parametrize("mode", list(Mode))
def test_a_pod_does_not_start_without_a_device_node_that_it_asked_for(
    start: Start, lost: CharKind, module: str, mode: Mode
) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world, resolve=_without(lost))
    with pytest.raises(AttachError, match=lost) as caught:
        _attach(rig, mode=mode).attach_done.result(SOON)
    assert module in caught.value.hint
    assert world.snapshot() == before
    _assert_nothing_left(rig)


def test_a_device_node_that_was_not_asked_for_is_not_missed(start: Start) -> None:
    rig = start(make_world(), resolve=_without(CharKind.RDMA_CM))
    (placed,) = placed_on(rig.world, "rail0")
    request = replace(placed.admitted.request, char_kinds=frozenset({CharKind.UVERBS}))
    placed = replace(placed, admitted=replace(placed.admitted, request=request))
    rig.sandboxes.begin(make_pod(), (placed,), None).attach_done.result(SOON)
    _end(rig)


def test_rdma_cm_is_what_it_is_at_the_attach_not_what_it_was_at_the_start_of_the_daemon(start: Start) -> None:
    rig = start(make_world(), resolve=_without())
    stale = replace(RDMA_CM, minor=99)
    sandbox = rig.sandboxes.begin(make_pod(), placed_on(rig.world, "rail0"), stale)
    sandbox.attach_done.result(SOON)
    assert sandbox.record is not None
    assert sandbox.record.rdma_cm == RDMA_CM
    _end(rig)


def test_the_device_nodes_of_many_devices_are_read_once(start: Start) -> None:
    calls: list[Resolved] = []

    def resolve(known: Resolved) -> Resolved:
        calls.append(known)
        return _without()(known)

    world = make_world()
    add_rail(world, "rail1")
    rig = start(world, resolve=resolve)
    _attach(rig, "rail0", "rail1").attach_done.result(SOON)
    assert [[device.name for device in call.devices] for call in calls] == [["mlx5_rail0", "mlx5_rail1"]]
    _end(rig)


# Pods on the host's network


def _attach_on_host_network(rig: Rig, pid: int = 77) -> Sandbox:
    placed = placed_on(rig.world, "rail0", mode=Mode.SHARED)
    return rig.sandboxes.begin(make_pod(path="", pid=pid), placed, None)


def test_a_pod_on_the_hosts_network_ends_with_its_process_when_no_event_tells(start: Start) -> None:
    rig = start(make_world())
    rig.processes.running[77] = 1000
    sandbox = _attach_on_host_network(rig)
    sandbox.attach_done.result(SOON)
    assert rig.processes.watched == [ProcessIdentity(pid=77, start=1000)]
    rig.sandboxes.end_of_process(ProcessIdentity(pid=77, start=999))
    rig.sandboxes.end_of_process(ProcessIdentity(pid=78, start=1000))
    assert sandbox.state is State.ATTACHED
    rig.sandboxes.end_of_process(ProcessIdentity(pid=77, start=1000))
    assert sandbox.undo_done is not None
    sandbox.undo_done.result(SOON)
    _assert_nothing_left(rig)


def test_a_pod_with_a_namespace_does_not_hang_on_a_process(start: Start) -> None:
    rig = start(make_world())
    sandbox = rig.sandboxes.begin(make_pod(pid=77), placed_on(rig.world, "rail0"), None)
    sandbox.attach_done.result(SOON)
    rig.sandboxes.end_of_process(ProcessIdentity(pid=77, start=1000))
    assert (sandbox.state, rig.processes.watched) == (State.ATTACHED, [])
    _end(rig)


def test_a_daemon_that_does_not_see_the_process_serves_the_pod_all_the_same(start: Start) -> None:
    rig = start(make_world())
    sandbox = _attach_on_host_network(rig)
    sandbox.attach_done.result(SOON)
    assert sandbox.record is not None
    assert sandbox.record.process is None
    _end(rig)
    _assert_nothing_left(rig)


@pytest.mark.parametrize(("now", "adopted"), [({77: 1000}, True), ({}, False), ({77: 2000}, False)])
def test_after_a_restart_a_pod_on_the_hosts_network_is_known_by_its_process(
    start: Start, now: dict[int, int], adopted: bool
) -> None:
    world = make_world()
    rig = start(world)
    rig.processes.running[77] = 1000
    _attach_on_host_network(rig).attach_done.result(SOON)
    rig.kill()
    processes = FakeProcesses()
    processes.running = now
    again = start(world, processes=processes)
    again.sandboxes.recover(lambda _record: None)
    await_taken_up(again)
    wait_for([it.undo_done for it in again.sandboxes.all() if it.undo_done is not None], SOON)
    assert [it.state for it in again.sandboxes.all()] == ([State.ATTACHED] if adopted else [])
    assert len(processes.watched) == int(adopted)
    _end(again)
    _assert_nothing_left(again)


# What goes wrong on the way home


def test_xdp_that_the_pod_attached_does_not_come_home(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    for link in pod.links.values():
        link.xdp = True
    _end(rig)
    assert world.snapshot() == before


def _take_name(world: World, name: str) -> Callable[[], None]:
    """Somebody on the host takes the name; the result gives it back."""
    intruder = world.add_link(world.host, name)
    return lambda: _drop(world.host.links.pop(intruder.ifindex))


def test_a_failing_undo_is_tried_again_until_it_succeeds_and_only_then_done(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    sandbox = _attach(rig)
    sandbox.attach_done.result(SOON)
    free = _take_name(world, "rail0")
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    for pause in RETRY_SECONDS[:3]:
        assert rig.clock.wait_for_one() == pause
        assert not done.done()
        assert "EEXIST" in sandbox.undo_error
        assert (sandbox.state, rig.gone, rig.sandboxes.end("sandbox-1")) == (State.RETURNING, [], done)
        rig.clock.pass_one()
    rig.clock.wait_for_one()
    assert len(rig.clock.pending) == 1
    free()
    rig.clock.pass_one()
    done.result(SOON)
    assert (world.snapshot(), rig.gone, sandbox.undo_error) == (before, ["sandbox-1"], "")
    _assert_nothing_left(rig)


def test_a_rollback_that_fails_is_retried_once_at_a_time_though_stop_and_remove_follow(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = "after move-netdev"
    rig.gate.stop_at = "after move-netdev"
    sandbox = _attach(rig)
    assert rig.gate.reached.wait(SOON)
    free = _take_name(world, "rail0")
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
    _assert_nothing_left(rig)


def test_a_listener_that_fails_is_told_again_and_the_devices_are_not_touched_again(start: Start) -> None:
    world = make_world()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.failing_gone = 2
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    rig.clock.wait_for_one()
    assert (world.held, _records(rig), done.done()) == (0, {}, False)
    world.host.links[next(iter(world.host.links))].mtu = 9000  # the administrator's, from now on
    now = world.snapshot()
    rig.clock.pass_one()
    rig.clock.pass_one()
    done.result(SOON)
    assert (world.snapshot(), rig.gone) == (now, ["sandbox-1"])
    _assert_nothing_left(rig)


@pytest.mark.parametrize("physical", [True, False])
def test_after_thirty_seconds_the_namespace_of_physical_devices_is_let_go(start: Start, physical: bool) -> None:
    world = make_world(physical=physical)
    before = world.snapshot()
    fake = FakeKernel(world)
    stuck = _StuckMoves(fake)
    rig = start(world, kernel=stuck)
    _attach(rig).attach_done.result(SOON)
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
    _assert_nothing_left(rig)


class _StuckMoves(FaultyKernel):
    """A driver that does not let its netdev go."""

    stuck = False

    def move_link(self, *arguments: object, **more: object) -> None:
        if self.stuck:
            raise KernelError("move link", errno.EBUSY)
        super().move_link(*arguments, **more)  # type: ignore[arg-type]  # as given


def test_closing_cancels_what_is_pending_and_lets_namespaces_go_but_keeps_the_journal(start: Start) -> None:
    world = make_world()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    _take_name(world, "rail0")
    rig.sandboxes.end("sandbox-1")
    rig.clock.wait_for_one()
    rig.close()
    assert (rig.clock.pending, world.held) == ([], 0)
    assert _records(rig) == {"sandbox-1": State.RETURNING}
    rig.close()


def test_closing_leaves_the_namespace_of_an_attach_that_still_runs_open_for_it(start: Start) -> None:
    world = make_world()
    rig = start(world)
    rig.gate.stop_at = "before configure-netdev"
    sandbox = _attach(rig)
    assert rig.gate.reached.wait(SOON)
    running = rig.workers.close(0.01)
    assert running == ("sandbox-1",)
    rig.sandboxes.close(busy=running)
    assert world.held == 1
    rig.gate.open.set()
    assert sandbox.attach_done.result(SOON) is None


# What a restart makes of it


def _recovered(start: Start, world: World) -> tuple[Rig, tuple[NriRdmaError, ...], list[str]]:
    rig = start(world)
    told: list[str] = []
    errors = rig.sandboxes.recover(lambda record: told.append(record.pod.sandbox_id))
    await_taken_up(rig)
    undos = [sandbox.undo_done for sandbox in rig.sandboxes.all() if sandbox.undo_done is not None]
    wait_for(undos, SOON)
    return rig, errors, told


def test_what_was_attached_is_adopted(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.kill()
    again, errors, told = _recovered(start, world)
    (sandbox,) = again.sandboxes.all()
    assert (errors, told, sandbox.state, again.watched) == ((), ["sandbox-1"], State.ATTACHED, [POD_PATH])
    assert sandbox.record == rig.sandboxes.all()[0].record
    assert sandbox.attach_done.done()
    assert world.held == 1
    _end(again)
    assert world.snapshot() == before
    _assert_nothing_left(again)


PLACES = ("before move-netdev", "after move-netdev", "after configure-netdev", "before resolve-numbers")


def _killed_at(start: Start, world: World, place: str, tmp_path: Path) -> None:
    """A daemon is killed in the middle of an attach."""
    rig = start(world)
    rig.gate.stop_at = place
    _attach(rig)
    assert rig.gate.reached.wait(SOON)
    journal, state = (tmp_path / "sandbox-1.json").read_bytes(), world.snapshot()
    rig.kernel = None
    rig.gate.fail_at = place
    _freeze(rig)  # a killed process does not roll back
    assert world.snapshot() == state
    (tmp_path / "sandbox-1.json").write_bytes(journal)


@pytest.mark.parametrize("place", PLACES)
def test_what_was_half_attached_is_begun_anew(start: Start, place: str, tmp_path: Path) -> None:
    """The runtime has its answer, and the pod's containers come at any time."""
    world = make_world()
    before = world.snapshot()
    _killed_at(start, world, place, tmp_path)
    again, errors, told = _recovered(start, world)
    assert again.clock.wait_for_one() == ATTEMPT_PAUSES_S[0]
    assert (errors, told, world.snapshot(), again.gone) == ((), ["sandbox-1"], before, [])
    again.clock.pass_one()
    (sandbox,) = again.sandboxes.all()
    assert sandbox.attach_done.result(SOON) is None
    assert (sandbox.state, world.snapshot(), _records(again)) == (State.ATTACHED, {}, {"sandbox-1": State.ATTACHED})
    _end(again)
    assert (world.snapshot(), again.gone) == (before, ["sandbox-1"])
    _assert_nothing_left(again)


@pytest.mark.parametrize("place", PLACES)
def test_what_was_half_attached_goes_home_when_its_pod_is_gone(start: Start, place: str, tmp_path: Path) -> None:
    world = make_world(physical=True)
    before = world.snapshot()
    _killed_at(start, world, place, tmp_path)
    world.remove_namespace(POD_PATH)
    again, errors, told = _recovered(start, world)
    assert (errors, told, world.snapshot(), again.gone) == ((), ["sandbox-1"], before, ["sandbox-1"])
    _assert_nothing_left(again)


def _freeze(rig: Rig) -> None:
    """End the process where it stands: its kernel answers no more."""
    rig.sandboxes._work._kernel = FaultyKernel(rig.fake, fail_at=1, crash=True)
    rig.kill()


def test_what_an_earlier_daemon_left_is_taken_up_when_it_is_said_and_waits_until_then(start: Start) -> None:
    world = make_world()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.kill()
    again = start(world)
    again.sandboxes.recover(lambda _record: None, later=True)
    (sandbox,) = again.sandboxes.all()
    assert sandbox.taken_up is not None
    assert (sandbox.state, world.held, sandbox.taken_up.done()) == (State.PLANNED, 0, False)
    again.sandboxes.take_up()
    sandbox.taken_up.result(SOON)
    assert (sandbox.state, world.held) == (State.ATTACHED, 1)
    _end(again)


def test_what_ends_before_it_was_taken_up_comes_home_all_the_same(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.kill()
    again = start(world)
    again.sandboxes.recover(lambda _record: None, later=True)
    _end(again)
    again.sandboxes.take_up()
    assert (world.snapshot(), again.gone) == (before, ["sandbox-1"])
    _assert_nothing_left(again)


def test_an_adopted_sandbox_is_not_seen_attached_before_its_numbers_are_to_be_read_anew(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.kill()
    seen: list[bool] = []
    advance = Sandbox.advance

    def watched(sandbox: Sandbox, state: State) -> None:
        seen.append(sandbox.looked_again is not None)
        advance(sandbox, state)

    monkeypatch.setattr(Sandbox, "advance", watched)
    again, _, _ = _recovered(start, world)
    assert seen == [True]
    _end(again)


def test_a_namespace_that_cannot_be_opened_just_now_is_not_taken_for_gone(start: Start) -> None:
    world = make_world()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.kill()
    again = start(world)
    open_namespace = again.fake.open_namespace

    def refuse(_path: str) -> Namespace:
        raise KernelError("open the network namespace", errno.EMFILE)

    again.fake.open_namespace = refuse  # type: ignore[method-assign,assignment]  # no descriptor is left
    again.sandboxes.recover(lambda _record: None)
    again.clock.wait_for_one()
    (sandbox,) = again.sandboxes.all()
    assert (sandbox.ends, _records(again)) == (False, {"sandbox-1": State.ATTACHED})
    again.fake.open_namespace = open_namespace  # type: ignore[method-assign]  # as it was
    again.clock.pass_one()
    await_taken_up(again)
    assert (sandbox.state, world.held) == (State.ATTACHED, 1)
    _end(again)


def test_what_ends_while_its_namespace_cannot_be_opened_comes_home_when_it_can(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.kill()
    again = start(world)
    open_namespace = again.fake.open_namespace

    def refuse(_path: str) -> Namespace:
        raise KernelError("open the network namespace", errno.EMFILE)

    again.fake.open_namespace = refuse  # type: ignore[method-assign,assignment]  # no descriptor is left
    again.sandboxes.recover(lambda _record: None, later=True)
    done = again.sandboxes.end("sandbox-1")
    assert done is not None
    again.clock.wait_for_one()
    assert (done.done(), _records(again)) == (False, {"sandbox-1": State.ATTACHED})
    again.fake.open_namespace = open_namespace  # type: ignore[method-assign]  # as it was
    while not done.done():
        again.clock.pass_one()
        wait_for([done], 0.2)
    assert world.snapshot() == before
    _assert_nothing_left(again)


def test_an_attempt_that_is_undone_to_be_tried_again_is_begun_anew_by_the_next_daemon(start: Start) -> None:
    """The sandbox lives on: its record must not say that it ends."""
    rig = start(make_world())
    rig.gate.fail_at = "after configure-netdev"
    rig.gate.stop_at = "before undo"
    _begin_often(rig)
    assert rig.gate.reached.wait(SOON)
    assert _records(rig) == {"sandbox-1": State.ATTACHING}
    rig.gate.fail_at = ""
    rig.gate.open.set()


def test_half_a_record_that_an_earlier_daemon_left_is_removed(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sandbox-9.new").write_text("{")
    _recovered(start, make_world())
    assert list(tmp_path.iterdir()) == []


def test_what_was_half_way_home_is_not_adopted(start: Start) -> None:
    world = make_world()
    add_rail(world, "rail1")
    before = world.snapshot()
    rig = start(world)
    _attach(rig, "rail0", "rail1").attach_done.result(SOON)
    free = _take_name(world, "rail0")
    rig.sandboxes.end("sandbox-1")
    rig.clock.wait_for_one()
    rig.kill()
    free()
    again, _, _ = _recovered(start, world)
    assert world.snapshot() == before
    _assert_nothing_left(again)


@pytest.mark.parametrize("physical", [True, False])
def test_a_sandbox_whose_namespace_is_gone_is_undone(start: Start, physical: bool) -> None:
    world = make_world(physical=physical)
    before = world.snapshot()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.kill()
    world.remove_namespace(POD_PATH)
    again, _, _ = _recovered(start, world)
    assert world.snapshot() == (before if physical else {})
    _assert_nothing_left(again)


def test_another_namespace_at_the_same_path_is_not_ours(start: Start) -> None:
    world = make_world(physical=True)
    before = world.snapshot()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.kill()
    world.remove_namespace(POD_PATH)
    others = world.add_link(world.add_namespace(POD_PATH), "rdma0", ifindex=2)
    again, _, _ = _recovered(start, world)
    assert world.snapshot() == before
    assert others.name == "rdma0"
    _assert_nothing_left(again)


def test_shared_devices_of_a_pod_that_is_gone_are_not_adopted(start: Start) -> None:
    world = make_world()
    rig = start(world)
    _attach(rig, mode=Mode.SHARED).attach_done.result(SOON)
    rig.kill()
    world.remove_namespace(POD_PATH)
    again, _, _ = _recovered(start, world)
    _assert_nothing_left(again)


def test_records_of_another_boot_are_forgotten_and_touch_nothing(start: Start) -> None:
    world = make_world()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.kill()
    later = make_world()
    later.boot_id = "boot-2"
    next(iter(later.host.links.values())).mtu = 9000
    before = later.snapshot()
    again, errors, told = _recovered(start, later)
    assert (errors, told, later.snapshot()) == ((), [], before)
    _assert_nothing_left(again)


def test_a_record_that_cannot_be_read_is_set_aside_and_the_others_are_taken_up(start: Start, tmp_path: Path) -> None:
    world = make_world()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.kill()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "folder.json").mkdir()
    text = (tmp_path / "sandbox-1.json").read_text()
    (tmp_path / "sandbox-9.json").write_text(text)
    (tmp_path / "changed.json").write_text(text.replace("rail0", "rail9"))
    again, errors, told = _recovered(start, world)
    assert [error.code for error in errors] == [ErrorCode.STATE_UNREADABLE] * 4
    assert told == ["sandbox-1"]
    aside = {path.name for path in tmp_path.glob("*.unreadable")}
    assert aside == {f"{name}.unreadable" for name in ("broken", "folder", "sandbox-9", "changed")}
    _end(again)


def test_what_the_journal_keeps_is_what_was_known(start: Start) -> None:
    rig = start(make_world())
    sandbox = _attach(rig)
    sandbox.attach_done.result(SOON)
    (record,), _ = rig.journal.load()
    assert record == sandbox.record
    assert sandbox.record is not None
    assert replace(record, state=State.ATTACHED) == sandbox.record


def _drop(_value: object) -> None:
    """For what nobody needs."""


def test_every_boundary_of_an_attach_and_of_its_return_is_passed_in_order(start: Start) -> None:
    rig = start(make_world())
    _attach(rig).attach_done.result(SOON)
    _end(rig)
    names = [place.removesuffix(" sandbox-1") for place in rig.gate.passed]
    around = ("plan", "write-journal", "move-netdev mlx5_rail0", "configure-netdev mlx5_rail0", "resolve-numbers")
    back = ("undo configure-netdev mlx5_rail0", "undo move-netdev mlx5_rail0", "forget-journal")
    expected = (*around, "write-journal", "write-journal", *back)
    assert names == [f"{when} {name}" for name in expected for when in ("before", "after")]


@pytest.mark.parametrize("place", ["before undo configure-netdev", "after undo move-netdev", "before forget-journal"])
def test_a_return_that_fails_at_a_boundary_is_tried_again(start: Start, place: str) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    _attach(rig).attach_done.result(SOON)
    rig.gate.fail_at = place
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    rig.clock.wait_for_one()
    rig.gate.fail_at = ""
    rig.clock.pass_one()
    done.result(SOON)
    assert world.snapshot() == before
    _assert_nothing_left(rig)


def test_an_attach_from_which_somebody_took_a_netdev_away_is_refused(start: Start) -> None:
    world = make_world()
    rig = start(world)
    rig.gate.stop_at = "before resolve-numbers"
    sandbox = _attach(rig)
    assert rig.gate.reached.wait(SOON)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    (ifindex,) = [it.ifindex for it in pod.links.values() if it.name != "lo"]
    del pod.links[ifindex]
    rig.gate.open.set()
    with pytest.raises(AttachError, match="netdev rail0 is not in the pod any more"):
        sandbox.attach_done.result(SOON)
    _assert_nothing_left(rig)

"""The life of sandboxes: who waits for what, and that nothing is held at the end."""

import errno
import threading
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import replace
from ipaddress import ip_interface
from pathlib import Path

import pytest

from nri_rdma.attach import journal
from nri_rdma.attach.attachment import Attachment, Selection
from nri_rdma.attach.news import process_ended
from nri_rdma.attach.numbers import Resolve, Resolved
from nri_rdma.attach.port import ProcessIdentity
from nri_rdma.attach.record import Phase
from nri_rdma.decide.inheritance import FIRST_OWN_TABLE
from nri_rdma.errors import AttachError, ErrorCode, NotReadyError, PlacementError
from nri_rdma.model.device import CharDevice, CharKind
from nri_rdma.model.request import InterfaceConfig, Mode
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import Address, FakeKernel, FaultyKernel
from tests.unit.attach.builders import POD_PATH, make_pod
from tests.unit.attach.sandbox_life import (
    Start,
    assert_nothing_left,
    begin_attach,
    begin_often,
    drop,
    end_sandbox,
    records_of,
    take_name,
)
from tests.unit.rigs.attachments import SOON, FakeProcesses, Rig, add_rail, await_taken_up, make_world, placed_on


def test_an_attached_sandbox_holds_its_namespace_until_it_ends(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    sandbox = begin_attach(rig)
    assert sandbox.attach_done.result(SOON) is None
    assert (sandbox.state, sandbox.now.devices_done, sandbox.now.devices_total) == (Phase.ATTACHED, 1, 1)
    assert (rig.sandboxes.held(), world.held, records_of(rig)) == (1, 1, {"sandbox-1": Phase.ATTACHED})
    assert rig.watched == [POD_PATH]
    end_sandbox(rig)
    assert (world.snapshot(), sandbox.state, rig.gone) == (before, Phase.GONE, ["sandbox-1"])
    assert_nothing_left(rig)
    assert rig.sandboxes.end("sandbox-1") is None


def test_a_netdev_of_a_later_part_has_a_table_of_its_own_beside_the_first(start: Start) -> None:
    world = make_world()
    add_rail(world, "rail1")
    for link in world.host.links.values():
        link.add_address(Address(interface=ip_interface(f"10.0.0.{link.ifindex}/24")))
    before = world.snapshot()
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    later = rig.sandboxes.begin(make_pod(), placed_on(world, "rail1"), None, part="trainer")
    later.attach_done.result(SOON)
    assert later.now.record is not None
    (move,) = later.now.record.plan.moves
    assert [(str(it.source), it.table) for it in move.inherited.rules] == [
        (f"10.0.0.{move.link.ifindex}/32", FIRST_OWN_TABLE)
    ]
    end_sandbox(rig)
    assert world.snapshot() == before


@pytest.mark.parametrize("enable_ipv6", [None, False])
def test_a_netdev_that_shall_have_no_ipv6_leaves_its_ipv6_addresses_behind(
    start: Start, enable_ipv6: bool | None
) -> None:
    world = make_world()
    for address in ("10.0.0.5/24", "fd00::5/64"):
        next(iter(world.host.links.values())).add_address(Address(interface=ip_interface(address)))
    rig = start(world)
    (placed,) = placed_on(world, "rail0")
    interface = InterfaceConfig(enable_ipv6=enable_ipv6)
    admitted = replace(placed.admitted, request=replace(placed.admitted.request, interface=interface))
    attachment = rig.sandboxes.begin(make_pod(), (replace(placed, admitted=admitted),), None)
    attachment.attach_done.result(SOON)
    assert attachment.now.record is not None
    (move,) = attachment.now.record.plan.moves
    assert [any("fd00::5" in it for it in move.inherited.left_out)] == [enable_ipv6 is False]
    end_sandbox(rig)


def test_what_a_cdi_device_asked_for_is_known_before_it_is_planned(start: Start) -> None:
    """A second container with the same CDI device then waits for it, and attaches nothing."""
    world = make_world()
    rig, held = start(world, planners=Workers(1, name="planner")), threading.Event()
    assert rig.planners is not None
    rig.planners.submit("sandbox-1", lambda: drop(held.wait(SOON)))
    (placed,) = placed_on(world, "rail0")
    request = replace(placed.admitted.request, cdi_device="a.example.com/nic=0")
    placed = replace(placed, admitted=replace(placed.admitted, request=request))
    attachment = rig.sandboxes.begin(make_pod(), (placed,), None, part="main")
    assert attachment.now.cdi_devices == {"a.example.com/nic=0"}
    held.set()
    attachment.attach_done.result(SOON)
    end_sandbox(rig)


def test_a_part_that_fails_leaves_the_others_of_its_sandbox(start: Start) -> None:
    world = make_world()
    add_rail(world, "rail1")
    rig = start(world)
    first = begin_attach(rig)
    first.attach_done.result(SOON)
    rig.gate.fail_at = "after move-netdev mlx5_rail1"
    later = rig.sandboxes.begin(make_pod(), placed_on(world, "rail1"), None, part="trainer")
    assert later.attach_done.exception(SOON) is not None
    later.undo_done.result(SOON)
    assert rig.sandboxes.of("sandbox-1") == (first,)
    end_sandbox(rig)


def test_a_release_is_under_way_while_devices_are_home_and_not_free_yet(start: Start) -> None:
    rig, go_on = start(make_world()), threading.Event()
    rig.on_gone = lambda _sandbox_id: drop(go_on.wait(SOON))
    attachment = begin_attach(rig)
    attachment.attach_done.result(SOON)
    assert rig.sandboxes.being_released() == ()
    home = rig.sandboxes.bring_home("sandbox-1", restored=True)
    assert home is not None
    home.result(SOON)
    assert rig.sandboxes.being_released() == (attachment.undo_done,)
    go_on.set()
    attachment.undo_done.result(SOON)
    assert rig.sandboxes.being_released() == ()
    assert rig.sandboxes.bring_home("sandbox-1", restored=True) is None


def test_a_release_is_under_way_until_the_attachment_is_forgotten(start: Start) -> None:
    rig, seen = start(make_world()), []
    waiting = rig.sandboxes.begin_after((Future(),), make_pod(), lambda: Selection(placed=(), rdma_cm=None), 1)
    waiting.attach_done.add_done_callback(  # it is called a moment before the attachment is forgotten
        lambda _done: seen.append((rig.sandboxes.of("sandbox-1"), rig.sandboxes.being_released()))
    )
    rig.sandboxes.end("sandbox-1")
    waiting.undo_done.result(SOON)
    assert seen == [((waiting,), (waiting.undo_done,))]


def test_everybody_who_ends_a_sandbox_joins_one_undo(start: Start) -> None:
    rig = start(make_world())
    begin_attach(rig).attach_done.result(SOON)
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
    sandbox = begin_attach(rig)
    assert rig.gate.reached.wait(SOON)
    done = rig.sandboxes.end("sandbox-1")
    assert sandbox.state is Phase.RETURNING
    rig.gate.open.set()
    with pytest.raises(NotReadyError) as caught:
        sandbox.attach_done.result(SOON)
    assert caught.value.code is ErrorCode.RETURNING
    assert done is not None
    done.result(SOON)
    assert (world.snapshot(), rig.gone) == (before, ["sandbox-1"])
    assert_nothing_left(rig)


def test_an_end_before_the_attach_began_leaves_the_host_alone(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    add_rail(world, "rail1")
    before = world.snapshot()
    rig.gate.stop_at = "before move-netdev mlx5_rail0"
    begin_attach(rig, "rail0")
    assert rig.gate.reached.wait(SOON)
    rig.workers.submit("sandbox-2", lambda: drop(rig.gate.open.wait(SOON)))  # the second worker is busy, too
    sandbox = begin_attach(rig, "rail1", sandbox_id="sandbox-2")
    done = rig.sandboxes.end("sandbox-2")
    rig.gate.open.set()
    assert done is not None
    done.result(SOON)
    assert isinstance(sandbox.attach_done.exception(SOON), NotReadyError)
    end_sandbox(rig)
    assert world.snapshot() == before
    assert_nothing_left(rig)


def test_a_failed_attach_is_undone_before_its_error_is_told(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.fail_at = "after configure-netdev"
    with pytest.raises(RuntimeError, match="injected"):
        begin_attach(rig).attach_done.result(SOON)
    assert (world.snapshot(), rig.gone) == (before, ["sandbox-1"])
    assert_nothing_left(rig)


@pytest.mark.parametrize("operation", range(1, 6))
def test_whatever_the_kernel_refuses_in_an_attach_nothing_is_held(start: Start, operation: int) -> None:
    world = make_world()
    before = world.snapshot()
    fake = FakeKernel(world)
    rig = start(world, kernel=FaultyKernel(fake, fail_at=operation, after=bool(operation % 2)))
    with pytest.raises(AttachError):
        begin_attach(rig).attach_done.result(SOON)
    while rig.clock.pending:
        rig.clock.pass_one()
    assert (world.snapshot(), rig.gone) == (before, ["sandbox-1"])
    assert_nothing_left(rig)


def test_an_end_while_the_plan_is_made_is_undone_by_who_plans(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    rig.gate.stop_at = "after plan"
    sandbox = begin_often(rig)
    assert rig.gate.reached.wait(SOON)
    done = rig.sandboxes.end("sandbox-1")
    rig.gate.open.set()
    assert done is not None
    done.result(SOON)
    assert isinstance(sandbox.planned.exception(SOON), NotReadyError)
    assert (world.snapshot(), rig.gone) == (before, ["sandbox-1"])
    assert_nothing_left(rig)


def test_what_an_older_sandbox_holds_is_chosen_when_it_is_home(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    world.add_namespace("/run/netns/pod-2")
    begin_attach(rig).attach_done.result(SOON)
    free = take_name(world, "rail0")
    undo = rig.sandboxes.end("sandbox-1")
    assert undo is not None
    chosen: list[object] = []

    def choose() -> Selection:
        chosen.append(world.snapshot())
        return Selection(placed=placed_on(world, "rail0"), rdma_cm=None)

    younger = rig.sandboxes.begin_after((undo,), make_pod("sandbox-2", path="/run/netns/pod-2"), choose)
    rig.clock.wait_for_one()
    assert (chosen, younger.planned.done(), rig.sandboxes.knows("sandbox-2")) == ([], False, True)
    free()
    rig.clock.pass_one()
    younger.attach_done.result(SOON)
    assert chosen == [before]
    end_sandbox(rig, "sandbox-2")
    assert world.snapshot() == before
    assert_nothing_left(rig)


def test_a_pod_without_a_namespace_of_its_own_is_refused(start: Start) -> None:
    world = make_world()
    rig = start(world)
    for path, code in (("", ErrorCode.NO_NETWORK_NAMESPACE), ("/proc/self/ns/net", ErrorCode.HOST_NETWORK)):
        sandbox = rig.sandboxes.begin(make_pod(path=path), placed_on(world, "rail0"), None)
        with pytest.raises(PlacementError) as caught:
            sandbox.attach_done.result(SOON)
        assert caught.value.code is code
    assert_nothing_left(rig)


def test_a_namespace_that_is_gone_already_fails_the_attach(start: Start) -> None:
    world = make_world()
    rig = start(world)
    with pytest.raises(AttachError, match="ENOENT"):
        rig.sandboxes.begin(make_pod(path="/run/netns/no"), placed_on(world, "rail0"), None).attach_done.result(SOON)
    assert_nothing_left(rig)


def test_a_watch_that_cannot_be_set_does_not_leak_the_namespace(start: Start) -> None:
    world = make_world()
    rig = start(world)

    def refuse(_path: str) -> None:
        raise OSError(errno.ENOSPC, "no more watches")

    rig.work._ends._on_held = refuse  # the daemon's watcher
    begin_attach(rig).attach_done.result(SOON)
    end_sandbox(rig)
    assert_nothing_left(rig)


def test_a_journal_that_cannot_be_written_refuses_the_attach(start: Start, tmp_path: Path) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    (tmp_path / "sandbox-1.new").mkdir()
    with pytest.raises(AttachError, match="the journal cannot be written"):
        begin_attach(rig).attach_done.result(SOON)
    assert world.snapshot() == before
    (tmp_path / "sandbox-1.new").rmdir()
    assert_nothing_left(rig)


def test_without_room_for_the_journal_the_sandbox_is_refused_and_not_its_attach_later(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "ROOM_BYTES", 1 << 80)
        with pytest.raises(AttachError, match="the journal cannot be written: No space left on device"):
            begin_attach(rig).planned.result(SOON)
    assert not [place for place in rig.gate.passed if "write-journal" in place]
    assert world.snapshot() == before
    assert_nothing_left(rig)
    begin_attach(rig).attach_done.result(SOON)
    end_sandbox(rig)


def test_without_its_folder_there_is_no_room_for_the_journal(start: Start, tmp_path: Path) -> None:
    rig = start(make_world())
    tmp_path.rmdir()
    with pytest.raises(AttachError, match="the journal cannot be written: No such file or directory"):
        begin_attach(rig).planned.result(SOON)


def test_a_journal_that_cannot_be_written_does_not_keep_devices_in_the_pod(start: Start, tmp_path: Path) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    (tmp_path / "sandbox-1.new").mkdir()
    end_sandbox(rig)
    assert world.snapshot() == before


def test_shared_devices_move_nothing_and_hold_no_namespace(start: Start) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    begin_attach(rig, mode=Mode.SHARED).attach_done.result(SOON)
    assert (world.snapshot(), world.held, rig.sandboxes.held()) == (before, 0, 0)
    assert rig.watched == [POD_PATH]  # its end is noticed all the same
    end_sandbox(rig)
    assert_nothing_left(rig)


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
    assert_nothing_left(rig)


def test_a_second_sandbox_of_the_same_pod_is_another_one(start: Start) -> None:
    world = make_world()
    add_rail(world, "rail1")
    before = world.snapshot()
    rig = start(world)
    world.add_namespace("/run/netns/pod-2")
    one = begin_attach(rig, "rail0")
    two = begin_attach(rig, "rail1", sandbox_id="sandbox-2", path="/run/netns/pod-2")
    for sandbox in (one, two):
        sandbox.attach_done.result(SOON)
    end_sandbox(rig, "sandbox-1")
    assert (one.state, two.state) == (Phase.GONE, Phase.ATTACHED)
    assert [link.name for link in world.host.links.values()] == ["rail0"]
    end_sandbox(rig, "sandbox-2")
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
        begin_attach(rig, mode=mode).attach_done.result(SOON)
    assert module in caught.value.hint
    assert world.snapshot() == before
    assert_nothing_left(rig)


def test_a_device_node_that_was_not_asked_for_is_not_missed(start: Start) -> None:
    rig = start(make_world(), resolve=_without(CharKind.RDMA_CM))
    (placed,) = placed_on(rig.world, "rail0")
    request = replace(placed.admitted.request, char_kinds=frozenset({CharKind.UVERBS}))
    placed = replace(placed, admitted=replace(placed.admitted, request=request))
    rig.sandboxes.begin(make_pod(), (placed,), None).attach_done.result(SOON)
    end_sandbox(rig)


def test_rdma_cm_is_what_it_is_at_the_attach_not_what_it_was_at_the_start_of_the_daemon(start: Start) -> None:
    rig = start(make_world(), resolve=_without())
    stale = replace(RDMA_CM, minor=99)
    sandbox = rig.sandboxes.begin(make_pod(), placed_on(rig.world, "rail0"), stale)
    sandbox.attach_done.result(SOON)
    assert sandbox.now.record is not None
    assert sandbox.now.record.rdma_cm == RDMA_CM
    end_sandbox(rig)


def test_the_device_nodes_of_many_devices_are_read_once(start: Start) -> None:
    calls: list[Resolved] = []

    def resolve(known: Resolved) -> Resolved:
        calls.append(known)
        return _without()(known)

    world = make_world()
    add_rail(world, "rail1")
    rig = start(world, resolve=resolve)
    begin_attach(rig, "rail0", "rail1").attach_done.result(SOON)
    assert [[device.name for device in call.devices] for call in calls] == [["mlx5_rail0", "mlx5_rail1"]]
    end_sandbox(rig)


# Pods on the host's network


def _attach_on_host_network(rig: Rig, pid: int = 77) -> Attachment:
    placed = placed_on(rig.world, "rail0", mode=Mode.SHARED)
    return rig.sandboxes.begin(make_pod(path="", pid=pid), placed, None)


def test_a_pod_on_the_hosts_network_ends_with_its_process_when_no_event_tells(start: Start) -> None:
    rig = start(make_world())
    rig.processes.running[77] = 1000
    sandbox = _attach_on_host_network(rig)
    sandbox.attach_done.result(SOON)
    assert rig.processes.watched == [ProcessIdentity(pid=77, start=1000)]
    process_ended(rig.sandboxes, ProcessIdentity(pid=77, start=999))
    process_ended(rig.sandboxes, ProcessIdentity(pid=78, start=1000))
    assert sandbox.state is Phase.ATTACHED
    process_ended(rig.sandboxes, ProcessIdentity(pid=77, start=1000))
    assert sandbox.undo_done is not None
    sandbox.undo_done.result(SOON)
    assert_nothing_left(rig)


def test_a_pod_with_a_namespace_does_not_hang_on_a_process(start: Start) -> None:
    rig = start(make_world())
    sandbox = rig.sandboxes.begin(make_pod(pid=77), placed_on(rig.world, "rail0"), None)
    sandbox.attach_done.result(SOON)
    process_ended(rig.sandboxes, ProcessIdentity(pid=77, start=1000))
    assert (sandbox.state, rig.processes.watched) == (Phase.ATTACHED, [])
    end_sandbox(rig)


def test_a_daemon_that_does_not_see_the_process_serves_the_pod_all_the_same(start: Start) -> None:
    rig = start(make_world())
    sandbox = _attach_on_host_network(rig)
    sandbox.attach_done.result(SOON)
    assert sandbox.now.record is not None
    assert sandbox.now.record.process is None
    end_sandbox(rig)
    assert_nothing_left(rig)


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
    assert not wait_for([it.undo_done for it in again.sandboxes.all() if it.ends], SOON).not_done
    assert [it.state for it in again.sandboxes.all()] == ([Phase.ATTACHED] if adopted else [])
    assert len(processes.watched) == int(adopted)
    end_sandbox(again)
    assert_nothing_left(again)


def test_every_boundary_of_an_attach_and_of_its_return_is_passed_in_order(start: Start) -> None:
    rig = start(make_world())
    begin_attach(rig).attach_done.result(SOON)
    end_sandbox(rig)
    names = [place.removesuffix(" sandbox-1") for place in rig.gate.passed]
    steps = ("move-netdev mlx5_rail0", "configure-netdev mlx5_rail0", "resolve-numbers")
    undos = ("undo configure-netdev mlx5_rail0", "undo move-netdev mlx5_rail0", "restore mlx5_rail0")
    back = ("write-journal", *undos, "forget-journal")
    expected = ("plan", "write-journal", *steps, "write-journal", *back)
    assert names == [f"{when} {name}" for name in expected for when in ("before", "after")]


@pytest.mark.parametrize(
    "place",
    [
        "before undo configure-netdev",
        "after undo move-netdev",
        "before restore",
        "after restore",
        "before forget-journal",
    ],
)
def test_a_return_that_fails_at_a_boundary_is_tried_again(start: Start, place: str) -> None:
    world = make_world()
    before = world.snapshot()
    rig = start(world)
    begin_attach(rig).attach_done.result(SOON)
    rig.gate.fail_at = place
    done = rig.sandboxes.end("sandbox-1")
    assert done is not None
    rig.clock.wait_for_one()
    rig.gate.fail_at = ""
    rig.clock.pass_one()
    done.result(SOON)
    assert world.snapshot() == before
    assert_nothing_left(rig)


def test_an_attach_from_which_somebody_took_a_netdev_away_is_refused(start: Start) -> None:
    world = make_world()
    rig = start(world)
    rig.gate.stop_at = "before resolve-numbers"
    sandbox = begin_attach(rig)
    assert rig.gate.reached.wait(SOON)
    pod = world.namespace(POD_PATH)
    assert pod is not None
    (ifindex,) = [it.ifindex for it in pod.links.values() if it.name != "lo"]
    del pod.links[ifindex]
    rig.gate.open.set()
    with pytest.raises(AttachError, match=r"netdev rail0 \(rdma0 in the pod\) is no longer in the pod"):
        sandbox.attach_done.result(SOON)
    assert_nothing_left(rig)

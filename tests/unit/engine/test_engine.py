"""Fail closed: whoever asked gets all of it, an error, or "not yet", and each answer comes before its deadline."""

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from nri_rdma.attach.attachment import KEPT_CONTAINERS
from nri_rdma.attach.attachments import ATTEMPTS
from nri_rdma.attach.record import Phase
from nri_rdma.decide.decision import Decision, Question
from nri_rdma.decide.policy import Asker, Pool, Rule, policy_of
from nri_rdma.engine.container import ListedContainer
from nri_rdma.engine.evidence import EvidenceCollector
from nri_rdma.errors import (
    AttachError,
    ErrorCode,
    NotReadyError,
    PlacementError,
)
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.request import Mode
from nri_rdma.model.selector import Selector
from nri_rdma.model.usage import HostSocket
from nri_rdma.model.waits import Waits
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import Address, World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import POD_PATH, make_device, make_pod
from tests.unit.attach.rig import SOON, Rig, add_rail
from tests.unit.engine.one_rail import OTHER_PATH, daemon, drop, make_listed, refusal, world
from tests.unit.lifecycle_rig import ONE, PREFIX, Daemon

__all__ = ["daemon", "world"]  # fixtures


def test_a_pod_that_asks_for_nothing_is_left_alone(daemon: Daemon) -> None:
    daemon.start(annotations={})
    assert not daemon.engine.knows("sandbox-1")
    assert daemon.edits(annotations={}) == ContainerEdits()
    daemon.stop()


def test_a_pod_gets_its_device_and_the_host_has_it_back(daemon: Daemon, world: World) -> None:
    before = world.snapshot()
    daemon.start()
    assert [device.path for device in daemon.edits().char_devices] == ["/dev/infiniband/uverbs0"]
    assert (world.snapshot(), daemon.holders) == ({}, {"mlx5_0"})
    daemon.stop()
    daemon.stop()
    assert (world.snapshot(), daemon.holders) == (before, set())


def test_a_sandbox_is_told_twice_and_started_once(daemon: Daemon) -> None:
    daemon.start()
    daemon.start()
    assert daemon.sandbox().state is Phase.ATTACHED


@pytest.mark.parametrize("annotations", [ONE, {f"{PREFIX}/pod": "[not: {yaml"}], ids=["asks", "unreadable"])
def test_a_container_of_an_unknown_sandbox_that_asks_is_refused(daemon: Daemon, annotations: dict[str, str]) -> None:
    assert refusal(NotReadyError, lambda: daemon.edits(annotations=annotations)).code is ErrorCode.NOT_ATTACHED


def test_a_failed_attach_is_told_and_its_device_is_free_again(daemon: Daemon, world: World) -> None:
    before = world.snapshot()
    daemon.rig.gate.fail_at = "after configure-netdev"
    with pytest.raises(RuntimeError, match="injected"):
        daemon.start()
    assert (world.snapshot(), daemon.holders) == (before, set())
    assert refusal(NotReadyError, daemon.edits).code is ErrorCode.NOT_ATTACHED
    daemon.rig.gate.fail_at = ""
    daemon.start(make_pod("sandbox-2"))
    assert daemon.edits("sandbox-2").char_devices


def test_a_pod_whose_namespace_is_gone_is_refused(daemon: Daemon, world: World) -> None:
    world.remove_namespace(POD_PATH)
    assert "ENOENT" in str(refusal(AttachError, daemon.start))
    assert daemon.holders == set()


def test_a_refusal_is_given_on_fresh_facts_only(daemon: Daemon, world: World) -> None:
    world.host.links.clear()
    daemon.node.refresh()
    reads = daemon.reads
    refusal(PlacementError, daemon.start)
    assert daemon.reads == reads + 1
    add_rail(world, "rail1")  # nobody tells the daemon
    daemon.start()
    assert [device.path for device in daemon.edits().char_devices] == ["/dev/infiniband/uverbs1"]


def test_a_pod_is_placed_once_and_once_more_only_when_it_would_be_refused(
    daemon: Daemon, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A decision that is taken twice may give another device the second time, after the first was reported."""
    refusals, place = list[bool](), daemon.reservations.place

    def counted(key: str, question: Question) -> Decision:
        decision = place(key, question)
        refusals.append(decision.refusal is not None)
        return decision

    monkeypatch.setattr(daemon.reservations, "place", counted)
    daemon.start()
    assert refusals == [False]
    daemon.stop()
    world.host.links.clear()
    daemon.node.refresh()
    refusals.clear()
    refusal(PlacementError, daemon.start)
    assert refusals == [True, True]


def test_facts_that_cannot_be_had_in_time_refuse_and_say_so(daemon: Daemon, world: World) -> None:
    world.host.links.clear()
    daemon.node.refresh()
    release = threading.Event()
    for key in ("a", "b"):
        daemon.rig.workers.submit(key, lambda: drop(release.wait(SOON)))
    begun = time.monotonic()
    assert refusal(NotReadyError, lambda: daemon.start(seconds=0.05)).code is ErrorCode.NOT_READY
    assert time.monotonic() - begun < 1.5
    release.set()


def test_a_new_sandbox_of_a_pod_gets_the_devices_of_the_old_one(daemon: Daemon, world: World) -> None:
    daemon.start()
    daemon.start(make_pod("sandbox-2", path=OTHER_PATH))
    assert not daemon.engine.knows("sandbox-1")
    assert daemon.edits("sandbox-2").char_devices
    daemon.stop("sandbox-1")
    assert daemon.sandbox("sandbox-2").state is Phase.ATTACHED


def test_another_pod_is_refused_while_the_device_is_held(daemon: Daemon) -> None:
    daemon.start()
    other = make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH)
    error = refusal(PlacementError, lambda: daemon.start(other))
    assert "ml/train" in str(error)


def test_sandboxes_that_the_runtime_does_not_know_are_returned(daemon: Daemon, world: World) -> None:
    before = world.snapshot()
    daemon.start()
    done = daemon.sandbox()
    daemon.engine.synchronize(()).result(SOON)
    assert done.undo_done is not None
    done.undo_done.result(SOON)
    assert (world.snapshot(), daemon.holders) == (before, set())


def test_sandboxes_that_the_runtime_knows_stay(daemon: Daemon) -> None:
    daemon.start()
    node = daemon.edits().char_devices[0]
    served = ListedContainer(name="main", devices={node.path: (node.major, node.minor)})
    daemon.engine.synchronize((make_listed(make_pod(), containers=(served,)),)).result(SOON)
    assert daemon.sandbox().state is Phase.ATTACHED
    assert daemon.engine.unserved == ()


def test_a_sandbox_that_begins_right_after_the_list_was_made_is_not_missing_in_it(daemon: Daemon) -> None:
    release = threading.Event()
    daemon.rig.workers.submit("reconcile", lambda: drop(release.wait(SOON)))  # the worker comes to it late
    later = daemon.engine.synchronize(())
    daemon.start()
    release.set()
    later.result(SOON)
    assert daemon.sandbox().state is Phase.ATTACHED


def test_containers_that_run_without_what_their_pod_asks_for_are_reported(daemon: Daemon) -> None:
    served, bare, empty, other = (make_pod(f"sandbox-{number}", uid=f"uid-{number}") for number in range(1, 5))
    daemon.start(served)
    listed = (
        make_listed(served, containers=()),
        make_listed(bare),
        make_listed(empty, containers=()),
        make_listed(other, {}),
    )
    daemon.engine.synchronize(listed).result(SOON)
    assert [item.pod for item in daemon.engine.unserved] == [bare]


def test_a_pod_that_started_while_the_daemon_was_away_gets_its_devices_before_its_first_container(
    daemon: Daemon,
) -> None:
    hold = threading.Event()
    daemon.rig.workers.submit("reconcile", lambda: drop(hold.wait(SOON)))
    later = daemon.engine.synchronize((make_listed(make_pod(), containers=()),))
    assert refusal(NotReadyError, daemon.edits).what.startswith("network is not ready")
    hold.set()
    later.result(SOON)
    assert daemon.edits().char_devices
    assert daemon.engine.unserved == ()


@pytest.mark.parametrize("path", ["", "/run/netns/gone"])
def test_a_pod_that_has_ended_gets_nothing_though_the_runtime_still_lists_it(daemon: Daemon, path: str) -> None:
    daemon.engine.synchronize((make_listed(make_pod(path=path), containers=()),)).result(SOON)
    assert (daemon.rig.sandboxes.all(), daemon.holders, daemon.engine.unserved) == ((), set(), ())
    assert refusal(NotReadyError, daemon.edits).code is ErrorCode.NOT_ATTACHED


def test_a_pod_that_started_while_the_daemon_was_away_and_cannot_be_served_is_refused(daemon: Daemon) -> None:
    daemon.start()
    other = make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH)
    daemon.engine.synchronize((make_listed(make_pod()), make_listed(other, containers=()))).result(SOON)
    assert refusal(NotReadyError, lambda: daemon.edits("sandbox-2")).code is ErrorCode.NOT_ATTACHED


def test_a_pod_that_is_told_as_an_event_and_in_the_list_is_started_once(daemon: Daemon) -> None:
    daemon.rig.gate.stop_at = "after plan"
    later = daemon.engine.synchronize((make_listed(make_pod(), containers=()),))
    assert daemon.rig.gate.reached.wait(SOON)
    daemon.start(seconds=0.05)
    daemon.rig.gate.open.set()
    later.result(SOON)
    assert [it.state for it in daemon.rig.sandboxes.all()] == [Phase.ATTACHED]


def test_a_container_that_was_made_in_an_attached_sandbox_while_the_daemon_was_away_is_reported(daemon: Daemon) -> None:
    daemon.start()
    daemon.engine.synchronize((make_listed(make_pod()),)).result(SOON)
    assert [item.why for item in daemon.engine.unserved] == ["container main was made while nri-rdma was away"]


def test_a_report_ends_with_its_pod(daemon: Daemon) -> None:
    daemon.engine.synchronize((make_listed(make_pod("bare")),)).result(SOON)
    assert daemon.engine.remembers("bare")
    daemon.stop("bare")
    assert daemon.engine.unserved == ()


def test_a_container_of_an_unknown_sandbox_starts(daemon: Daemon) -> None:
    daemon.starting()


def test_a_container_that_is_made_again_takes_the_place_of_the_old_one(daemon: Daemon) -> None:
    daemon.start()
    for path in ("/pod/first", "/pod/second"):
        daemon.engine.container_created("sandbox-1", "main", path)
    assert daemon.sandbox().containers == {"main": "/pod/second"}


def test_not_more_containers_are_remembered_than_a_pod_can_have(daemon: Daemon) -> None:
    daemon.start()
    for number in range(KEPT_CONTAINERS + 9):
        daemon.engine.container_created("sandbox-1", f"debug-{number}", f"/pod/{number}")
    assert len(daemon.sandbox().containers) == KEPT_CONTAINERS


# What is told late


def test_an_attach_that_fails_after_its_sandbox_started_is_told_to_every_container(daemon: Daemon) -> None:
    daemon.rig.gate.stop_at = "before move-netdev"
    daemon.rig.gate.fail_at = "after move-netdev"
    daemon.start(seconds=0.01)
    done = daemon.sandbox().attach_done
    daemon.rig.gate.open.set()
    with pytest.raises(RuntimeError, match="injected"):
        done.result(SOON)
    error = refusal(NotReadyError, daemon.edits)
    assert (error.code, "injected" in error.detail) == (ErrorCode.ATTACH_FAILED, True)
    assert [str(item.pod) for item in daemon.engine.unserved] == ["ml/train"]
    daemon.stop()
    assert daemon.engine.unserved == ()


# Overlapped


@pytest.fixture
def overlapped(daemon: Daemon) -> Daemon:
    """A daemon with the settings that are the default, but for the machine that may be slow."""
    daemon.engine.barrier.waits = Waits(barrier_s=0.2)
    return daemon


@pytest.fixture
def planning(world: World, tmp_path: Path) -> Iterator[Daemon]:
    """The same with planners of its own."""
    rig = Rig(state=tmp_path, world=world, planners=Workers(2, name="planner"))
    yield Daemon(rig, waits=Waits(barrier_s=0.2))
    rig.close()


def test_a_sandbox_is_answered_for_before_its_attach_has_ended(overlapped: Daemon) -> None:
    overlapped.rig.gate.stop_at = "before move-netdev"
    overlapped.start()  # would wait for five seconds
    assert overlapped.sandbox().planned.done()
    assert not overlapped.sandbox().attach_done.done()
    assert "0 of 1 devices attached" in refusal(NotReadyError, overlapped.edits).what
    overlapped.rig.gate.open.set()
    overlapped.sandbox().attach_done.result(SOON)
    assert overlapped.edits().char_devices


def test_what_must_be_refused_is_refused_by_the_sandbox(overlapped: Daemon, world: World) -> None:
    world.remove_namespace(POD_PATH)
    assert "ENOENT" in str(refusal(AttachError, overlapped.start))
    assert (overlapped.holders, overlapped.rig.sandboxes.all()) == (set(), ())


def test_a_wait_for_the_sandbox_lets_a_quick_attach_end_first(overlapped: Daemon) -> None:
    overlapped.engine.barrier.waits = Waits(sandbox_s=SOON)
    overlapped.start()
    assert overlapped.sandbox().state is Phase.ATTACHED


def test_an_attempt_that_failed_is_told_to_who_waits_for_the_next(overlapped: Daemon) -> None:
    overlapped.rig.gate.fail_at = "after move-netdev"
    overlapped.start()
    overlapped.rig.clock.wait_for_one()
    error = refusal(NotReadyError, overlapped.edits)
    assert error.what == "network is not ready: 0 of 1 devices attached, attempt 2 of 3"
    assert "injected" in error.detail
    assert overlapped.holders == {"mlx5_0"}
    overlapped.rig.gate.fail_at = ""
    overlapped.rig.clock.pass_one()
    overlapped.sandbox().attach_done.result(SOON)
    assert overlapped.edits().char_devices


def _have_the_host_use_rail0(world: World) -> None:
    """A socket on its address, which nobody tells of."""
    world.sockets.append(HostSocket(protocol="tcp", address=ip_address("10.0.0.5"), port=4420))


def _give_rail0_an_address(overlapped: Daemon, world: World) -> None:
    next(iter(world.host.links.values())).add_address(Address(interface=ip_interface("10.0.0.5/24")))
    overlapped.node.refresh()


def test_another_device_is_found_where_the_host_has_come_to_use_the_first(overlapped: Daemon, world: World) -> None:
    add_rail(world, "rail1")
    _give_rail0_an_address(overlapped, world)
    before = world.snapshot()
    _have_the_host_use_rail0(world)
    overlapped.start()
    overlapped.rig.clock.wait_for_one()
    assert "rail0 has the address 10.0.0.5 of 1 host socket" in refusal(NotReadyError, overlapped.edits).detail
    assert (overlapped.holders, world.snapshot()) == ({"mlx5_0"}, before)
    overlapped.rig.clock.pass_one()
    overlapped.sandbox().attach_done.result(SOON)
    assert overlapped.holders == {"mlx5_1"}
    assert [node.path for node in overlapped.edits().char_devices] == ["/dev/infiniband/uverbs1"]
    overlapped.stop()
    assert (overlapped.holders, world.snapshot()) == (set(), before)


def test_another_device_is_found_after_an_attempt_that_failed_for_whatever_reason(
    overlapped: Daemon, world: World
) -> None:
    add_rail(world, "rail1")
    overlapped.rig.gate.fail_at = "after move-netdev"
    overlapped.start()
    overlapped.rig.clock.wait_for_one()
    overlapped.rig.gate.fail_at = ""
    rail0 = next(link for link in world.host.links.values() if link.name == "rail0")
    rail0.master = world.add_link(world.host, "br0").ifindex
    overlapped.rig.clock.pass_one()
    overlapped.sandbox().attach_done.result(SOON)
    assert overlapped.holders == {"mlx5_1"}


def test_another_device_is_found_for_a_sandbox_that_waited_for_an_older_one(overlapped: Daemon, world: World) -> None:
    add_rail(world, "rail1")
    _give_rail0_an_address(overlapped, world)
    overlapped.start()
    overlapped.sandbox().attach_done.result(SOON)
    overlapped.rig.gate.stop_at = "before undo"
    overlapped.start(make_pod("sandbox-2"))
    overlapped.node.on_read.append(lambda: None if world.sockets else _have_the_host_use_rail0(world))
    overlapped.rig.gate.open.set()
    overlapped.rig.clock.pass_one()
    overlapped.sandbox("sandbox-2").attach_done.result(SOON)
    assert overlapped.holders == {"mlx5_1"}


def test_a_reading_that_hangs_before_another_attempt_keeps_no_other_pod_waiting(planning: Daemon, world: World) -> None:
    add_rail(world, "rail1")
    add_rail(world, "rail2")
    planning.engine.placer.node.readers = readers = Workers(1, name="reader")
    planning.rig.gate.fail_at = "after move-netdev"
    goes_on, read = threading.Event(), planning.node._read
    world.add_namespace("/run/netns/pod-3")
    for number, path in ((1, POD_PATH), (2, OTHER_PATH)):
        planning.start(make_pod(f"sandbox-{number}", uid=f"uid-{number}", path=path))
    wait_until(lambda: len(planning.rig.clock.pending) == 2, "both attempts to have failed")
    planning.node._read = lambda: (goes_on.wait(SOON), read())[1]
    planning.rig.gate.fail_at = ""
    for _ in range(2):
        planning.rig.clock.pass_one()
    try:
        planning.start(make_pod("sandbox-3", uid="uid-3", path="/run/netns/pod-3"), seconds=SOON / 3)
        assert planning.sandbox("sandbox-3").planned.done()
        planning.sandbox("sandbox-3").attach_done.result(SOON)
        assert not planning.sandbox("sandbox-1").attach_done.done()
    finally:
        goes_on.set()
    for number in (1, 2):
        planning.sandbox(f"sandbox-{number}").attach_done.result(SOON)
    readers.close()


def _wait(event: threading.Event) -> None:
    """As a worker does for a driver that hangs."""
    event.wait(SOON)


@pytest.mark.parametrize("path", [POD_PATH, ""], ids=["its own network", "the host's network"])
def test_a_pod_that_was_answered_for_is_served_by_the_next_daemon_whatever_the_last_one_came_to(
    planning: Daemon, world: World, tmp_path: Path, path: str
) -> None:
    """Its attach waits behind others when the daemon ends, and containers may have been made meanwhile."""
    asks, pod, rig = {f"{PREFIX}/pod": "- {mode: shared}"}, make_pod(path=path), planning.rig
    goes_on = threading.Event()
    for number in range(2):
        rig.workers.submit(f"busy-{number}", partial(_wait, goes_on))
    planning.start(pod, asks)
    assert rig.planners is not None
    rig.planners.close()
    threading.Timer(0.1, goes_on.set).start()
    rig.close()
    second_rig = Rig(state=tmp_path, world=world)
    second = Daemon(second_rig, waits=Waits(barrier_s=0.2))
    second_rig.sandboxes.recover(lambda record: second.reservations.hold(record.key, record.holdings))
    assert second.holders == {"mlx5_0"}
    second_rig.clock.pass_one()
    second.sandbox().attach_done.result(SOON)
    assert second.edits(annotations=asks).char_devices
    second_rig.close()


def test_the_device_itself_is_taken_when_the_host_has_left_it(overlapped: Daemon, world: World) -> None:
    _give_rail0_an_address(overlapped, world)
    _have_the_host_use_rail0(world)
    overlapped.start()
    overlapped.rig.clock.pass_one()  # nothing else is free
    overlapped.rig.clock.wait_for_one()
    world.sockets.clear()
    overlapped.rig.clock.pass_one()
    overlapped.sandbox().attach_done.result(SOON)
    assert overlapped.edits().char_devices


def test_what_the_host_has_come_to_use_is_told_to_the_containers_and_then_to_sandboxes(
    overlapped: Daemon, world: World
) -> None:
    _give_rail0_an_address(overlapped, world)
    before = world.snapshot()
    _have_the_host_use_rail0(world)
    overlapped.start()
    done = overlapped.sandbox().attach_done
    for _ in range(ATTEMPTS - 1):
        overlapped.rig.clock.pass_one()
    assert done.exception(SOON) is not None
    told = refusal(NotReadyError, overlapped.edits)
    assert (told.code, "1 host socket (tcp port 4420)" in told.detail) == (ErrorCode.ATTACH_FAILED, True)
    assert (world.snapshot(), overlapped.holders) == (before, set())
    error = refusal(PlacementError, lambda: overlapped.start(make_pod("sandbox-2")))
    assert "1 host socket (tcp port 4420)" in error.detail


def _give_up(overlapped: Daemon) -> None:
    """Its pod's attach fails as often as it is tried."""
    overlapped.rig.gate.fail_at = "after move-netdev"
    overlapped.start()
    done = overlapped.sandbox().attach_done
    for _ in range(ATTEMPTS - 1):
        overlapped.rig.clock.pass_one()
    assert done.exception(SOON) is not None


def test_an_attach_that_is_given_up_is_told_to_every_container(overlapped: Daemon, world: World) -> None:
    before = world.snapshot()
    _give_up(overlapped)
    assert (world.snapshot(), overlapped.holders) == (before, set())
    for _ in range(3):
        assert refusal(NotReadyError, overlapped.edits).code is ErrorCode.ATTACH_FAILED
    assert [str(item.pod) for item in overlapped.engine.unserved] == ["ml/train"]


def test_an_attach_that_is_begun_anew_and_given_up_is_told_with_its_cause(
    overlapped: Daemon, world: World, tmp_path: Path
) -> None:
    before, first = world.snapshot(), overlapped.rig
    first.gate.stop_at = "before move-netdev"
    overlapped.start()
    assert first.gate.reached.wait(SOON)
    (journal,) = tmp_path.glob("*.json")
    killed = journal.read_bytes()
    first.gate.open.set()
    overlapped.stop()
    journal.write_bytes(killed)
    rig = Rig(state=tmp_path, world=world)
    rig.gate.fail_at = "after move-netdev"
    second = Daemon(rig, waits=Waits(barrier_s=0.2))
    rig.sandboxes.recover(lambda record: second.reservations.hold(record.key, record.holdings), later=True)
    second.engine.recovered()
    done = second.sandbox().attach_done
    rig.sandboxes.take_up()
    for _ in range(ATTEMPTS):
        rig.clock.pass_one()
    assert done.exception(SOON) is not None
    error = refusal(NotReadyError, second.edits)
    assert (error.code, "injected" in error.detail) == (ErrorCode.ATTACH_FAILED, True)
    assert [str(item.pod) for item in second.engine.unserved] == ["ml/train"]
    assert world.snapshot() == before
    rig.close()


def test_what_is_remembered_of_sandboxes_goes_with_those_that_a_runtime_no_longer_lists(overlapped: Daemon) -> None:
    _give_up(overlapped)
    wait_until(lambda: overlapped.engine.unserved, "the failure to be known", SOON)
    overlapped.engine.synchronize(()).result(SOON)
    assert overlapped.engine.unserved == ()


def test_a_container_gets_nothing_of_a_sandbox_that_ends_while_something_else_of_it_is_waited_for(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.start()

    def await_concerned(*_arguments: object) -> bool:
        daemon.stop()
        return False

    monkeypatch.setattr(EvidenceCollector, "await_concerned", await_concerned)
    work = daemon.edits
    assert refusal(NotReadyError, work).code is ErrorCode.RETURNING


def test_a_pod_that_is_started_again_after_it_was_given_up_is_not_told_of_the_old_failure(overlapped: Daemon) -> None:
    _give_up(overlapped)
    overlapped.rig.gate.fail_at = ""
    overlapped.engine.synchronize((make_listed(make_pod(), containers=()),)).result(SOON)
    overlapped.sandbox().attach_done.result(SOON)
    assert overlapped.edits().char_devices
    assert overlapped.engine.unserved == ()


def test_a_new_sandbox_waits_for_the_old_one_without_keeping_the_runtime(overlapped: Daemon, world: World) -> None:
    overlapped.start()
    overlapped.sandbox().attach_done.result(SOON)
    intruder = world.add_link(world.host, "rail0")  # the way home is blocked
    begun = time.monotonic()
    overlapped.start(make_pod("sandbox-2", path=OTHER_PATH))
    assert time.monotonic() - begun < 1.5
    assert "older sandbox" in refusal(NotReadyError, lambda: overlapped.edits("sandbox-2")).what
    overlapped.stop("sandbox-1", seconds=0.05)  # the runtime's word for the old one comes late
    del world.host.links[intruder.ifindex]
    overlapped.node.refresh()
    overlapped.rig.clock.pass_one()
    overlapped.sandbox("sandbox-2").attach_done.result(SOON)
    assert overlapped.edits("sandbox-2").char_devices
    assert not overlapped.engine.knows("sandbox-1")


def test_nothing_is_left_of_a_sandbox_that_has_ended_before_any_collection_of_garbage(overlapped: Daemon) -> None:
    gc.disable()
    try:
        overlapped.start()
        overlapped.sandbox().attach_done.result(SOON)
        overlapped.edits()
        ended = weakref.ref(overlapped.sandbox())
        overlapped.stop()
        wait_until(lambda: ended() is None, "the sandbox to be forgotten", SOON)
    finally:
        gc.enable()


def test_the_second_word_of_an_end_does_not_keep_the_runtime_as_long_as_the_first(overlapped: Daemon) -> None:
    overlapped.start()
    overlapped.sandbox().attach_done.result(SOON)
    overlapped.rig.failing_gone = 0
    overlapped.broken = OSError("sysfs is gone")  # what came home is not free
    overlapped.stop(seconds=0.05)
    begun = time.monotonic()
    overlapped.stop()  # RemovePodSandbox
    assert time.monotonic() - begun < 2.0


def test_two_pods_without_a_uid_are_two_pods(daemon: Daemon, world: World) -> None:
    add_rail(world, "rail1")
    daemon.node.refresh()
    daemon.start(replace(make_pod("sandbox-1", uid=""), name="one"))
    daemon.start(replace(make_pod("sandbox-2", uid="", path=OTHER_PATH), name="two"))
    assert daemon.sandbox("sandbox-1").state is Phase.ATTACHED
    assert daemon.sandbox("sandbox-2").state is Phase.ATTACHED


# What is offered


def test_another_policy_is_for_pods_that_come_and_leaves_those_that_are_there(daemon: Daemon) -> None:
    daemon.start()
    daemon.engine.placer.offering.policy = policy_of(
        (), (Rule(name="nobody", where="FILE:1", allow=False),), allow_default_pool=True
    )
    assert daemon.edits().char_devices
    with pytest.raises(PlacementError) as caught:
        daemon.start(make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH))
    assert caught.value.code is ErrorCode.POLICY_DENIED
    daemon.stop()
    assert daemon.holders == set()


def test_a_device_whose_routes_are_gone_is_given_to_the_next_pod(daemon: Daemon, world: World) -> None:
    add_rail(world, "rail1")
    rail = next(link for link in world.host.links.values() if link.name == "rail0")
    rail.unreturnable = ("is a path of the multipath route 10.9.0.0/16",)
    daemon.node.refresh()
    rail.unreturnable = ()  # no news of that: the note is out of date
    reads = daemon.reads
    daemon.start()
    assert daemon.holders == {make_device("mlx5_1", ()).id}
    wait_until(lambda: daemon.reads > reads and daemon.node.is_current, "the node to be read anew")
    daemon.start(make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH))
    assert daemon.holders == {make_device(name, ()).id for name in ("mlx5_0", "mlx5_1")}


def test_what_the_rules_can_know_of_a_pod_reaches_them(daemon: Daemon) -> None:
    rule = Rule(name="kata", where="FILE:1", runtime_handlers=("kata",), pod_labels=(("team", ("ml",)),))
    daemon.engine.placer.offering.policy = policy_of((), (rule,), allow_default_pool=True)
    with pytest.raises(PlacementError):
        daemon.start()
    asker = Asker(namespace="ml", runtime_handler="kata", labels=(("team", "ml"),))
    daemon.engine.run_pod(make_pod(), ONE, time.monotonic() + SOON, asker)
    assert daemon.edits().char_devices


def test_a_pool_has_what_it_selects_on_the_node_of_the_moment(daemon: Daemon) -> None:
    pools = [Pool(name="default", modes=(Mode.EXCLUSIVE,), select=(Selector(device=("no_such_device",)),))]
    daemon.engine.placer.offering.policy = policy_of(pools, (), allow_default_pool=False)
    with pytest.raises(PlacementError) as caught:
        daemon.start()
    assert caught.value.code is ErrorCode.NOT_IN_POOL


def test_a_container_that_was_made_before_its_pods_attach_was_done_is_reported(daemon: Daemon) -> None:
    """The daemon was killed in the middle of the attach; the next one begins it anew."""
    daemon.rig.gate.stop_at = "before configure-netdev"
    daemon.start(seconds=0.05)
    assert daemon.rig.gate.reached.wait(SOON)
    daemon.engine.synchronize((make_listed(make_pod()),)).result(SOON)
    assert [item.why for item in daemon.engine.unserved] == ["container main was made while nri-rdma was away"]
    daemon.rig.gate.open.set()

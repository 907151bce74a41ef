"""RunPodSandbox: a pod is refused or begun before it is answered for; its containers are told what fails later."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from nri_rdma.attach.attachments import ATTEMPTS
from nri_rdma.attach.record import Phase
from nri_rdma.errors import AttachError, ErrorCode, NotReadyError, PlacementError
from nri_rdma.model.usage import HostSocket
from nri_rdma.model.waits import Waits
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import Address, World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import POD_PATH, make_pod
from tests.unit.engine.one_rail import OTHER_PATH, daemon, give_up, make_listed, overlapped, planning, refusal, world
from tests.unit.rigs.attachments import SOON, Rig, add_rail
from tests.unit.rigs.engine import Daemon

__all__ = ["daemon", "overlapped", "planning", "world"]  # fixtures


def test_a_sandbox_is_told_twice_and_started_once(daemon: Daemon) -> None:
    daemon.start()
    daemon.start()
    assert daemon.sandbox().state is Phase.ATTACHED


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


def test_a_new_sandbox_of_a_pod_gets_the_devices_of_the_old_one(daemon: Daemon, world: World) -> None:
    daemon.start()
    daemon.start(make_pod("sandbox-2", path=OTHER_PATH))
    assert not daemon.engine.knows("sandbox-1")
    assert daemon.edits("sandbox-2").char_devices
    daemon.stop("sandbox-1")
    assert daemon.sandbox("sandbox-2").state is Phase.ATTACHED


def test_two_pods_without_a_uid_are_two_pods(daemon: Daemon, world: World) -> None:
    add_rail(world, "rail1")
    daemon.node.refresh()
    daemon.start(replace(make_pod("sandbox-1", uid=""), name="one"))
    daemon.start(replace(make_pod("sandbox-2", uid="", path=OTHER_PATH), name="two"))
    assert daemon.sandbox("sandbox-1").state is Phase.ATTACHED
    assert daemon.sandbox("sandbox-2").state is Phase.ATTACHED


# Overlapped


def test_a_sandbox_is_answered_for_before_its_attach_has_ended(overlapped: Daemon) -> None:
    overlapped.rig.gate.stop_at = "before move-netdev"
    overlapped.start()  # would wait for five seconds
    assert overlapped.sandbox().planned.done()
    assert overlapped.rig.gate.reached.wait(SOON)
    assert not overlapped.sandbox().attach_done.done()
    assert "0 of 1 devices attached" in refusal(NotReadyError, overlapped.edits).what
    overlapped.rig.gate.open.set()
    overlapped.sandbox().attach_done.result(SOON)
    assert overlapped.edits().char_devices


def test_what_must_be_refused_is_refused_by_the_sandbox(overlapped: Daemon, world: World) -> None:
    world.remove_namespace(POD_PATH)
    assert "ENOENT" in str(refusal(AttachError, overlapped.start))
    assert (overlapped.holders, overlapped.rig.sandboxes.all()) == (set(), ())


def test_a_new_sandbox_waits_for_the_old_one_without_keeping_the_runtime(overlapped: Daemon, world: World) -> None:
    overlapped.start()
    overlapped.sandbox().attach_done.result(SOON)
    intruder = world.add_link(world.host, "rail0")  # the way home is blocked
    begun = time.monotonic()
    overlapped.start(make_pod("sandbox-2", path=OTHER_PATH))
    assert time.monotonic() - begun < SOON / 2
    assert "older sandbox" in refusal(NotReadyError, lambda: overlapped.edits("sandbox-2")).what
    overlapped.stop("sandbox-1", seconds=0.05)  # the runtime's word for the old one comes late
    del world.host.links[intruder.ifindex]
    overlapped.node.refresh()
    overlapped.rig.gate.stop_at = "before move-netdev"
    overlapped.rig.clock.pass_one()
    assert overlapped.rig.gate.reached.wait(SOON)
    waiting = refusal(NotReadyError, lambda: overlapped.edits("sandbox-2")).what
    assert waiting == "network is not ready: 0 of 1 devices attached"
    overlapped.rig.gate.open.set()
    overlapped.sandbox("sandbox-2").attach_done.result(SOON)
    assert overlapped.edits("sandbox-2").char_devices
    assert not overlapped.engine.knows("sandbox-1")


def test_a_sandbox_whose_devices_go_back_is_not_started_again(daemon: Daemon, world: World) -> None:
    daemon.start()
    intruder = world.add_link(world.host, "rail0")  # the way home is blocked
    daemon.stop(seconds=0.05)
    daemon.rig.clock.wait_for_one()  # until the next attempt to return it
    assert refusal(NotReadyError, daemon.start).code is ErrorCode.RETURNING
    assert daemon.sandbox().ends
    del world.host.links[intruder.ifindex]
    daemon.rig.clock.pass_one()
    wait_until(lambda: not daemon.engine.knows("sandbox-1"), "the device to be home", SOON)
    daemon.start()
    assert daemon.edits().char_devices


# Another attempt


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
    planning.engine._placer._node.readers = readers = Workers(1, name="reader")
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
    wait_until(lambda: [str(item.pod) for item in daemon.engine.unserved] == ["ml/train"], "the pod in status")
    daemon.stop()
    assert daemon.engine.unserved == ()


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


def test_an_attach_that_is_given_up_is_told_to_every_container(overlapped: Daemon, world: World) -> None:
    before = world.snapshot()
    give_up(overlapped)
    assert (world.snapshot(), overlapped.holders) == (before, set())
    for _ in range(3):
        assert refusal(NotReadyError, overlapped.edits).code is ErrorCode.ATTACH_FAILED
    wait_until(lambda: [str(item.pod) for item in overlapped.engine.unserved] == ["ml/train"], "the unserved pod")


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
    wait_until(lambda: [str(item.pod) for item in second.engine.unserved] == ["ml/train"], "the unserved pod")
    assert world.snapshot() == before
    rig.close()


def test_a_failure_ends_with_the_pods_namespace_also_without_an_event(overlapped: Daemon) -> None:
    give_up(overlapped)
    wait_until(lambda: overlapped.engine.unserved, "the unserved pod")
    (row,) = overlapped.engine.unserved
    overlapped.engine.sandboxes.namespace_removed(row.pod.netns_path)
    assert overlapped.engine.unserved == ()


def test_an_attach_that_fails_when_its_pod_was_stopped_is_no_pod_without_its_devices(overlapped: Daemon) -> None:
    done: Future[None] = Future()
    done.set_exception(RuntimeError("late"))
    overlapped.stop()
    overlapped.engine._pods.remember_failure(make_pod(), done)
    assert overlapped.engine.unserved == ()


def test_a_pod_that_is_started_again_after_it_was_given_up_is_not_told_of_the_old_failure(overlapped: Daemon) -> None:
    give_up(overlapped)
    overlapped.rig.gate.fail_at = ""
    overlapped.engine.synchronize((make_listed(make_pod(), containers=()),)).result(SOON)
    overlapped.sandbox().attach_done.result(SOON)
    assert overlapped.edits().char_devices
    assert overlapped.engine.unserved == ()

"""Fail closed: whoever asked gets all of it, an error, or "not yet", and each answer comes before its deadline."""

import gc
import threading
import time
import weakref
from functools import partial
from pathlib import Path

import pytest

from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.waits import Waits
from tests.fakes.kernel import World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import POD_PATH, make_pod
from tests.unit.engine.one_rail import OTHER_PATH, daemon, overlapped, planning, world
from tests.unit.rigs.attachments import SOON, Rig
from tests.unit.rigs.engine import PREFIX, Daemon

__all__ = ["daemon", "overlapped", "planning", "world"]  # fixtures


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
    overlapped.engine.stop_pod("sandbox-1", time.monotonic() + 0.05)
    begun = time.monotonic()
    overlapped.engine.stop_pod("sandbox-1", begun + SOON)  # RemovePodSandbox
    assert time.monotonic() - begun < SOON / 2


def test_a_stop_is_answered_when_the_devices_are_on_the_host_and_the_removal_when_they_are_as_before(
    overlapped: Daemon, world: World
) -> None:
    before, gate = world.snapshot(), overlapped.rig.gate
    overlapped.start()
    overlapped.sandbox().attach_done.result(SOON)
    gate.stop_at = "before restore"
    overlapped.engine.stop_pod("sandbox-1", time.monotonic() + SOON)
    assert gate.reached.wait(SOON)
    assert [link.name for link in world.host.links.values() if link.name.startswith("rail")] == ["rail0"]
    assert world.snapshot() != before, "it has no addresses yet"
    world.remove_namespace(POD_PATH)  # as the runtime does once it is answered
    assert overlapped.engine.remembers("sandbox-1")
    assert overlapped.holders == {"mlx5_0"}
    threading.Timer(0.05, gate.open.set).start()
    overlapped.engine.stop_pod("sandbox-1", time.monotonic() + SOON)
    assert world.snapshot() == before


def test_a_pod_that_starts_while_the_device_is_made_what_it_was_waits_and_has_it(overlapped: Daemon) -> None:
    gate = overlapped.rig.gate
    overlapped.start()
    overlapped.sandbox().attach_done.result(SOON)
    gate.stop_at = "before restore"
    overlapped.engine.stop_pod("sandbox-1", time.monotonic() + SOON)
    gate.stop_at = ""
    threading.Timer(0.05, gate.open.set).start()
    overlapped.start(make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH))
    assert overlapped.holders == {"mlx5_0"}
    assert not overlapped.rig.sandboxes.knows("sandbox-1")


def test_where_an_attach_is_waited_for_a_stop_waits_until_all_is_as_before(overlapped: Daemon, world: World) -> None:
    before, gate = world.snapshot(), overlapped.rig.gate
    overlapped.engine.barrier.waits = Waits(blocking=True)
    overlapped.start()
    gate.stop_at = "before restore"
    threading.Timer(0.05, gate.open.set).start()
    overlapped.engine.stop_pod("sandbox-1", time.monotonic() + SOON)
    assert world.snapshot() == before


def test_the_first_word_of_an_end_waits_for_the_way_home_longer_than_a_container_does(
    overlapped: Daemon, world: World
) -> None:
    overlapped.engine.barrier.waits = Waits(barrier_s=0.01)
    overlapped.start()
    overlapped.sandbox().attach_done.result(SOON)
    gate = overlapped.rig.gate
    gate.stop_at = "before undo"
    opener = threading.Timer(0.05, gate.open.set)
    opener.start()
    overlapped.engine.stop_pod("sandbox-1", time.monotonic() + SOON)
    assert [link.name for link in world.host.links.values()] == ["rail0"]
    opener.join()


def test_a_second_word_of_an_end_waits_as_long_as_a_container_does(overlapped: Daemon, world: World) -> None:
    overlapped.engine.barrier.waits = Waits(barrier_s=0.01)
    overlapped.start()
    overlapped.sandbox().attach_done.result(SOON)
    overlapped.rig.gate.stop_at = "before undo"
    overlapped.engine.stop_pod("sandbox-1", time.monotonic() + 0.01)
    begun = time.monotonic()
    overlapped.engine.stop_pod("sandbox-1", begun + SOON)
    assert time.monotonic() - begun < SOON / 2
    assert list(world.host.links) == []
    overlapped.rig.gate.open.set()


def test_the_end_of_a_sandbox_that_lacks_nothing_and_has_nothing_need_not_be_handled(daemon: Daemon) -> None:
    daemon.engine.sandboxes.take("sandbox-9")  # something is known of it: what the kubelet allocated, say
    assert not daemon.engine.remembers("sandbox-9")

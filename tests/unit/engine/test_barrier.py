"""No container is made before its pod's devices are attached; it waits briefly and is told to come again."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.news import look_at_all_again
from nri_rdma.attach.numbers import Resolved
from nri_rdma.errors import (
    AttachError,
    ErrorCode,
    NotReadyError,
)
from nri_rdma.model.waits import Waits
from tests.fakes.kernel import World
from tests.unit.engine.one_rail import daemon, refusal, world
from tests.unit.rigs.attachments import SOON, Rig
from tests.unit.rigs.engine import PREFIX, Daemon

__all__ = ["daemon", "world"]  # fixtures


def test_a_container_waits_for_the_attach_but_not_long(daemon: Daemon) -> None:
    daemon.rig.gate.stop_at = "after move-netdev"
    daemon.start(seconds=0.05)
    assert daemon.rig.gate.reached.wait(SOON)
    daemon.engine.barrier.waits = Waits(barrier_s=0.2)
    begun = time.monotonic()
    error = refusal(NotReadyError, daemon.edits)
    assert time.monotonic() - begun < SOON / 2
    assert error.what == "network is not ready: 0 of 1 devices attached"
    daemon.rig.gate.open.set()
    daemon.sandbox().attach_done.result(SOON)
    assert daemon.edits().char_devices


def test_an_attach_that_ends_while_a_container_waits_lets_it_pass(daemon: Daemon) -> None:
    daemon.rig.gate.stop_at = "after move-netdev"
    daemon.start(seconds=0.01)
    assert daemon.rig.gate.reached.wait(SOON)
    opener = threading.Timer(0.02, daemon.rig.gate.open.set)
    opener.start()
    assert daemon.edits().char_devices
    opener.join()


def test_a_stuck_attach_is_answered_before_the_deadline(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.rig.gate.stop_at = "before move-netdev"
    begun = time.monotonic()
    daemon.start(seconds=0.1)
    assert time.monotonic() - begun < SOON / 2
    assert daemon.rig.gate.reached.wait(SOON)
    begun = time.monotonic()
    assert refusal(NotReadyError, lambda: daemon.edits(seconds=0.05)).code is ErrorCode.NOT_READY
    daemon.stop(seconds=0.05)
    assert time.monotonic() - begun < SOON / 2
    assert "the return of devices goes on after the answer" in caplog.messages
    assert refusal(NotReadyError, daemon.edits).code is ErrorCode.RETURNING


def test_a_sandbox_that_goes_back_refuses_for_ever(daemon: Daemon, world: World) -> None:
    daemon.start()
    world.add_link(world.host, "rail0")  # the way home is blocked
    daemon.stop(seconds=0.05)
    daemon.rig.clock.wait_for_one()  # until the next attempt to return it
    assert refusal(NotReadyError, daemon.edits).code is ErrorCode.RETURNING
    assert refusal(NotReadyError, daemon.start).code is ErrorCode.RETURNING
    assert daemon.holders == {"mlx5_0"}


def test_only_one_container_of_a_sandbox_waits_for_an_attach(daemon: Daemon) -> None:
    daemon.rig.gate.stop_at = "before move-netdev"
    daemon.start(seconds=0.01)
    daemon.engine.barrier.waits = Waits(barrier_s=0.5)
    begun = time.monotonic()
    for _ in range(10):
        assert refusal(NotReadyError, daemon.edits).code is ErrorCode.NOT_READY
    assert time.monotonic() - begun < 3.0  # each waiting would be five seconds
    daemon.rig.gate.open.set()


def test_a_container_is_refused_while_a_device_of_its_pod_is_gone(world: World, tmp_path: Path) -> None:
    gone: list[str] = []

    def resolve(known: Resolved) -> Resolved:
        if gone:
            raise AttachError("the RDMA device is gone", device=gone[0], hint="this is a test")
        return replace(known, has_nodes=False)

    rig = Rig(state=tmp_path, world=world, resolve=resolve)
    daemon = Daemon(rig)
    daemon.start()
    gone.append("mlx5_0")
    look_at_all_again(rig.sandboxes)
    assert refusal(AttachError, daemon.edits).code is ErrorCode.ATTACH_FAILED
    assert refusal(AttachError, daemon.edits).code is ErrorCode.ATTACH_FAILED
    gone.clear()
    assert daemon.edits().char_devices
    rig.close()


@pytest.mark.parametrize(("more", "looks"), [("", False), (", limits: {hcaObjects: 8}", True)])
def test_only_a_container_with_limits_has_its_devices_looked_at_again(daemon: Daemon, more: str, looks: bool) -> None:
    """rdma.max takes the present name only, and a pod can change it without any sign on the host."""
    daemon.start(annotations={f"{PREFIX}/pod": f"{{mode: shared{more}}}"})
    daemon.edits()
    assert (daemon.sandbox().now.looked_again is not None) == looks


def test_who_is_answered_at_once_does_not_put_the_next_wait_off(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_rdma.engine.barrier.BARRIER_PAUSE_S", 2 * SOON)
    daemon.rig.gate.stop_at = "before move-netdev"
    daemon.start(seconds=0.05)
    known, seen = daemon.engine.sandboxes.take("sandbox-1"), []
    for _ in range(3):
        refusal(NotReadyError, lambda: daemon.edits(seconds=0.01))
        seen.append(known.waited_at)
    assert seen[0] > 0
    assert seen == [seen[0]] * 3
    daemon.rig.gate.open.set()

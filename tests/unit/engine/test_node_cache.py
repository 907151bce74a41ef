"""The node is read when somebody needs it anew, and once for all who wait."""

import threading
import time
from collections.abc import Callable

import pytest

from nri_rdma.engine import node_cache
from nri_rdma.engine.node_cache import NodeCache, NodeReader
from nri_rdma.errors import (
    ErrorCode,
    InventoryError,
)
from nri_rdma.tasks.workers import Workers
from tests.fakes.kernel import World
from tests.unit.attach.sandbox_life import drop
from tests.unit.engine.one_rail import daemon, refusal, world
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import Daemon

__all__ = ["daemon", "world"]  # fixtures


def test_readings_of_the_node_that_are_asked_for_while_one_is_queued_are_one(daemon: Daemon) -> None:
    """A burst of events must not have a pod wait for as many readings."""
    held, workers = threading.Event(), daemon.rig.workers
    for number in range(2):  # all that there are
        workers.submit(f"busy {number}", lambda: drop(held.wait(SOON)))
    first, second = daemon.node.refresh_in(workers), daemon.node.refresh_in(workers)
    before = daemon.reads
    held.set()
    first.result(SOON)
    assert second is first
    assert daemon.reads == before + 1
    daemon.node.refresh_in(workers).result(SOON)
    assert daemon.reads == before + 2


def test_a_burst_of_news_is_one_reading_after_a_pause(daemon: Daemon) -> None:
    paused = list[tuple[float, Callable[[], None]]]()

    def schedule(pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
        paused.append((pause_s, work))
        return lambda: None

    node = NodeCache(daemon.node._read, schedule)
    node.refresh()
    before, workers = daemon.reads, daemon.rig.workers
    first, second = node.refresh_soon(workers), node.refresh_soon(workers)
    assert (second is first, node.is_current, daemon.reads) == (True, False, before)
    ((pause_s, work),) = paused
    assert pause_s == node_cache.BURST_S
    work()
    first.result(SOON)
    work()  # a timer that was cancelled too late
    workers.submit("refresh", lambda: None).result(SOON)
    assert (node.is_current, daemon.reads) == (True, before + 1)


def test_who_waits_for_a_reading_does_not_wait_for_the_pause_after_news(daemon: Daemon) -> None:
    """And the news needs no other reading after that: it began later."""
    cancelled = list[bool]()
    node = NodeCache(daemon.node._read, lambda _pause_s, _work: lambda: cancelled.append(True))
    node.refresh()
    before, workers = daemon.reads, daemon.rig.workers
    news = node.refresh_soon(workers)
    assert node.refresh_in(workers) is news
    news.result(SOON)
    assert (node.is_current, daemon.reads, cancelled) == (True, before + 1, [True])


def test_a_reading_that_news_has_asked_for_tells_its_error_and_its_end(daemon: Daemon) -> None:
    def at_once(_pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    node = NodeCache(daemon.node._read, at_once)
    daemon.broken = OSError("sysfs is gone")
    with pytest.raises(InventoryError):
        node.refresh_soon(daemon.rig.workers).result(SOON)
    ended = Workers(1)
    ended.close()
    assert node.refresh_soon(ended).cancelled()


def test_a_node_is_current_after_a_reading_that_succeeded_and_was_the_last_to_be_asked_for(daemon: Daemon) -> None:
    node = daemon.node
    told = [node.is_current]  # nothing listened to what changed before the first reading
    node.refresh()
    told.append(node.is_current)
    daemon.broken = OSError("sysfs is gone")
    with pytest.raises(InventoryError):
        node.refresh()
    told.append(node.is_current)
    daemon.broken = None
    node.refresh_in(daemon.rig.workers).result(SOON)
    assert [*told, node.is_current] == [False, True, False, True]


def test_a_node_that_cannot_be_read_refuses_with_a_code(daemon: Daemon, world: World) -> None:
    world.host.links.clear()
    daemon.node.refresh()
    daemon.broken = OSError("sysfs is gone")
    assert refusal(InventoryError, daemon.start).code is ErrorCode.INVENTORY


def test_a_device_is_free_only_after_the_node_was_read_anew(daemon: Daemon) -> None:
    daemon.start()
    daemon.broken = OSError("sysfs is gone")
    daemon.engine.stop_pod("sandbox-1", time.monotonic() + 0.05)
    daemon.rig.clock.wait_for_one()
    assert daemon.holders == {"mlx5_0"}
    daemon.broken = None
    daemon.rig.clock.pass_one()
    done = daemon.rig.sandboxes.end("sandbox-1")
    assert done is None or done.result(SOON) is None
    assert daemon.holders == set()


def test_what_no_kernel_announces_is_looked_for_every_few_seconds_at_most(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, before, counts = NodeReader(daemon.node, daemon.rig.workers, tuple), daemon.reads, []
    for pause_s in (5.0, 5.0, 0.0):
        monkeypatch.setattr(node_cache, "_LOOK_PAUSE_S", pause_s)
        reader.look_again()
        daemon.rig.workers.submit("refresh", lambda: None).result(SOON)
        counts.append(daemon.reads - before)
    assert counts == [1, 1, 2]

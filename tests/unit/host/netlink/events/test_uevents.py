"""The stream of uevents, from this kernel: it has no RDMA device, so the events are those of others."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.host.netlink.events.uevents import RdmaUevents
from nri_rdma.tasks.listeners import TURN_S, Listeners
from nri_rdma.wire.uevent import Uevent
from tests.rig.deadline import wait_until

pytestmark = pytest.mark.root

HEARD = "mem"  # of its devices nobody else makes events
HEARD_DEVICE = Path("/sys/class/mem/null/uevent")
OTHER_DEVICE = Path("/sys/class/net/lo/uevent")


class Listener:
    """Notes what it is told, and when; can be told to fail."""

    def __init__(self) -> None:
        self.events: list[Uevent] = []
        self.quiet_at: list[float] = []
        self.fails = False

    def event(self, event: Uevent) -> None:
        self.events.append(event)
        if self.fails:
            raise RuntimeError("a listener that fails")

    def quiet(self) -> None:
        self.quiet_at.append(time.monotonic())


@pytest.fixture
def listener() -> Iterator[Listener]:
    listener, listeners = Listener(), Listeners(rest_s=0.01)
    uevents = RdmaUevents(listeners, listener.event, lambda: None, listener.quiet, subsystems=frozenset({HEARD}))
    yield listener
    uevents.close()
    listeners.close()


def change(device: Path) -> None:
    """Have the kernel send an event of this device."""
    device.write_text("change")


def test_a_burst_of_events_ends_in_one_quiet(listener: Listener) -> None:
    for _ in range(5):
        change(HEARD_DEVICE)
    wait_until(lambda: len(listener.events) == 5, "the events")
    wait_until(lambda: bool(listener.quiet_at), "the quiet after them")
    assert [(event.subsystem, event.action) for event in listener.events] == [(HEARD, "change")] * 5
    assert len(listener.quiet_at) == 1


def test_events_of_other_devices_do_not_put_the_quiet_off(listener: Listener) -> None:
    done = threading.Event()

    def chatter() -> None:
        while not done.wait(0.01):
            change(OTHER_DEVICE)

    thread = threading.Thread(target=chatter)
    thread.start()
    try:
        change(HEARD_DEVICE)
        wait_until(lambda: bool(listener.quiet_at), "the quiet while others go on")
    finally:
        done.set()
        thread.join()
    assert [event.subsystem for event in listener.events] == [HEARD]


def test_a_listener_that_fails_does_not_lose_the_quiet(listener: Listener) -> None:
    listener.fails = True
    change(HEARD_DEVICE)
    wait_until(lambda: bool(listener.quiet_at), "the quiet")
    assert len(listener.events) == 1


def test_a_flood_of_events_of_other_devices_ends_the_turn(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sources are listened to by the same thread."""
    listeners = Listeners()
    uevents = RdmaUevents(listeners, listener.event, lambda: None, listener.quiet)
    uevents.close()
    listeners.close()
    begun = time.monotonic()

    class Flood:
        """A socket whose buffer is never empty."""

        def recvfrom(self, _size: int) -> tuple[bytes, tuple[int, int]]:
            assert time.monotonic() - begun < 200 * TURN_S, "the turn does not end"
            return b"change@/devices/virtual/net/lo\0ACTION=change\0DEVPATH=/d\0SUBSYSTEM=net\0SEQNUM=1\0", (0, 1)

    monkeypatch.setattr(uevents, "_socket", Flood())
    uevents._take()
    assert time.monotonic() - begun >= TURN_S

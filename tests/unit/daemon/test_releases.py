"""Devices that are held after a restart, and released when they are home."""

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from nri_rdma.attach.plan import Plan
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.daemon import releases as module
from nri_rdma.daemon.releases import Releases
from nri_rdma.decide.inject import AttachedDevice, AttachedRequest
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.reservations import Reservations
from nri_rdma.errors import InventoryError
from nri_rdma.model.device import DeviceId, Node
from nri_rdma.tasks.workers import Workers
from tests.unit.attach.builders import make_device, make_placed, make_pod
from tests.unit.model.hardware import node

SOON = 20.0


def _record() -> SandboxRecord:
    placed = make_placed((make_device("mlx5_0", ()),))
    devices = tuple(AttachedDevice(device=device, netdev_names=()) for device in placed.devices)
    attached = AttachedRequest(admitted=placed.admitted, devices=devices)
    return SandboxRecord(
        pod=make_pod(), state=Phase.ATTACHED, namespace=None, plan=Plan(), attached=(attached,), rdma_cm=None
    )


class _Host:
    """A node that can be read, until it cannot."""

    def __init__(self) -> None:
        self.reads = 0
        self.error: Exception | None = None

    def read(self) -> Node:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return node()


@pytest.fixture
def host() -> _Host:
    """A host without devices."""
    return _Host()


@pytest.fixture
def reservations() -> Reservations:
    """What is held."""
    return Reservations()


@pytest.fixture
def releases(host: _Host, reservations: Reservations) -> Iterator[Releases]:
    """Releases on this host, with the thread that scans it."""
    readers = Workers(1)
    yield Releases(reservations, NodeCache(host.read), readers, _at_once)
    readers.close()


def _at_once(_pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
    work()
    return lambda: None


def test_what_an_earlier_daemon_attached_is_held(releases: Releases, reservations: Reservations) -> None:
    releases.hold(_record())
    assert set(reservations.taken()) == {DeviceId("mlx5_0")}


def test_devices_are_others_once_the_node_was_read_again(
    releases: Releases, reservations: Reservations, host: _Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COLLECT_PAUSE_S", 1e9)  # no garbage is collected: that takes a second here
    record = _record()
    releases.hold(record)
    host.error = OSError("no sysfs")
    with pytest.raises(InventoryError):
        releases.release(record.key)
    assert set(reservations.taken()) == {DeviceId("mlx5_0")}
    host.error = None
    releases.release(record.key)
    assert (set(reservations.taken()), host.reads) == (set(), 3)


class _Circle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.itself = self


def test_what_ended_pods_leave_is_collected_once_for_many(releases: Releases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COLLECT_PAUSE_S", 3600.0)
    releases._collected = -3600.0
    gc.disable()
    try:
        first = weakref.ref(_Circle())
        releases.release("sandbox-1")
        assert first() is None
        second = weakref.ref(_Circle())
        releases.release("sandbox-2")
        assert second() is not None
    finally:
        gc.enable()


def test_nothing_is_collected_before_the_release_is_answered(host: _Host, reservations: Reservations) -> None:
    later: list[tuple[float, Callable[[], None]]] = []

    def schedule(pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
        later.append((pause_s, work))
        return lambda: None

    readers = Workers(1)
    gc.disable()
    try:
        garbage = weakref.ref(_Circle())
        Releases(reservations, NodeCache(host.read), readers, schedule).release("sandbox-1")
        ((pause_s, work),) = later
        assert (garbage() is not None, pause_s) == (True, module.COLLECT_AFTER_S)
        work()
        assert garbage() is None
    finally:
        gc.enable()
        readers.close()


def test_what_was_imported_since_is_not_looked_at_again(releases: Releases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COLLECT_PAUSE_S", -1.0)
    kept = [_Circle()]
    try:
        releases.release("sandbox-1")  # after the imports of the tests themselves
        gc.unfreeze()
        releases.release("sandbox-2")
        assert _is_looked_at(kept)
        monkeypatch.setitem(sys.modules, "a_module_of_this_test", ModuleType("a_module_of_this_test"))
        releases.release("sandbox-3")
        assert not _is_looked_at(kept)
    finally:
        gc.freeze()  # as tests/conftest.py has it


def _is_looked_at(thing: object) -> bool:
    return any(it is thing for it in gc.get_objects())

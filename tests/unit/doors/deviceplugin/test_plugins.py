"""The device plugins of a node are registered for as long as the daemon lives, whatever the kubelet does."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.timers import start_timer
from nri_rdma.doors.deviceplugin import plugins as module
from nri_rdma.doors.deviceplugin.plugins import DevicePlugins
from nri_rdma.doors.deviceplugin.pool_server import PoolServer
from nri_rdma.engine.shares import Guarding, ShareBook
from nri_rdma.host.watch import inotify
from nri_rdma.model.device import Node
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from tests.rig.deadline import wait_until
from tests.rig.device_manager import FakeDeviceManager
from tests.unit.doors.deviceplugin.pools import RESOURCE, pool, supply
from tests.unit.doors.deviceplugin.test_answers import down
from tests.unit.model.hardware import eight

OTHER = "rdma/other"


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TRY_AGAIN_S", 0.1)
    monkeypatch.setattr(module, "ABSENT_S", 0.2)


@contextmanager
def plugins(
    folder: Path, *pools: Pool, shares: ShareBook | None = None, node: Callable[[], Node] = eight
) -> Iterator[DevicePlugins]:
    """They are closed at the end, and so are the threads that they use."""
    workers, listeners = Workers(), Listeners(lambda _name: None)
    opened = DevicePlugins(
        folder,
        lambda: supply(*pools, node=node()),
        shares or ShareBook(pools),
        guard=lambda: Guarding.NO_HOOK,
        workers=workers,
        listeners=listeners,
        schedule=start_timer,
        spans=Recorder(),
    )
    opened.open_later()
    try:
        yield opened
    finally:
        workers.close(5)
        opened.close()
        listeners.close()


def test_each_pool_is_registered_and_an_allocation_makes_the_next_pod_worth_a_question(tmp_path: Path) -> None:
    two = (pool(), pool(name="others", resource=OTHER))
    shares = ShareBook(two)
    with FakeDeviceManager(tmp_path) as manager, plugins(tmp_path, *two, shares=shares):
        wait_until(lambda: set(manager.plugins) == {RESOURCE, OTHER}, "both")
        assert not shares.is_pending
        manager.allocate(RESOURCE, ("hcas-00",))
        assert shares.is_pending


def test_a_kubelet_that_comes_later_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "later/it"  # short: a socket's path has 107 bytes, and pytest's folder some 70
    with plugins(folder, pool()), FakeDeviceManager(folder) as manager:
        wait_until(lambda: RESOURCE in manager.plugins, "the registration")


def test_a_kubelet_that_starts_anew_is_registered_with_again(tmp_path: Path) -> None:
    with plugins(tmp_path, pool()):
        for _ in range(3):
            with FakeDeviceManager(tmp_path) as manager:
                wait_until(lambda: RESOURCE in manager.plugins, "the registration")


def test_the_kubelet_hears_of_a_port_that_goes_down_and_comes_back(tmp_path: Path) -> None:
    nodes = [eight()]
    with FakeDeviceManager(tmp_path) as manager, plugins(tmp_path, pool(), node=lambda: nodes[-1]) as opened:
        wait_until(lambda: RESOURCE in manager.plugins, "the registration")
        told = manager.plugins[RESOURCE]
        for node, healthy in ((down(eight(), 3), 14), (eight(), 16)):
            nodes.append(node)
            opened.node_was_read()
            wait_until(lambda: list(told.devices.values()).count("Healthy") == healthy, "the health")  # noqa: B023


def test_what_listens_is_told_of_each_look_while_there_is_a_kubelet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    looks = list[float]()
    with FakeDeviceManager(tmp_path), plugins(tmp_path, pool()) as opened:
        opened.on_look.append(lambda: looks.append(0.0))
        wait_until(lambda: len(looks) > 2, "three looks")


def test_pools_with_another_door_are_not_the_kubelets(tmp_path: Path) -> None:
    one = replace(pool(), door=PoolDoor.ANNOTATIONS)
    with FakeDeviceManager(tmp_path) as manager, plugins(tmp_path, one) as opened:
        opened.node_was_read()
        assert manager.registrations == []


def test_the_end_of_the_daemon_leaves_no_socket(tmp_path: Path) -> None:
    with FakeDeviceManager(tmp_path) as manager:
        with plugins(tmp_path, pool()):
            wait_until(lambda: RESOURCE in manager.plugins, "the registration")
        assert [path.name for path in tmp_path.iterdir()] == ["kubelet.sock"]


def test_a_resource_that_another_plugin_serves_does_not_keep_the_others_waiting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "plugins"
    two = (pool(), pool(name="others", resource=OTHER))
    with FakeDeviceManager(folder) as manager, socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(folder / "hca_shared.sock"))
        theirs.listen()
        with plugins(folder, *two, shares=ShareBook(two)):
            wait_until(lambda: set(manager.plugins) == {OTHER}, "the other one")
            theirs.close()
            wait_until(lambda: set(manager.plugins) == {RESOURCE, OTHER}, "both")
    told = [it for it in caplog.records if it.message == "a resource is not served"]
    assert len(told) == 1


def test_what_is_not_registered_is_known_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    two = (pool(), pool(name="others", resource=OTHER))
    book = ShareBook(two)
    folder.mkdir()

    def errors() -> list[str]:
        return [book.registrations[it.name].error for it in two]

    with plugins(folder, *two, shares=book):
        wait_until(lambda: errors() == [f"the kubelet has no kubelet.sock in {folder}"] * 2, "no kubelet")
        with FakeDeviceManager(folder):
            wait_until(lambda: errors() == ["", ""], "both")
        wait_until(lambda: all("no kubelet.sock" in error for error in errors()), "its end", 15)
    with FakeDeviceManager(folder), socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(folder / "hca_shared.sock"))
        theirs.listen()
        with plugins(folder, *two, shares=book):
            wait_until(lambda: errors()[1] == "" and "RESOURCE-TAKEN" in errors()[0], "what is taken")


def test_on_a_node_without_a_watch_left_the_shares_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "inotify_init1")

    monkeypatch.setattr(inotify, "Inotify", refuse)
    with FakeDeviceManager(tmp_path) as manager, plugins(tmp_path, pool()):
        wait_until(lambda: RESOURCE in manager.plugins, "the registration")


def test_a_folder_that_cannot_be_watched_costs_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors = []

    def refuse(watch: inotify.Inotify, _path: str, _mask: int) -> None:
        descriptors.append(watch.fileno())
        raise OSError(errno.ENOSPC, "inotify_add_watch")

    monkeypatch.setattr(inotify.Inotify, "add", refuse)
    with FakeDeviceManager(tmp_path) as manager, plugins(tmp_path, pool()):
        wait_until(lambda: RESOURCE in manager.plugins, "the registration")
    assert len(descriptors) == 1
    now = Path(f"/proc/self/fd/{descriptors[0]}")
    assert not now.is_symlink() or str(now.readlink()) != "anon_inode:inotify"


def test_a_bug_does_not_end_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failing = [True]
    serve = PoolServer.serve

    def break_once(server: PoolServer) -> None:
        if failing and failing.pop():
            raise RuntimeError("a bug")
        serve(server)

    monkeypatch.setattr(PoolServer, "serve", break_once)
    with FakeDeviceManager(tmp_path) as manager, plugins(tmp_path, pool()):
        wait_until(lambda: RESOURCE in manager.plugins, "the registration")
    (told,) = (it for it in caplog.records if it.message == "the shares are not served")
    assert told.exc_info is not None

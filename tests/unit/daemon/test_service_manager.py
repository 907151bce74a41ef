"""A service manager is told when the daemon is ready and when it ends."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.daemon import service_manager
from nri_rdma.daemon.service_manager import READY_WITHIN_S, ServiceManager


class Systemd:
    """The socket that systemd gives a service."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._socket.setblocking(False)
        self.address = address

    @property
    def told(self) -> list[bytes]:
        """What has come since the last look."""
        found = []
        while True:
            try:
                found.append(self._socket.recv(4096))
            except BlockingIOError:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd() -> Iterator[Systemd]:
    with TemporaryDirectory(prefix="nri-") as folder:  # a socket's name is short
        made = Systemd(str(Path(folder) / "notify"))
        yield made
        made.close()


class Later:
    """A clock's part: what is due is called by the test."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
        self.due.append((pause_s, work))
        return lambda: None


def test_where_no_runtime_will_come_the_daemon_is_ready_at_once(systemd: Systemd) -> None:
    ServiceManager(systemd.address).serving(alone=True)
    assert systemd.told == [b"READY=1"]


def test_ready_and_the_end_are_told_once_each(systemd: Systemd) -> None:
    manager = ServiceManager(systemd.address, Later())
    manager.serving()
    assert systemd.told == []
    manager.ready()
    manager.ready()  # each time that the runtime has reported its pods
    assert systemd.told == [b"READY=1"]
    manager.stopping()
    manager.stopping()
    assert systemd.told == [b"STOPPING=1"]


def test_without_a_runtime_the_daemon_is_ready_after_a_while(systemd: Systemd) -> None:
    later = Later()
    manager = ServiceManager(systemd.address, later)
    manager.serving()
    ((pause_s, work),) = later.due
    assert pause_s == READY_WITHIN_S
    work()
    manager.ready()  # the runtime comes later
    assert systemd.told == [b"READY=1"]


def test_a_daemon_that_ends_is_not_ready_any_more(systemd: Systemd) -> None:
    later = Later()
    manager = ServiceManager(systemd.address, later)
    manager.serving()
    manager.stopping()
    later.due[0][1]()
    assert systemd.told == [b"STOPPING=1"]


def test_an_abstract_socket_is_reached() -> None:
    systemd = Systemd("@nri-rdma-test-notify")
    ServiceManager(systemd.address, Later()).ready()
    assert systemd.told == [b"READY=1"]
    systemd.close()


def test_without_a_service_manager_nothing_is_sent_and_no_timer_runs(caplog: pytest.LogCaptureFixture) -> None:
    later = Later()
    manager = ServiceManager("", later)
    with caplog.at_level(logging.DEBUG):
        manager.serving()
        manager.ready()
        manager.stopping()
    assert (later.due, caplog.records) == ([], [])


def test_a_service_manager_that_is_not_there_costs_a_warning_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ServiceManager(str(tmp_path / "absent"), Later()).ready()
    assert [record.getMessage() for record in caplog.records] == ["the service manager cannot be told"]


def test_a_service_manager_that_does_not_read_keeps_nobody_waiting(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_manager, "_SEND_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as earlier, suppress(BlockingIOError):
        earlier.setblocking(False)
        while True:  # until its queue is full
            earlier.sendto(b"STATUS=", systemd.address)
    telling = threading.Thread(target=ServiceManager(systemd.address, Later()).ready, daemon=True)
    telling.start()
    telling.join(30)
    assert not telling.is_alive()
    assert [vars(it)["error"] for it in caplog.records] == ["timed out"]

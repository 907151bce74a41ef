"""The daemon as a service of systemd: it is ready when the runtime has reported its pods."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon import service_manager
from nri_rdma.daemon.daemon import Daemon
from nri_rdma.daemon.locks import Sole
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from nri_rdma.ttrpc.wire import Request
from tests.fakes.runtime import PLUGIN_SERVICE, FakeRuntime
from tests.rig.node import load
from tests.rig.systree import build_tree

pytestmark = pytest.mark.root
PROJECT = Path(__file__).resolve().parents[2]
SOON = 15.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="nri-") as name:  # sockets' names are short
        yield Path(name)


@pytest.fixture
def manager(folder: Path) -> Iterator[socket.socket]:
    """The socket that systemd gives a service of Type=notify."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as opened:
        opened.bind(str(folder / "notify"))
        opened.settimeout(SOON)
        yield opened


@pytest.fixture
def daemon(tmp_path: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    build_tree(load("small"), tmp_path / "sys")
    flags = {
        "nri-socket": folder / "nri.sock",
        "sysfs-root": tmp_path / "sys",
        "state-dir": folder / "state",
        "cgroup-root": tmp_path,
    }
    given = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    environment = {**os.environ, "NOTIFY_SOCKET": str(folder / "notify")}
    with subprocess.Popen([sys.executable, "-m", "nri_rdma", "run", *given], cwd=PROJECT, env=environment) as process:
        yield process
        process.kill()


def settings_of(tmp_path: Path, folder: Path) -> Settings:
    """The settings of a daemon of this process."""
    if not (tmp_path / "sys").exists():
        build_tree(load("small"), tmp_path / "sys")
    return Settings(
        sysfs_root=tmp_path / "sys", cgroup_root=tmp_path, state_dir=folder / "state", nri_socket=folder / "nri.sock"
    )


def test_it_is_ready_when_the_runtime_has_reported_its_pods_and_says_when_it_ends(
    folder: Path, manager: socket.socket, daemon: subprocess.Popen[bytes]
) -> None:
    with FakeRuntime(folder / "nri.sock") as runtime:
        runtime.accept(SOON, synchronize=False)
        manager.settimeout(0.3)
        with pytest.raises(TimeoutError):  # registered, but kubelet.service would be too early
            manager.recv(64)
        manager.settimeout(SOON)
        runtime.disconnect()
        runtime.accept(SOON)
        assert manager.recv(64) == b"READY=1"
        daemon.send_signal(signal.SIGTERM)
        assert manager.recv(64) == b"STOPPING=1"
        assert daemon.wait(SOON) == 0


def test_without_a_runtime_it_is_ready_all_the_same(
    folder: Path, tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else kubelet.service, which waits for it, would not start on a node whose runtime comes later."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
    monkeypatch.setattr(service_manager, "READY_WITHIN_S", 0.1)
    settings = settings_of(tmp_path, folder)
    told: list[bytes] = []

    def end_when_ready() -> None:
        try:
            told.append(manager.recv(64))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    watching = threading.Thread(target=end_when_ready)
    watching.start()
    try:
        Daemon(settings, reread=lambda: settings).run()
    finally:
        watching.join()
    assert [*told, manager.recv(64)] == [b"READY=1", b"STOPPING=1"]
    Sole(settings.state_dir, settings.nri_socket).release()  # it has closed itself


def test_a_daemon_that_has_heard_of_the_pods_is_ready(
    folder: Path, tmp_path: Path, manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
    daemon = Daemon(settings_of(tmp_path, folder), reread=lambda: settings_of(tmp_path, folder))
    try:
        daemon.open()
        call = ttrpc.Request(service=PLUGIN_SERVICE, method="Synchronize")
        daemon.make_plugin(0).answer(Request(1, call, 0))
        assert manager.recv(64) == b"READY=1"
    finally:
        daemon.close()

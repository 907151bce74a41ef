"""Both doors of a daemon through which the kubelet comes are opened and closed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.kubelet_doors import KubeletDoors
from nri_rdma.decide.policy import policy_of
from nri_rdma.engine.shares import ShareBook
from nri_rdma.model.pool import Pool
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from tests.rig.api_server import running
from tests.rig.deadline import wait_until
from tests.rig.device_manager import FakeDeviceManager
from tests.unit.doors.deviceplugin.pools import RESOURCE, pool
from tests.unit.doors.dra.claimed import OURS, RAILS, kubelet_folder
from tests.unit.rigs.inside_daemon import InsideDaemon

MakeDoors = Callable[..., KubeletDoors]


@pytest.fixture
def kubelet() -> Iterator[Path]:
    """The folder of a kubelet."""
    with kubelet_folder() as folder:
        yield folder


@pytest.fixture
def manager(kubelet: Path) -> Iterator[FakeDeviceManager]:
    with FakeDeviceManager(kubelet / "device-plugins") as made:
        yield made


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.close(5)


@pytest.fixture
def make(daemon: InsideDaemon, kubelet: Path, workers: Workers, tmp_path: Path) -> Iterator[MakeDoors]:
    """Makes the doors of a daemon with these pools."""
    with ExitStack() as after:
        server, listeners = after.enter_context(running()), Listeners()
        after.callback(listeners.close)

        def made(*pools: Pool) -> KubeletDoors:
            settings = Settings(
                pools=pools,
                kubeconfig=server.kubeconfig(tmp_path),
                kubelet_plugins_dir=kubelet / "plugins",
                device_plugin_dir=kubelet / "device-plugins",
                cdi_dirs=(tmp_path / "cdi",),
                guard_hook=None,
            )
            daemon.engine.kubelet.shares = ShareBook(pools)
            daemon.engine.offering.policy = policy_of(pools, (), allow_default_pool=False)
            doors = KubeletDoors(settings, daemon.engine, workers, listeners, lambda: "cri-o", daemon.spans)
            after.callback(doors.close)
            after.callback(workers.close, 5)
            return doors

        yield made


def test_the_kubelet_finds_plugins_and_driver_until_the_end(
    make: MakeDoors, manager: FakeDeviceManager, workers: Workers, kubelet: Path
) -> None:
    doors, registrar = make(pool(), RAILS), kubelet / "plugins_registry" / f"{OURS}-reg.sock"
    doors.register_later()
    wait_until(registrar.is_socket, "the driver's socket")
    assert RESOURCE not in manager.plugins
    for _ in range(2):  # the runtime connects again
        doors.runtime_reported()
        doors.open_later()
    wait_until(lambda: RESOURCE in manager.plugins, "the registration")
    driver = doors.driver()
    assert driver is not None
    assert driver["name"] == OURS
    workers.close(5)
    doors.close()
    doors.close()
    assert not registrar.exists()
    assert manager.plugins[RESOURCE].is_over.wait(30)


def test_without_pools_of_the_kubelet_nothing_is_opened(make: MakeDoors, kubelet: Path) -> None:
    doors = make()
    doors.register_later()
    doors.open_later()
    assert doors.driver() is None
    doors.close()
    assert [*(kubelet / "plugins_registry").iterdir()] == []

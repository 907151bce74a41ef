"""The driver for as long as a daemon lives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nri_rdma.attach.timers import start_timer
from nri_rdma.doors.dra import claims_door as module
from nri_rdma.doors.dra.claims_door import ClaimsDoor
from nri_rdma.doors.dra.dra_server import DraServer
from nri_rdma.doors.dra.publishing import Publisher
from nri_rdma.doors.dra.reporting import StatusWriter
from nri_rdma.engine.claims import Claims
from nri_rdma.host.kubernetes.api import ApiServer
from nri_rdma.model.driver import PreparedClaims
from nri_rdma.tasks.workers import Workers
from tests.rig.api_server import Server, running
from tests.rig.deadline import wait_until
from tests.unit.doors.dra.claimed import OURS, Claimed, kubelet_folder, register


@pytest.fixture
def api_server() -> Iterator[Server]:
    with running() as made:
        yield made


@pytest.fixture
def registry() -> Iterator[Path]:
    """The kubelet's folder by which it finds drivers."""
    with kubelet_folder() as made:
        yield made / "plugins_registry"


@pytest.fixture
def workers() -> Workers:
    return Workers()


class Pauses:
    """Timers that are counted."""

    def __init__(self) -> None:
        self.waiting = 0

    def __call__(self, pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
        self.waiting += 1

        def due() -> None:
            self.waiting -= 1
            work()

        cancel = start_timer(pause_s, due)

        def cancelled() -> None:
            self.waiting -= 1
            cancel()

        return cancelled


@pytest.fixture
def pauses() -> Pauses:
    return Pauses()


@pytest.fixture
def door(
    node: Claimed,
    api_server: Server,
    registry: Path,
    workers: Workers,
    pauses: Pauses,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ClaimsDoor]:
    monkeypatch.setattr(module, "LOOK_S", 0.1)
    monkeypatch.setattr(module, "TRY_AGAIN_S", 0.1)
    api = ApiServer(api_server.kubeconfig(registry.parent))
    claims = Claims(node.daemon.engine)
    publisher = Publisher(api, "node-a", claims.advertise)
    server = DraServer(registry.parent / "plugins", node.preparer, publisher.start, node.daemon.spans)
    made = ClaimsDoor(
        server,
        publisher,
        StatusWriter(api, dict, registry.parent / "cdi"),
        api,
        workers=workers,
        schedule=pauses,
        look_at_node=node.daemon.engine.node.look_for_unannounced,
        withheld=claims.withheld,
    )
    yield made
    workers.close(5)
    made.close()


def socket_of(registry: Path) -> Path:
    return registry / f"{OURS}-reg.sock"


def test_it_serves_and_publishes_and_leaves_its_slices(door: ClaimsDoor, registry: Path, api_server: Server) -> None:
    door.open_later()
    door.open_later()
    wait_until(socket_of(registry).is_socket, "the socket")
    assert not api_server.slices  # no pod comes before the kubelet knows the driver
    register(socket_of(registry))
    wait_until(lambda: bool(api_server.slices), "the slice")
    (told,) = api_server.slices.values()
    assert len(told["spec"]["devices"]) == 8
    wait_until(lambda: door.view().published.slices == 1, "what is published")
    known = door.view()
    assert (known.name, known.registration.error, known.published.devices) == (OURS, "", 8)
    assert (known.claims, known.rivals) == (PreparedClaims(), {})
    door.close()
    door.close()
    assert not socket_of(registry).exists()
    assert len(api_server.slices) == 1


def test_what_nobody_announces_is_looked_for_now_and_then(door: ClaimsDoor, node: Claimed) -> None:
    looks: list[float] = []
    node.daemon.engine.node.unannounced.append(lambda: looks.append(time.monotonic()))
    door.open_later()
    wait_until(lambda: len(looks) > 2, "three looks")
    assert looks[2] - looks[0] > 0.15


def test_it_looks_after_its_sockets_once_however_often_it_is_opened_and_ends_with_all_threads(
    door: ClaimsDoor, registry: Path, pauses: Pauses, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 60)
    before = names_of_threads()
    door.open_later()
    door.open_later()
    wait_until(lambda: pauses.waiting == 1, "the next look")
    register(socket_of(registry))
    wait_until(lambda: {"slices", "claim-status"} <= names_of_threads() - before, "the threads")
    workers.submit("claims", lambda: None).result(30)
    assert pauses.waiting == 1
    door.close()
    assert pauses.waiting == 0
    wait_until(lambda: not {"slices", "claim-status"} & names_of_threads() - before, "the threads to end")


def names_of_threads() -> set[str]:
    return {it.name for it in threading.enumerate()}


def test_a_socket_that_somebody_removed_is_made_again(door: ClaimsDoor, registry: Path) -> None:
    door.open_later()
    wait_until(socket_of(registry).is_socket, "the socket")
    socket_of(registry).unlink()
    wait_until(socket_of(registry).is_socket, "the socket again")


def test_it_looks_again_after_an_error_that_nobody_expects(
    door: ClaimsDoor, node: Claimed, registry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node.daemon.engine.node.unannounced.append([].pop)
    door.open_later()
    wait_until(lambda: "pop from empty list" in caplog.text, "the error in the log")
    socket_of(registry).unlink()
    wait_until(socket_of(registry).is_socket, "the socket again")


def test_a_kubelet_that_comes_later_is_waited_for_and_said_once(
    door: ClaimsDoor, registry: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry.rmdir()
    assert door.view().registration.error == "the daemon is starting"
    door.open_later()
    wait_until(lambda: "claims are not served" in caplog.text, "the warning")
    assert f"there is no {registry}" in door.view().registration.error
    registry.mkdir()
    wait_until(socket_of(registry).is_socket, "the socket")
    assert caplog.text.count("claims are not served") == 1


def test_what_was_closed_does_not_open(door: ClaimsDoor, registry: Path, api_server: Server, workers: Workers) -> None:
    door.close()
    door.open_later()
    after = threading.Event()
    workers.submit("claims", after.set)  # tasks of one key run in order
    assert after.wait(30)
    assert not socket_of(registry).exists()
    assert not api_server.seen

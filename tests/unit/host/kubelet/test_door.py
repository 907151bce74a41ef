"""The kubelet's door: whether there is a kubelet that tells."""

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.config.settings import Settings
from nri_rdma.daemon.sources import Sources
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.errors import ErrorCode, KubeletError
from nri_rdma.host.kubelet.door import KubeletDoor
from nri_rdma.host.kubelet.podresources import PodResources
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.device import Node, RdmaNetns
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from tests.rig.deadline import wait_until
from tests.rig.kubelet import FakeKubelet, Mode, populate

SOON = 20.0


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers(1)
    yield made
    made.close()


def test_a_kubelet_that_failed_at_first_tells_as_soon_as_it_answers_for_a_pod(workers: Workers) -> None:
    with FakeKubelet(mode=Mode.FAILS) as kubelet:
        populate(kubelet, 1)
        door = KubeletDoor(kubelet.socket, workers)
        door.begin()
        workers.submit("kubelet", lambda: None).result(SOON)  # after the warming: it has the same key
        assert not door.tells
        kubelet.mode = Mode.ANSWERS

        def answer() -> PodAllocation | None:
            try:
                return door.of_pod("training", "job-0")
            except KubeletError:  # a loaded machine has used its budget up
                return None

        try:
            wait_until(answer, "an answer of the kubelet", SOON)
            assert door.tells
        finally:
            door.close()


def test_a_connection_that_failed_for_want_of_a_descriptor_is_tried_again(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, warm = iter([True]), PodResources.warm

    def limited(client: PodResources) -> None:
        if next(left, False):
            raise OSError(errno.EMFILE, "Too many open files")
        warm(client)

    monkeypatch.setattr(PodResources, "warm", limited)
    with FakeKubelet() as kubelet:
        populate(kubelet, 1)
        door = KubeletDoor(kubelet.socket, workers, budget_s=SOON)
        door.begin()
        workers.submit("kubelet", lambda: None).result(SOON)
        try:
            assert door.of_pod("training", "job-0") is not None
        finally:
            door.close()


def test_the_first_pod_of_a_kubelet_that_started_after_us_gets_its_answer(workers: Workers) -> None:
    with FakeKubelet() as kubelet:
        populate(kubelet, 1)
        kubelet.stop()
        door = KubeletDoor(kubelet.socket, workers, budget_s=SOON)
        door.begin()
        assert door.of_pod("training", "job-0") is None
        kubelet.start()
        try:
            assert door.of_pod("training", "job-0") is not None
        finally:
            door.close()


def test_whoever_asks_first_waits_for_the_connection_only_as_long_as_for_an_answer(workers: Workers) -> None:
    go = threading.Event()

    def occupy() -> None:
        assert go.wait(SOON)

    with FakeKubelet() as kubelet:
        populate(kubelet, 1)
        workers.submit("busy", occupy)
        door = KubeletDoor(kubelet.socket, workers, budget_s=0.05)
        begin = time.monotonic()
        try:
            with pytest.raises(KubeletError) as caught:
                door.of_pod("training", "job-0")
            assert caught.value.code == ErrorCode.KUBELET_UNREACHABLE
            assert 0.05 <= time.monotonic() - begin < SOON
        finally:
            go.set()
            door.close()


def test_a_kubelet_is_there_from_its_socket_on_and_stays_so(workers: Workers) -> None:
    """While it starts anew it has none: then it does not answer, which is not the same as being nowhere."""
    with FakeKubelet() as kubelet:
        kubelet.stop()
        door = KubeletDoor(kubelet.socket, workers)
        seen = [door.is_there]
        kubelet.start()
        seen.append(door.is_there)
        door.begin()
        workers.submit("kubelet", lambda: None).result(SOON)
        kubelet.stop()
        seen.append(door.is_there)
        try:
            with pytest.raises(KubeletError):
                door.of_pod("training", "job-0")
        finally:
            door.close()
    assert seen == [False, True, True]


def test_a_kubelet_that_is_not_opened_yet_is_unreachable_where_its_socket_is(workers: Workers, tmp_path: Path) -> None:
    """A daemon that has just started must not say that the pod has no GPU."""
    settings = Settings(cdi_dirs=(tmp_path,), kubelet_socket=tmp_path / "kubelet.sock")
    node = Node(devices=(), gpus=(), rdma_cm=None, rdma_netns=RdmaNetns.NONE, rdma_cgroup=False)
    listeners = Listeners()
    others = Sources(settings, NodeCache(lambda: node), workers, listeners)
    listeners.close()
    seen = [others.is_there]
    settings.kubelet_socket.touch()
    seen.append(others.is_there)
    with pytest.raises(KubeletError) as caught:
        others.of_pod("training", "job-0")
    assert (seen, caught.value.code) == ([False, True], ErrorCode.KUBELET_UNREACHABLE)

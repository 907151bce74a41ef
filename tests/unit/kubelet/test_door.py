"""The kubelet's door: whether there is a kubelet that tells."""

from collections.abc import Iterator

import pytest

from nri_rdma.attach.workers import Workers
from nri_rdma.errors import KubeletError
from nri_rdma.kubelet.door import KubeletDoor
from nri_rdma.model.allocation import PodAllocation
from tests.rig.deadline import wait_until
from tests.rig.kubelet import FakeKubelet, Mode, populate

SOON = 5.0


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

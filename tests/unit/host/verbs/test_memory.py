"""Memory of which one half is sent into the other."""

from __future__ import annotations

import pytest

from nri_rdma.host.verbs.memory import LEAST_BYTES, Halves, wait_for
from nri_rdma.host.verbs.steps import StepError
from tests.fakes.pyverbs import CQ, PD, WC, Context, Hca, installed

TASK = {"transfer_bytes": 10000}


def test_all_bytes_of_a_task_are_moved_in_messages_that_fit() -> None:
    with installed(Hca("mlx5_0")):
        memory = Halves(PD(Context("mlx5_0")), 1)
        lengths: list[int] = []

        def send(length: int) -> None:
            lengths.append(length)
            memory.region.write(memory.region.read(length, 0), length, LEAST_BYTES // 2 + 40)

        assert memory.move(TASK, 1500, send, header=40) == 10000
        assert memory.length == LEAST_BYTES
    assert (max(lengths), sum(lengths)) == (1500, 10000)


def test_bytes_that_do_not_arrive_are_an_error() -> None:
    with (
        installed(Hca("mlx5_0")),
        pytest.raises(StepError, match=r"the received bytes differ from the sent ones after 0 bytes"),
    ):
        Halves(PD(Context("mlx5_0")), 1).move(TASK, 1500, lambda _length: None)


def test_a_completion_that_failed_or_does_not_come_is_an_error() -> None:
    with installed(Hca("mlx5_0")):
        queue = CQ(Context("mlx5_0"), 16)
        queue.done = [WC(), WC(status=12, vendor_err=0x81)]
        with pytest.raises(StepError, match=r"status 12, Transport retry counter exceeded \(vendor error 0x81\)"):
            wait_for(queue, 2)
        with pytest.raises(StepError, match=r"no completion within 0\.1 s"):
            wait_for(queue, 1, 0.1)

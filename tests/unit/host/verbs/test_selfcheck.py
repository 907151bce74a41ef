"""The self-check of a port, with a library whose devices are the test's own."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from nri_rdma.decide.proof import WITHOUT_ADDRESS
from nri_rdma.host.verbs import numbers
from nri_rdma.host.verbs.selfcheck import check
from tests.fakes.pyverbs import Hca, PortAttr, installed

MIB = 1 << 20


def checked(hca: Hca, **more: Any) -> dict[str, Any]:
    task = {"device": "mlx5_0", "port": 1, "memory_bytes": 2 * MIB, "transfer_bytes": MIB, **more}
    with installed(hca):
        return check(task)


def problem(hca: Hca, **more: Any) -> tuple[str, int | None]:
    told = checked(hca, **more)["problem"]
    return told["step"], told["errno"]


def test_a_port_that_works_is_told_with_its_gid_and_what_was_moved() -> None:
    told = checked(Hca("mlx5_0"))
    assert "problem" not in told
    assert (told["transport"], told["registered_bytes"], told["transferred_bytes"]) == ("roce", 2 * MIB, MIB)
    assert told["gid"] == {"index": 1, "value": "::ffff:192.0.2.1", "type": "RoCE v2"}
    assert list(told["ms"]) == ["open", "query", "register", "qp", "connect", "transfer"]


def test_memory_that_is_small_is_filled_more_often() -> None:
    assert checked(Hca("mlx5_0"), memory_bytes=0)["transferred_bytes"] == MIB


def test_a_device_without_rc_sends_datagrams() -> None:
    told = checked(Hca("mlx5_0", has_rc=False))
    assert "problem" not in told
    assert told["transferred_bytes"] == MIB


@pytest.mark.parametrize(
    ("operation", "number", "step"),
    [
        ("open", errno.EAGAIN, "open"),
        ("register", errno.ENOMEM, "register"),
        ("qp", errno.EAGAIN, "qp"),
        ("connect", errno.EINVAL, "connect"),
    ],
)
def test_what_the_kernel_refuses_is_an_answer_with_step_and_errno(operation: str, number: int, step: str) -> None:
    assert problem(Hca("mlx5_0", refuses={operation: number})) == (step, number)


def test_a_device_that_is_not_there_is_an_answer() -> None:
    assert problem(Hca("mlx5_1")) == ("open", None)


def test_a_port_that_cannot_send_is_an_answer() -> None:
    assert problem(Hca("mlx5_0", port=PortAttr(state=1))) == ("port", None)
    told = checked(Hca("mlx5_0"), gid_index=3)
    assert (told["problem"]["step"], told["transport"]) == ("gid", "roce")


def test_iwarp_without_an_address_in_the_pod_is_an_answer() -> None:
    told = checked(Hca("mlx5_0", transport_type=numbers.IWARP), addresses=["fe80::1"])["problem"]
    assert (told["step"], told["text"].startswith(f"{WITHOUT_ADDRESS} mlx5_0")) == ("connect", True)


def test_data_that_is_lost_or_changed_is_an_answer() -> None:
    lost = checked(Hca("mlx5_0", loses=True))["problem"]
    assert (lost["step"], "Transport retry counter exceeded" in lost["text"]) == ("transfer", True)
    assert "received bytes differ" in checked(Hca("mlx5_0", garbles=True))["problem"]["text"]


def test_a_task_without_a_device_is_an_answer() -> None:
    assert check({})["problem"]["step"] == "pyverbs"

"""Latency and bandwidth between two sides, each a process of a Python that has a pyverbs."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from nri_rdma.commands.verify.measured_pairs import MeasuredPair, Own, call, serve
from nri_rdma.errors import ErrorCode, ProofError
from nri_rdma.model.proof import DeviceTask
from tests.unit.host.pyverbs import python_that_sends

MANY = tuple(DeviceTask(device=f"mlx5_{number}") for number in range(17))


def own(folder: Path, *hcas: str, device: str = "mlx5_0", wait_s: float = 20) -> Own:
    python = python_that_sends(folder, *hcas)
    return Own(ports=(DeviceTask(device=device),), addresses=(), python=python, wait_s=wait_s, pair_s=2)


def measured(server: Own, client: Own) -> tuple[list[MeasuredPair], list[MeasuredPair]]:
    """What both sides know."""
    told: Future[tuple[str, int]] = Future()
    with ThreadPoolExecutor(1) as threads:
        served = threads.submit(
            lambda: list(serve(server, "127.0.0.1", 0, lambda *at: told.set_result((at[0], at[1]))))
        )
        host, port = told.result(30)
        ours = list(call(client, host, port, pairs="all", iterations=20, message_bytes=4096, seconds=0.01))
        return served.result(), ours


def test_a_side_whose_device_fails_is_named(tmp_path: Path) -> None:
    server, client = (
        own(tmp_path / "a", "Hca('mlx5_0', refuses={'register': 12})"),
        own(tmp_path / "b", "Hca('mlx5_0')"),
    )
    served, ours = measured(server, client)
    assert [str(it.error) for it in served] == [str(it.error) for it in ours]
    (error,) = (it.error for it in ours)
    assert error is not None
    assert (error.code, error.where) == (ErrorCode.PROOF_MEMLOCK, "the server's side of mlx5_0:1 and mlx5_0:1")


def test_a_side_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    alone = own(tmp_path, "Hca('mlx5_0')", wait_s=1)
    with pytest.raises(ProofError, match="nobody has connected within 1 s"):
        list(serve(alone, "127.0.0.1", 0, lambda *_: None))
    with pytest.raises(ProofError, match="does not answer within 1 s"):
        list(call(alone, "127.0.0.1", 1, pairs="all", iterations=1, message_bytes=1, seconds=0.01))


def test_so_many_devices_that_it_would_not_end_are_refused(tmp_path: Path) -> None:
    many = Own(ports=MANY, addresses=(), python=tmp_path, wait_s=1, pair_s=1)
    with pytest.raises(ProofError, match="17 ports are too many: at most 16 are measured"):
        list(serve(many, "127.0.0.1", 0, lambda *_: None))


def test_bandwidth_has_the_unit_of_links() -> None:
    assert MeasuredPair(client="a:1", server="b:1", mib_per_s=11920.9).gbit_per_s == pytest.approx(100, 0.001)

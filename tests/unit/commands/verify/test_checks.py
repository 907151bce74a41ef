"""What the answers of the program mean."""

from __future__ import annotations

from pathlib import Path

from nri_rdma.commands.verify.checks import check
from nri_rdma.errors import ErrorCode
from nri_rdma.model.proof import DeviceTask
from tests.unit.host.pyverbs import CRASHES, python_with

PORTS = [DeviceTask(device="mlx5_0"), DeviceTask(device="mlx5_1")]


def test_each_port_has_an_answer_with_its_code(tmp_path: Path) -> None:
    one, two = check(PORTS, (), 4096, python_with(tmp_path, {}), 20)
    assert (one.port.device, two.port.device) == ("mlx5_0", "mlx5_1")
    assert one.error is not None
    assert one.error.code is ErrorCode.PROOF_DEVICE
    assert one.error.what.startswith("mlx5_0, port 1, cannot be opened, probably because it is not in this network")


def test_a_library_that_crashes_is_the_end_of_one_answer(tmp_path: Path) -> None:
    answers = list(check(PORTS, (), 4096, python_with(tmp_path, {}, text=CRASHES), 20))
    assert [it.error.code for it in answers if it.error] == [ErrorCode.PROOF_ENDED] * 2
    assert str(answers[1].error).startswith("nri-rdma: PROOF-ENDED: mlx5_1, port 1: ")

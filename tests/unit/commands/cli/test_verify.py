"""`nri-rdma verify`, where there is no RDMA device."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.commands.cli.program import assert_one_error, nri_rdma
from tests.unit.host.pyverbs import python_with


def test_a_device_that_does_not_work_is_named_with_its_likely_cause(tmp_path: Path) -> None:
    done = nri_rdma("verify", "mlx5_0", "--verbs-python", python_with(tmp_path, {}), columns=300)
    assert done.returncode == 1
    assert "mlx5_0  1     -          -    -           -" in done.stdout
    assert "nri-rdma: PROOF-DEVICE: mlx5_0, port 1, cannot be opened, probably because " in done.stdout
    assert "RDMA works on 0 of 1 port (devices from the command line; RLIMIT_MEMLOCK " in done.stdout


def test_programs_get_the_same_as_a_document(tmp_path: Path) -> None:
    done = nri_rdma("verify", "mlx5_0", "--verbs-python", python_with(tmp_path, {}), "-o", "json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["works"], told["version"]) == (1, False, 1)
    (port,) = told["ports"]
    assert (port["device"], port["problem"]["code"], port["problem"]["step"]) == ("mlx5_0", "PROOF-DEVICE", "open")


def test_without_pyverbs_one_sentence_says_so(tmp_path: Path) -> None:
    done = nri_rdma("verify", "mlx5_0", "--verbs-python", python_with(tmp_path, None), columns=300)
    assert done.returncode == 1
    assert "nri-rdma: PROOF-UNAVAILABLE: pyverbs cannot be used: No module named 'pyverbs'. Next: " in done.stdout


def test_without_a_device_it_ends_with_1(tmp_path: Path) -> None:
    done = nri_rdma("verify", "--dev-root", tmp_path, "--sysfs-root", tmp_path)
    assert_one_error(done, "PROOF-DEVICE", 1)

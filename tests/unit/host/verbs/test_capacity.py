"""The program that asks devices what they can have, alone, with a Python that has a pyverbs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from nri_rdma.host.verbs import program
from tests.unit.host.pyverbs import WITHOUT_CONTEXTS, python_with


def told(python: Path, *names: str) -> list[dict[str, object]]:
    """The lines that the program prints."""
    command = [str(python), "-I", program.__file__, "capacity", *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_each_device_has_a_line_with_its_capacity(tmp_path: Path) -> None:
    (one,) = told(python_with(tmp_path, {"rxe0": 32767}), "rxe0")
    capacity = {"qp": 1000000, "cq": 1000000, "mr": 1000000, "mw": 0, "pd": 1000000, "ah": 32767, "srq": 1000000}
    assert one == {"device": "rxe0", "capacity": capacity}


def test_a_device_that_cannot_be_opened_does_not_keep_the_next_one_from_its_answer(tmp_path: Path) -> None:
    one, two = told(python_with(tmp_path, {"rxe0": 32767}), "gone", "rxe0")
    assert one == {"device": "gone", "problem": "Failed to open device gone. Errno: 19"}
    assert two["device"] == "rxe0"
    assert "capacity" in two


def test_a_pyverbs_that_is_absent_or_of_another_libibverbs_is_a_sentence(tmp_path: Path) -> None:
    (absent,) = told(python_with(tmp_path / "absent", None), "rxe0")
    assert absent == {"problem": "pyverbs cannot be used: No module named 'pyverbs'"}
    (other,) = told(python_with(tmp_path / "other", {}, text=WITHOUT_CONTEXTS), "rxe0")
    assert other == {"problem": "pyverbs cannot be used: version `IBVERBS_PRIVATE_59' not found"}

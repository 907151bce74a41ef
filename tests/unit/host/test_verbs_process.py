"""The process that asks devices: whatever it does, there is an answer for each device."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from nri_rdma.host.verbs_process import CapacityAnswer, VerbsProcess
from nri_rdma.model.capacity import RdmaCapacity
from tests.rig.deadline import wait_until
from tests.unit.host.pyverbs import CRASHES, HANGS, python_with

RXE = RdmaCapacity(qp=1000000, cq=1000000, mr=1000000, mw=0, pd=1000000, ah=32767, srq=1000000)


def test_devices_answer_with_their_capacity_or_the_reason(tmp_path: Path) -> None:
    process = VerbsProcess(python_with(tmp_path, {"rxe0": 32767}))
    assert process.ask(["rxe0", "gone"]) == {
        "rxe0": CapacityAnswer(capacity=RXE),
        "gone": CapacityAnswer(problem="Failed to open device gone. Errno: 19"),
    }


def test_a_python_that_is_not_there_or_must_not_be_used_is_the_reason(tmp_path: Path) -> None:
    absent = VerbsProcess(tmp_path / "python3").ask(["rxe0"])["rxe0"]
    assert absent.problem == f"{tmp_path}/python3 cannot be started: No such file or directory"
    assert VerbsProcess(None).ask(["rxe0"]) == {"rxe0": CapacityAnswer(problem="verbs_python is empty")}


def test_without_pyverbs_that_is_the_reason_of_each_device(tmp_path: Path) -> None:
    answers = VerbsProcess(python_with(tmp_path, None)).ask(["rxe0", "rxe1"])
    assert {it.problem for it in answers.values()} == {"pyverbs cannot be used: No module named 'pyverbs'"}


def test_a_library_that_crashes_ends_the_process_only(tmp_path: Path) -> None:
    python = python_with(tmp_path, {}, text=CRASHES)
    assert VerbsProcess(python).ask(["rxe0"]) == {"rxe0": CapacityAnswer(problem=f"{python} ended with -11")}


def test_a_device_that_hangs_costs_its_own_answer_only(tmp_path: Path) -> None:
    answers = VerbsProcess(python_with(tmp_path, {}, text=HANGS), within_s=3).ask(["rxe0", "rxe1"])
    assert answers["rxe0"] == CapacityAnswer(capacity=RdmaCapacity(ah=32767))
    assert answers["rxe1"] == CapacityAnswer(problem="it did not answer within 3 s")


def test_an_end_does_not_wait_for_a_device_that_hangs(tmp_path: Path) -> None:
    process = VerbsProcess(python_with(tmp_path, {}, text=HANGS))
    asking = threading.Thread(target=process.ask, args=(["rxe1"],))
    asking.start()
    wait_until(lambda: process.pids, "the process to be started")
    started = time.monotonic()
    process.close()
    asking.join()
    assert time.monotonic() - started < 10
    assert process.ask(["rxe0"]) == {"rxe0": CapacityAnswer(problem="this daemon is ending")}

"""Proofs that cannot be made: the reason is told, within the time. The others are in tests/kernel/test_prover.py."""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time
from dataclasses import replace
from ipaddress import IPv6Address
from pathlib import Path

import pytest

from nri_rdma.host import warm_process
from nri_rdma.host.pod_addresses import MOST
from nri_rdma.host.prover import Prover
from nri_rdma.host.verbs.warm import MOST_BYTES
from nri_rdma.model.proof import DeviceTask, ProofAnswer, ProofEnd, ProofTask
from tests.rig.deadline import wait_until
from tests.unit.host.pyverbs import python_with

TASK = ProofTask(where="ns/pod/main", pid=os.getpid(), cgroups_path="/box", devices=(DeviceTask(device="rxe0"),))


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    """Cgroups of version 2 as far as the daemon reads them: this process is in one."""
    (tmp_path / "cgroups/box").mkdir(parents=True)
    (tmp_path / "cgroups/cgroup.controllers").touch()
    (tmp_path / "cgroups/box/cgroup.procs").write_text(f"{os.getpid()}\n")
    return tmp_path / "cgroups"


def unavailable(python: Path | None, cgroups: Path, task: ProofTask = TASK, within_s: float = 20) -> str:
    """Why nothing can be proved."""
    prover = Prover(python, cgroups)
    answer = prover.prove(task, within_s)
    prover.close()
    assert (answer.end, answer.proofs) == (ProofEnd.UNAVAILABLE, ())
    return answer.text


def test_a_python_that_is_not_there_or_must_not_be_used_is_the_reason(tmp_path: Path, cgroups: Path) -> None:
    assert unavailable(None, cgroups) == "verbs_python is empty"
    python = tmp_path / "python3"
    assert unavailable(python, cgroups) == f"{python} cannot be started: No such file or directory"


def test_a_python_that_ends_with_an_error_is_the_reason_with_its_last_line(tmp_path: Path, cgroups: Path) -> None:
    python = tmp_path / "python3"
    python.write_text("#!/bin/sh\necho it is broken >&2\nexit 3\n")
    python.chmod(0o755)
    assert unavailable(python, cgroups) == f"{python} ended with 3: it is broken"


def test_a_process_that_is_in_another_cgroup_is_the_reason(cgroups: Path) -> None:
    (cgroups / "box/cgroup.procs").write_text("1\n")
    assert unavailable(None, cgroups) == f"{cgroups}/box: its process {os.getpid()} is not in it"


def test_a_cgroup_that_is_not_there_is_the_reason(tmp_path: Path, cgroups: Path) -> None:
    (cgroups / "box/cgroup.procs").unlink()
    assert unavailable(None, cgroups) == f"{cgroups}/box/cgroup.procs: No such file or directory"
    assert unavailable(None, tmp_path) == f"{tmp_path}: no cgroups are mounted there"


def test_the_next_step_is_what_the_daemon_lacks(tmp_path: Path, cgroups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cgroup_root" in Prover(None, tmp_path).prove(TASK, 1).hint
    assert Prover(None, cgroups).prove(TASK, 1).hint == "", "that is about verbs_python"
    monkeypatch.setattr(resource, "getrlimit", lambda _kind: (65536, 65536))
    answer = Prover(None, cgroups).prove(replace(TASK, memlock=1 << 20), 1)
    assert answer.text.startswith("the daemon itself may lock 65536 bytes of memory only")
    assert "LimitMEMLOCK=infinity" in answer.hint


def test_a_process_that_still_loads_pyverbs_is_late_and_stays(tmp_path: Path, cgroups: Path) -> None:
    loads = "import pathlib, time\nwhile not pathlib.Path('{}').exists(): time.sleep(0.01)\n"
    prover = Prover(python_with(tmp_path / "python", {}, text=loads.format(tmp_path / "loaded")), cgroups)
    started = time.monotonic()
    answer = prover.prove(TASK, 0.5)
    assert time.monotonic() - started < 5
    assert answer.end is ProofEnd.LATE
    loading = f"{tmp_path}/python/python3 is still loading pyverbs"
    assert answer.text == f"rxe0 port 1 has not answered: {loading}"
    warm = prover._warm
    (tmp_path / "loaded").touch()
    assert prover.prove(TASK, 20).end in {ProofEnd.ANSWERED, ProofEnd.UNAVAILABLE}, "root may enter namespaces"
    assert prover._warm is warm
    prover.close()


def test_a_process_that_has_loaded_pyverbs_just_too_late_stays(
    tmp_path: Path, cgroups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nri_rdma.host.prover._PATIENCE_S", 20)
    loads = "import pathlib, time\nwhile not pathlib.Path('{}').exists(): time.sleep(0.01)\n"
    prover = Prover(python_with(tmp_path / "python", {}, text=loads.format(tmp_path / "loaded")), cgroups)
    threading.Timer(0.6, (tmp_path / "loaded").touch).start()
    answer = prover.prove(TASK, 0.5)
    assert answer.end is ProofEnd.LATE
    assert answer.text == "rxe0 port 1 has not answered: pyverbs was still being loaded"
    assert prover._warm is not None
    assert not prover._warm.has_ended()
    prover.close()


def test_a_pod_with_many_devices_and_addresses_is_a_job_that_fits(tmp_path: Path, cgroups: Path) -> None:
    devices = tuple(DeviceTask(device=f"mlx5_{number}") for number in range(16))
    addresses = tuple(IPv6Address(f"2001:db8:1111:2222:3333:4444:5555:{number:x}") for number in range(MOST))
    prover = Prover(python_with(tmp_path / "python", {}), cgroups)
    job = prover._job(replace(TASK, devices=devices, addresses=addresses), time.monotonic() + 20)
    assert len(json.dumps(job)) < MOST_BYTES / 2


def test_a_process_that_loads_for_too_long_is_killed(
    tmp_path: Path, cgroups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_process, "LOADS_S", 0.1)
    prover = Prover(python_with(tmp_path / "python", {}, text="import time\ntime.sleep(600)\n"), cgroups)
    answer = prover.prove(TASK, 0.5)
    assert answer.end is ProofEnd.LATE
    assert answer.text == "rxe0 port 1 has not answered: the process that makes proofs did not answer, and was killed"
    prover.close()


@pytest.mark.parametrize("half", ["", '\n{"answer": {"device": "rx'])
def test_without_an_answer_for_each_device_nothing_is_proved(tmp_path: Path, cgroups: Path, half: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"""if True:
        import os, socket
        jobs = socket.socket(fileno=0)
        jobs.send(b"ready")
        _, (report,), _, _ = socket.recv_fds(jobs, 65536, 1)
        os.write(report, {half!r}.encode() + b'\\n{{"end": "answered", "text": ""}}\\n')
        os.close(report)
        jobs.recv(1)
    """)
    python = tmp_path / "python3"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {program}\n")
    python.chmod(0o755)
    prover = Prover(python, cgroups)
    answer = prover.prove(TASK, 20)
    prover.close()
    assert (answer.end, answer.text) == (ProofEnd.ENDED, "rxe0 port 1 has not answered")


def test_the_end_of_the_daemon_waits_for_no_proof(tmp_path: Path, cgroups: Path) -> None:
    prover = Prover(python_with(tmp_path / "python", {}, text="import time\ntime.sleep(600)\n"), cgroups)
    answers: list[ProofAnswer] = []
    asking = threading.Thread(target=lambda: answers.append(prover.prove(TASK, 60)))
    asking.start()
    wait_until(lambda: prover._warm, "the process to be started")
    prover.close()
    asking.join(20)
    assert [it.end for it in answers] == [ProofEnd.ENDED]
    assert answers[0].text == "rxe0 port 1 has not answered: this daemon is ending"
    assert prover.prove(TASK, 1).text == "this daemon is ending"

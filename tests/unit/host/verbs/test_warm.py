"""The program that forks into containers, by its socket. What a child is there: tests/kernel/test_prover.py."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.host.verbs import program
from nri_rdma.host.verbs.warm import MOST_BYTES, READY
from tests.unit.host.pyverbs import python_with

NOBODY = 1 << 22
"""No process has that id (PID_MAX_LIMIT)."""


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a process that takes jobs; it has ended by itself when the socket is closed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [str(python_with(tmp_path, {})), "-I", program.__file__, "warm"]
    with subprocess.Popen(command, stdin=theirs.fileno()) as process:
        theirs.close()
        assert ours.recv(100) == READY
        yield ours
        ours.close()
        assert process.wait(20) == 0


def job(pid: int, procs: Path, within_s: float = 20.0) -> dict[str, Any]:
    """A job for the container of this process."""
    limits = {"until": time.monotonic() + within_s, "procs": [str(procs)], "memlock": -1}
    return {"pid": pid, **limits, "addresses": [], "tasks": []}


def report(jobs: socket.socket, told: dict[str, Any]) -> list[dict[str, Any]]:
    """What is reported about a job, to the end."""
    read, write = os.pipe()
    socket.send_fds(jobs, [json.dumps(told).encode()], [write])
    os.close(write)
    with open(read) as lines:  # noqa: PTH123 - a descriptor
        return [json.loads(line) for line in lines if line.strip()]


def test_a_container_that_cannot_be_entered_is_refused(jobs: socket.socket, tmp_path: Path) -> None:
    refused, end = report(jobs, job(NOBODY, tmp_path / "cgroup.procs"))
    opened = f"its network namespace cannot be opened (/proc/{NOBODY}/ns/net)"
    assert refused == {"refused": f"{opened}: No such file or directory"}
    assert end == {"end": "answered", "text": ""}


def test_a_child_that_is_late_is_killed(jobs: socket.socket, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cgroup.procs")  # whoever opens it waits for a reader
    started = time.monotonic()
    assert report(jobs, job(os.getpid(), tmp_path / "cgroup.procs", 0.5)) == [{"end": "late", "text": ""}]
    assert time.monotonic() - started < 10


def test_jobs_are_done_while_another_hangs(jobs: socket.socket, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cgroup.procs")
    read, write = os.pipe()
    socket.send_fds(jobs, [json.dumps(job(os.getpid(), tmp_path / "cgroup.procs")).encode()], [write])
    os.close(write)
    assert report(jobs, job(NOBODY, tmp_path / "none"))[-1] == {"end": "answered", "text": ""}
    jobs.close()
    assert os.read(read, 1) == b"", "the child that hangs ends with the process"
    os.close(read)


def test_a_job_that_is_late_already_is_told_so(jobs: socket.socket, tmp_path: Path) -> None:
    late = {"end": "late", "text": "pyverbs was still being loaded"}
    assert report(jobs, job(NOBODY, tmp_path / "none", -1.0)) == [late]


def test_a_job_that_is_too_long_is_refused_and_the_next_one_done(jobs: socket.socket, tmp_path: Path) -> None:
    long = job(NOBODY, tmp_path / "none") | {"addresses": ["x" * MOST_BYTES]}
    assert report(jobs, long) == [{"refused": "the job cannot be read: it may have at most 65536 bytes"}]
    assert report(jobs, job(NOBODY, tmp_path / "none"))[-1] == {"end": "answered", "text": ""}


def test_nobody_may_wait_any_more_for_what_is_told(jobs: socket.socket, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    socket.send_fds(jobs, [json.dumps(job(NOBODY, tmp_path / "none", -1.0)).encode()], [write])
    os.close(write)
    assert report(jobs, job(NOBODY, tmp_path / "none"))[-1] == {"end": "answered", "text": ""}

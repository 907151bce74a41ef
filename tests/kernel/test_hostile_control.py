"""The control socket of a daemon that runs: closed to other users, and never a reason for pods to wait."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random

import pytest

from bench.figures import percentile
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.doors.control.node_document import SERVICE
from nri_rdma.pb import control_pb2 as pb
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from tests.fuzz.mutate import damaged
from tests.fuzz.targets import ttrpc_frame
from tests.kernel.attacked import AT_ONCE_S, Attacked, attacked

pytestmark = [pytest.mark.root]
NOBODY = 65534
IDLE = 100
CALLERS, CALLS = 3, 50
SILENCE_S = 0.01


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A daemon that has served a pod; one for all attacks of this file."""
    with attacked(tmp_path_factory.mktemp("control")) as running:
        running.remember()
        yield running


@pytest.fixture
def daemon(served: Attacked) -> Iterator[Attacked]:
    """The same, which is as well after the attack as before."""
    yield served
    served.assert_well()


@pytest.fixture
def seconds(pytestconfig: pytest.Config) -> float:
    """How long the fuzzing goes on; with --long a minute."""
    return 60.0 if pytestconfig.getoption("--long") else 4.0


_CONNECT = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([]), os.setgid(int(sys.argv[2])), os.setuid(int(sys.argv[2]))
try:
    socket.socket(socket.AF_UNIX).connect("control.sock")
except OSError as error:
    sys.exit(error.errno)
"""


def _connects(folder: Path, uid: int) -> int:
    """The errno of a connect by that user, whose working directory is the folder; 0 when it succeeds."""
    return subprocess.run([sys.executable, "-c", _CONNECT, str(folder), str(uid)], check=False).returncode


@pytest.mark.parametrize("mode", [0o700, 0o755], ids=oct)
def test_another_user_cannot_connect(daemon: Attacked, mode: int) -> None:
    before = daemon.state.stat().st_mode & 0o777
    daemon.state.chmod(mode)
    try:
        assert _connects(daemon.state, NOBODY) == errno.EACCES
        assert _connects(daemon.state, os.getuid()) == 0
    finally:
        daemon.state.chmod(before)


def test_connections_that_say_nothing_keep_no_caller_waiting(daemon: Attacked) -> None:
    with ExitStack() as stack:
        for _ in range(IDLE):
            stack.enter_context(_connection(daemon))
        daemon.assert_answers()
        daemon.serve_a_pod(daemon.session())


def test_callers_that_never_read_keep_no_pod_waiting(daemon: Attacked) -> None:
    call = ttrpc.Request(service=SERVICE, method="Status").SerializeToString()
    with ExitStack() as stack:
        for _ in range(20):
            connection = stack.enter_context(_connection(daemon))
            connection.setblocking(False)
            with suppress(BlockingIOError):
                for stream_id in range(1, 10_000, 2):
                    connection.sendall(ttrpc_frame(stream_id, 1, call))
        daemon.assert_answers()
        daemon.serve_a_pod(daemon.session())


def test_many_calls_at_once_are_all_answered(daemon: Attacked) -> None:
    answered: list[float] = []

    def ask() -> None:
        for _ in range(CALLS):
            begin = time.monotonic()
            ask_status(daemon.control)
            answered.append(time.monotonic() - begin)

    threads = [threading.Thread(target=ask) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answered) == CALLERS * CALLS
    # Each had the five seconds of a caller. A stall of the machine meets every caller once.
    assert percentile(answered, 0.9) < AT_ONCE_S


def test_damaged_frames_end_a_connection_at_most(daemon: Attacked, seconds: float) -> None:
    seed = secrets.randbits(32)
    random, corpus = Random(seed), _frames()
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        with _connection(daemon) as connection, suppress(OSError):
            connection.settimeout(SILENCE_S)
            for _ in range(50):
                connection.sendall(damaged(corpus, random))
                count += 1
            while connection.recv(1 << 16):
                pass
    assert count > 500, f"seed {seed}"


def _frames() -> list[bytes]:
    verify = pb.VerifyRequest(sandbox_id="a", container="main", annotations={"rdma.noderesource.dev/pod": "1"})
    payloads = {"Status": pb.StatusRequest(), "Trace": pb.TraceRequest(pod="a/b"), "Verify": verify, "NoSuch": verify}
    calls = [
        ttrpc.Request(service=SERVICE, method=method, payload=message.SerializeToString()).SerializeToString()
        for method, message in payloads.items()
    ]
    return [ttrpc_frame(stream_id, 1, call) for stream_id, call in enumerate(calls * 2, 1)]


def _connection(daemon: Attacked) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    connection.connect(str(daemon.control))
    return connection

"""Bytes that no runtime sends, to a daemon that runs: it holds no more than before, and serves the next pod."""

from __future__ import annotations

import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from bench.messages import ANNOTATION, Call, pod, run_pod
from bench.peer import HEADERS, Peer
from bench.pods import request
from bench.processes import resident_kib
from nri_rdma.doors.nri.messages import PLUGIN_SERVICE
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from tests.fuzz.mutate import cut, damaged
from tests.fuzz.targets import TARGETS, mux_frame, ttrpc_frame
from tests.kernel.attacked import Attacked, attacked

pytestmark = [pytest.mark.root]
LONGEST_ANSWER_S = 10.0
CALLS_OF_A_SESSION = 100
SILENCE_S = 0.02
MOST_KIB = 32 << 10
"""More than two of the longest messages with what they are decoded to; the claims are of gigabytes."""
METHODS = ("Configure", "Synchronize", "StateChange", "CreateContainer", "StartContainer", "RunPodSandbox", "NoSuch")


@pytest.fixture
def seconds(pytestconfig: pytest.Config) -> float:
    """How long a test goes on; with --long a minute."""
    return 60.0 if pytestconfig.getoption("--long") else 4.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A daemon that has served a pod; one for all attacks of this file."""
    with attacked(tmp_path_factory.mktemp("runtime")) as running:
        running.remember()
        yield running


@pytest.fixture
def daemon(served: Attacked) -> Iterator[Attacked]:
    """The same, which is as well after the attack as before."""
    yield served
    served.assert_well()


class _Bytes:
    """What a message is to a call: bytes, here any."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 - as protobuf names it
        return self._data


def _payloads() -> list[bytes]:
    """The payloads of the calls of a pod's life; its namespace is nowhere."""
    message = pod(1, {ANNOTATION: request(1)}, "/nowhere")
    recorded = [data[HEADERS:] for data in TARGETS["session"].corpus if PLUGIN_SERVICE.encode() in data]
    calls = [bytes(run_pod(message).on(1))[HEADERS:], *recorded]
    return [ttrpc.Request.FromString(data).payload for data in calls]


def test_damaged_messages_of_every_call_are_answered(daemon: Attacked, seconds: float) -> None:
    seed = secrets.randbits(32)
    random, corpus = Random(seed), _payloads()
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        peer = daemon.session()
        for _ in range(CALLS_OF_A_SESSION):
            begin = time.monotonic()
            peer.call(Call(random.choice(METHODS), _Bytes(damaged(corpus, random)), timeout_s=0.2))
            assert time.monotonic() - begin < LONGEST_ANSWER_S, f"seed {seed}, call {count}"
            count += 1
    assert count >= CALLS_OF_A_SESSION


def test_damaged_frames_end_a_session_at_most(daemon: Attacked, seconds: float) -> None:
    seed = secrets.randbits(32)
    random, corpus = Random(seed), TARGETS["session"].corpus
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        _send(daemon.connection(), cut(damaged(corpus, random), random)[:50])
        count += 1
    assert count > 5, f"seed {seed}"


def _send(peer: Peer, pieces: list[bytes]) -> None:
    """Write, and read until the daemon says nothing more or is gone."""
    peer._socket.settimeout(SILENCE_S)
    with suppress(OSError):
        for piece in pieces:
            peer._socket.sendall(piece)
        while peer._socket.recv(1 << 16):
            pass


_CALL = ttrpc.Request(service=PLUGIN_SERVICE, method="StateChange").SerializeToString()


CLAIMS = {
    "a mux length of 32 bits": struct.pack(">II", 1, 0xFFFFFFFF),
    "a mux length of 31 bits": struct.pack(">II", 1, 0x7FFFFFFF) + bytes(1 << 20),
    "a message length of 32 bits": mux_frame(1, struct.pack(">IIBB", 0xFFFFFFFF, 1, 1, 0)),
    "a message that is too long": mux_frame(1, struct.pack(">IIBB", (4 << 20) + 1, 1, 1, 0) + bytes(1 << 20)),
    "a conn that is none": mux_frame(77, bytes(1000)),
    "a stream of ours": mux_frame(1, ttrpc_frame(2, 1, _CALL)),
    "a type that is none": mux_frame(1, ttrpc_frame(1, 9, _CALL)),
    "an answer that is none": mux_frame(2, ttrpc_frame(1, 2, b"\xff" * 100)),
    "half of a call": mux_frame(1, ttrpc_frame(1, 1, _CALL))[:-7],
    "zeros": bytes(1 << 20),
}


def test_a_false_claim_costs_the_session_at_most(daemon: Attacked) -> None:
    resident = resident_kib(daemon.pid)
    for data in CLAIMS.values():
        peer = daemon.connection()
        _send(peer, [data])
        with suppress(OSError):
            peer._socket.shutdown(socket.SHUT_WR)
        daemon.assert_answers()
    assert resident_kib(daemon.pid) - resident < MOST_KIB


def test_noise_costs_the_session_at_most(daemon: Attacked) -> None:
    for _ in range(10):
        _send(daemon.connection(), [secrets.token_bytes(1 << 16)])
    daemon.assert_answers()


def test_a_call_that_comes_byte_by_byte_is_answered_and_keeps_no_other_door_waiting(daemon: Attacked) -> None:
    peer = daemon.session()
    data = bytes(run_pod(pod(1)).on(5))
    for place in range(len(data)):
        peer._socket.sendall(data[place : place + 1])
        if place % 500 == 0:
            daemon.assert_answers()
            time.sleep(0.1)
    answer = ttrpc.Response.FromString(peer._receive()[HEADERS:])
    assert not answer.status.code, answer.status.message

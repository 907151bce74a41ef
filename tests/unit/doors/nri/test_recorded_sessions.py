"""What real runtimes said is said again to a fresh daemon's inside, and each call has the right kind of answer.

The recordings (`python -m tests.rig.record_sessions`) are the bytes of containerd 1.7 to 2.3 and of CRI-O; the answers
are read here by hand and with the generated messages, without the product's reading.
"""

import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nri_rdma.doors.nri.plugin import Plugin, RuntimeFacts
from nri_rdma.doors.nri.session import Session
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from nri_rdma.ttrpc.wire import Request
from tests.rig.nri_tap import RECORDINGS, TO_PLUGIN, TO_RUNTIME, read_recording
from tests.unit.rigs.inside_daemon import InsideDaemon

SOON = 10.0
KNOWN_EVENTS = {"containerd-1.7": 0x7FF, "containerd-2.1": 0x7FF}
"""What the NRI of the older runtimes knows; one bit more and they refuse the plugin."""
ALL_EVENTS = 0x3FFF
REQUEST, RESPONSE = 1, 2
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.jsonl"))


@dataclass
class Stream:
    """One direction of the trunk: bytes in, ttrpc messages of both logical connections out."""

    _trunk: bytes = b""
    _parts: dict[int, bytes] = field(default_factory=dict)

    def feed(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Connection, stream, type and data of each message that these bytes complete."""
        self._trunk += data
        while len(self._trunk) >= 8:
            conn, length = struct.unpack(">II", self._trunk[:8])
            if len(self._trunk) < 8 + length:
                return
            self._parts[conn] = self._parts.get(conn, b"") + self._trunk[8 : 8 + length]
            self._trunk = self._trunk[8 + length :]
            while len(self._parts[conn]) >= 10:
                size, stream, kind, _flags = struct.unpack(">IIBB", self._parts[conn][:10])
                if len(self._parts[conn]) < 10 + size:
                    break
                message, self._parts[conn] = self._parts[conn][10 : 10 + size], self._parts[conn][10 + size :]
                yield conn, stream, kind, message


@dataclass(frozen=True)
class Call:
    """A call of the runtime: its method as a pod's event, whichever way it was told, the pod, and the argument."""

    stream: int
    method: str
    pod: nri.PodSandbox
    payload: bytes


class _PatientPlugin(Plugin):
    """Has time for each answer: the runtimes that were recorded gave it two seconds, and this machine may be busy."""

    def _deadline(self, request: Request) -> float:
        return time.monotonic() + SOON


class Runtime:
    """The runtime's end: says what was recorded, and looks into the answers."""

    def __init__(self, inside: InsideDaemon, *, size: int) -> None:
        self.inside = inside
        self.facts: list[RuntimeFacts] = []
        self._size = size

    def replay(self, path: Path) -> Iterator[tuple[Call, ttrpc.Response, ttrpc.Response]]:
        """Each call with the answer of now and the answer that was recorded, through all sessions of the recording."""
        _, pieces = read_recording(path)
        for _, session in itertools.groupby(pieces, key=lambda it: it.connection):
            said = list(session)
            recorded = _answers(b"".join(it.data for it in said if it.to == TO_RUNTIME))
            yield from self._session([it.data for it in said if it.to == TO_PLUGIN], recorded)

    def _session(
        self, said: list[bytes], recorded: dict[int, ttrpc.Response]
    ) -> Iterator[tuple[Call, ttrpc.Response, ttrpc.Response]]:
        ours, theirs = socket.socketpair()
        ours.settimeout(SOON)
        plugin = _PatientPlugin(self.inside.engine, self.inside.spans, self.facts.append)
        thread = threading.Thread(target=Session(theirs, plugin, name="nri-rdma", index="90").run)
        thread.start()
        stream, answers = Stream(), Stream()
        registration = _next(ours, answers, conn=2, stream=1)
        assert ttrpc.Request.FromString(registration).method == "RegisterPlugin"
        for piece in _cut(said, self._size):
            messages = list(stream.feed(piece))
            calls = [_call(number, it) for conn, number, kind, it in messages if (conn, kind) == (1, REQUEST)]
            for call in calls:
                self._prepare(call)
            ours.sendall(piece)
            for call in calls:
                answer = ttrpc.Response.FromString(_next(ours, answers, conn=1, stream=call.stream))
                yield call, answer, recorded[call.stream]
        ours.close()
        thread.join(SOON)
        assert not thread.is_alive()

    def _prepare(self, call: Call) -> None:
        path = _netns(call.pod)
        if call.method == "RunPodSandbox" and path and self.inside.world.namespace(path) is None:
            namespace = self.inside.world.add_namespace(path)
            for name in ("lo", "eth0"):
                self.inside.world.add_link(namespace, name, up=True)


@pytest.fixture(params=[1 << 20, 1], ids=["as recorded", "byte by byte"])
def runtime(request: pytest.FixtureRequest, daemon: InsideDaemon) -> Runtime:
    return Runtime(daemon, size=request.param)


def test_every_runtime_is_recorded() -> None:
    assert set(NAMES) >= {f"containerd-{it}" for it in ("1.7", "2.0", "2.1", "2.3", "2.4")} | {"cri-o-1.36"}


@pytest.mark.parametrize("name", NAMES)
def test_every_call_of_a_recorded_runtime_has_its_kind_of_answer(name: str, runtime: Runtime) -> None:
    before = runtime.inside.world.snapshot()
    methods = []
    for call, answer, recorded in runtime.replay(RECORDINGS / f"{name}.jsonl"):
        methods.append(call.method)
        if call.method == "RunPodSandbox" and call.pod.name == "refused":
            assert answer.status.message.startswith("nri-rdma: DEVICES-EXHAUSTED: ")
            assert answer.status.code == recorded.status.code
            continue
        assert answer.status.code == 0, f"{call.method} of {call.pod.name}: {answer.status.message}"
        match call.method:
            case "Configure":
                events = nri.ConfigureResponse.FromString(answer.payload).events
                assert events != 0, "0 would be everything"
                assert events & ~KNOWN_EVENTS.get(name, ALL_EVENTS) == 0
            case "CreateContainer":
                assert _given(answer) == _given(recorded, of_before=True)
                assert bool(answer.payload) == (call.pod.name in {"first", "second", "kept"})
            case _:
                assert answer.payload == b""
    # A shared device leaves no trace on the host; what pods had alone is home.
    assert runtime.inside.world.snapshot() == before
    assert methods[:2] == ["Configure", "Synchronize"]
    assert methods.count("Configure") == methods.count("Synchronize") == len(runtime.facts) == 2
    assert methods.count("CreateContainer") == methods.count("StartContainer") == 8
    # containerd does not tell the end of pods older than its last start; CRI-O does (kept, older).
    assert methods.count("RunPodSandbox") == 5
    assert methods.count("StopPodSandbox") == methods.count("RemovePodSandbox") == (6 if "cri-o" in name else 4)


def _call(stream: int, message: bytes) -> Call:
    request = ttrpc.Request.FromString(message)
    method, payload = request.method, request.payload
    if method in {"Configure", "Synchronize"}:
        return Call(stream, method, nri.PodSandbox(), payload)
    if method == "StateChange":
        event = nri.StateChangeEvent.FromString(payload)
        name = nri.Event.Name(event.event).title().replace("_", "")
        return Call(stream, name, event.pod, payload)
    # In every request of an event the pod is the first field.
    return Call(stream, method, nri.RunPodSandboxRequest.FromString(payload).pod, payload)


def _netns(pod: nri.PodSandbox) -> str:
    return next((it.path for it in pod.linux.namespaces if it.type == "network"), "")


def _given(answer: ttrpc.Response, *, of_before: bool = False) -> tuple[object, ...]:
    """What a container is given: device nodes, environment and the limit of locked memory. An answer `of_before` is of
    a daemon that said less in the environment."""
    adjust = nri.CreateContainerResponse.FromString(answer.payload).adjust
    env = {it.key: it.value for it in adjust.env}
    if of_before and env:
        env["NVSHMEM_HCA_LIST"] = env["UCX_NET_DEVICES"]
        env["UCX_NET_DEVICES"] += ",lo"
    if of_before and any(it.startswith("RDMA_NETDEVS_") for it in env):
        env |= {"NCCL_SOCKET_IFNAME": "=eth0", "GLOO_SOCKET_IFNAME": "eth0"}
    return (
        sorted((it.path, it.type, it.major, it.minor) for it in adjust.linux.devices),
        sorted(env.items()),
        sorted((it.type, it.hard, it.soft) for it in adjust.rlimits),
    )


def _answers(data: bytes) -> dict[int, ttrpc.Response]:
    """The plugin's answers in the recording, by stream."""
    found = Stream().feed(data)
    return {number: ttrpc.Response.FromString(it) for conn, number, kind, it in found if (conn, kind) == (1, RESPONSE)}


def _next(connection: socket.socket, answers: Stream, *, conn: int, stream: int) -> bytes:
    """The next message of the plugin, which must be on that connection and stream."""
    while True:
        found = list(answers.feed(connection.recv(1 << 16)))
        if found:
            ((got, number, _, message),) = found
            assert (got, number) == (conn, stream)
            return message


def _cut(said: list[bytes], size: int) -> Iterator[bytes]:
    for data in said:
        for start in range(0, len(data), size):
            yield data[start : start + size]

"""What is fuzzed, and the promise each keeps: events or WireError, never anything else; every step consumes; the same
result however the bytes are cut."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any  # Any: generated messages

from nri_rdma.attach.journal import decode_record
from nri_rdma.doors.nri.messages import PLUGIN_SERVICE, device_numbers, env_names, pod_from
from nri_rdma.doors.nri.plugin import Plugin, UnknownMethodError
from nri_rdma.doors.nri.session import RegistrationError, Session
from nri_rdma.errors import RequestError, StateError
from nri_rdma.model.device import CharKind
from nri_rdma.model.nldev import ObjectKind
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.text.annotations import PREFIX, parse_pod_request
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc
from nri_rdma.ttrpc.wire import ClientConnection, Data, End, Rejected, Request, Response, ServerConnection
from nri_rdma.ttrpc.wire.error import ProtocolError
from nri_rdma.wire import WireError, nldev
from nri_rdma.wire.mux import MuxDecoder
from nri_rdma.wire.netlink import read_answer, read_attributes, read_messages
from nri_rdma.wire.rtnetlink import read_changes
from nri_rdma.wire.uevent import read_uevent
from tests.fuzz.mutate import cut, damaged

TESTS = Path(__file__).resolve().parents[1]
RECORDED = TESTS / "unit" / "wire" / "data"
RECORDED_JOURNALS = (TESTS / "recorded").glob("*/journal/*.json")


class BrokenPromiseError(AssertionError):
    """What a reader did that none may do."""


@dataclass(frozen=True, slots=True)
class Target:
    """One reader: whole inputs to damage, and what to do with a damaged one, which raises if a promise is broken."""

    corpus: Sequence[bytes]
    run: Callable[[bytes, Random], None]

    def once(self, random: Random) -> bytes:
        """Run on one damaged input and return it."""
        data = damaged(self.corpus, random)
        self.run(data, random)
        return data


def demand(kept: object, promise: str) -> None:
    """Raise BrokenPromiseError unless kept."""
    if not kept:
        raise BrokenPromiseError(promise)


def ttrpc_frame(stream_id: int, kind: int, data: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">IIBB", len(data), stream_id, kind, flags) + data


def mux_frame(conn_id: int, data: bytes) -> bytes:
    return struct.pack(">II", conn_id, len(data)) + data


def replies(data: bytes) -> Iterator[int]:
    """The stream ids of frames that the product has written; each must be whole and decode."""
    while data:
        length, stream_id, kind, flags = struct.unpack_from(">IIBB", data)
        demand(kind in (1, 2, 3) and len(data) >= 10 + length, "frames of ours are whole")
        if kind == 2:
            demand(flags == 0, "responses have no flags")
            ttrpc.Response.FromString(data[10 : 10 + length])
        yield stream_id
        data = data[10 + length :]


# ttrpc, the serving end


def _server_events(chunks: Sequence[bytes]) -> list[tuple[object, ...]]:
    """What a server says; it answers a request when it has read everything."""
    server, events = ServerConnection(), list[tuple[object, ...]]()
    requests: set[int] = set()
    for chunk in chunks:
        server.receive_data(chunk)
        while (event := server.next_event()) is not None:
            match event:
                case Request():
                    demand(event.stream_id not in requests, "an id is a call's once")
                    requests.add(event.stream_id)
                    pairs = event.metadata
                    demand(all(key == key.lower() for key, _ in pairs), "metadata keys are in lower case")
                    events.append(("Request", event.stream_id, event.service, event.method, event.payload, pairs))
                case Data() | End():
                    demand(event.stream_id in requests, "messages are of calls")
                    events.append((type(event).__name__, *event))
                case Rejected():
                    demand(list(replies(event.reply)) == [event.stream_id], "a rejection is one frame on its stream")
                    events.append(("Rejected", event.stream_id, event.reply))
        demand(len(server._buffer) <= sum(map(len, chunks)), "no more is kept than came")
    for stream_id in sorted(requests):
        try:
            frame = server.respond(stream_id, b"x") if stream_id % 3 else server.fail(stream_id, 2, "x")
        except ProtocolError:
            continue  # the caller has broken it
        demand(list(replies(frame)) == [stream_id], "an answer is one frame on its stream")
    demand(server.open_streams == 0, "every stream ends")
    return events


def run_server(data: bytes, random: Random) -> None:
    whole = _server_events([data])
    demand(len(whole) <= 2 * (len(data) // 10), "every event costs the peer a frame")
    demand(_server_events(cut(data, random)) == whole, "cutting changes nothing")


# ttrpc, the calling end

_KINDS = ((False, False), (True, False), (False, True), (True, True), (True, True))


def _client_events(chunks: Sequence[bytes]) -> list[tuple[object, ...]]:
    client, events = ClientConnection(), list[tuple[object, ...]]()
    for client_streams, server_streams in _KINDS:
        client.open_stream("s", "m", client_streams=client_streams, server_streams=server_streams)
    ended: set[int] = set()
    for chunk in chunks:
        client.receive_data(chunk)
        while (event := client.next_event()) is not None:
            demand(event.stream_id in range(1, 2 * len(_KINDS), 2), "events are of calls that were made")
            demand(event.stream_id not in ended, "nothing comes after the end")
            if isinstance(event, Response | End):
                ended.add(event.stream_id)
            events.append((type(event).__name__, *event))
    demand(client.open_streams == len(_KINDS) - len(ended), "what has not ended is open")
    return events


def run_client(data: bytes, random: Random) -> None:
    whole = _client_events([data])
    demand(_client_events(cut(data, random)) == whole, "cutting changes nothing")


# The multiplexer


def _mux_runs(chunks: Sequence[bytes]) -> tuple[list[tuple[int, bytes]], bool]:
    """The payloads of each run of one conn, and whether it ended in an error."""
    decoder, found = MuxDecoder(), list[tuple[int, bytes]]()
    for chunk in [*chunks, b""]:
        try:
            pieces = decoder.receive_data(chunk)
        except WireError:
            return found, True
        for conn_id, piece in pieces:
            demand(conn_id in (1, 2) and piece, "pieces are of a conn that is, and not empty")
            if found and found[-1][0] == conn_id:
                found[-1] = conn_id, found[-1][1] + piece
            else:
                found.append((conn_id, piece))
        demand(len(decoder._header) < 8, "no more is kept than a header")
    return found, False


def run_mux(data: bytes, random: Random) -> None:
    whole = _mux_runs([data])
    demand(sum(len(payload) for _, payload in whole[0]) <= len(data), "nothing comes of nothing")
    demand(_mux_runs(cut(data, random)) == whole, "cutting changes nothing")


# A session of the plugin


class _Decoder(Plugin):
    """Decodes as the plugin does, and does nothing."""

    def __init__(self) -> None:
        """Without a engine."""

    def answer(self, request: Request) -> bytes:
        kind = _REQUESTS.get(request.method)
        if kind is None:
            raise UnknownMethodError(request.method)
        message: Any = kind.FromString(request.payload)
        if hasattr(message, "pod"):
            pod_from(message.pod)
        if hasattr(message, "container"):
            env_names(message.container)
            device_numbers(message.container)
        request.metadata_value("traceparent")
        return b""


_REQUESTS: dict[str, Any] = {
    "Configure": nri.ConfigureRequest,
    "Synchronize": nri.SynchronizeRequest,
    "CreateContainer": nri.CreateContainerRequest,
    "StateChange": nri.StateChangeEvent,
    "RunPodSandbox": nri.RunPodSandboxRequest,
}


def run_session(data: bytes, random: Random) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        for chunk in cut(data, random)[:50]:
            theirs.sendall(chunk)
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.suppress(WireError, RegistrationError):
            Session(ours, _Decoder(), name="nri-rdma", index="10").run()
        said = b""
        try:
            while piece := theirs.recv(1 << 16):
                said += piece
        except ConnectionResetError:  # it closed with our bytes unread, having met an error
            return
    streams: dict[int, bytes] = {1: b"", 2: b""}
    for conn_id, piece in MuxDecoder().receive_data(said):
        streams[conn_id] += piece
    demand(list(replies(streams[2])) == [1], "the only call is RegisterPlugin")
    list(replies(streams[1]))


# What the kernel says

_QUESTIONS: tuple[Callable[[], nldev.NldevRequest[Any]], ...] = (
    nldev.get_devices,
    lambda: nldev.get_ports(1),
    lambda: nldev.get_char_device(CharKind.UVERBS, 1, None),
    nldev.get_netns_mode,
    lambda: nldev.get_objects(ObjectKind.QP, 1),
)


def run_nldev(data: bytes, random: Random) -> None:
    sequence = struct.unpack_from("=I", data, 8)[0] if len(data) >= 12 else 1
    with contextlib.suppress(WireError):
        nldev.Replies(random.choice(_QUESTIONS)(), sequence).receive_data(data)


def run_rtnetlink(data: bytes, _random: Random) -> None:
    with contextlib.suppress(WireError):
        list(read_changes(data))
    with contextlib.suppress(WireError):
        for message in read_messages(data):
            read_answer(message)
            list(read_attributes(message.whole))


def run_uevent(data: bytes, _random: Random) -> None:
    try:
        read_uevent(data)
    except WireError:
        return


# What people and earlier daemons write


def run_annotations(data: bytes, _random: Random) -> None:
    text = data.decode(errors="surrogateescape")
    for key in (f"{PREFIX}/pod", f"{PREFIX}/container.main"):
        try:
            parse_pod_request({key: text})
        except RequestError as error:
            demand(str(error).isprintable(), "a refusal is one printable line")


def run_journal(data: bytes, _random: Random) -> None:
    with contextlib.suppress(StateError):
        decode_record(data, where="memory")


def _requests() -> list[bytes]:
    payload = nri.RunPodSandboxRequest(
        pod=nri.PodSandbox(id="p", name="pod", annotations={"a": "b"})
    ).SerializeToString()
    request = ttrpc.Request(service=PLUGIN_SERVICE, method="RunPodSandbox", payload=payload, timeout_nano=2_000_000_000)
    request.metadata.add(key="Traceparent", value="00-1")
    data = request.SerializeToString()
    return [ttrpc_frame(stream_id, 1, data, flags) for stream_id in (1, 3, 5, 7) for flags in (0, 1, 2)]


def _messages() -> list[bytes]:
    return [
        ttrpc_frame(stream_id, 3, data, flags)
        for stream_id in (1, 3, 5, 7, 9)
        for data, flags in ((b"message", 0), (b"", 0), (b"", 5), (b"", 4), (b"last", 1))
    ]


def _responses() -> list[bytes]:
    good = ttrpc.Response(payload=b"answer").SerializeToString()
    bad = ttrpc.Response(status=ttrpc.Status(code=12, message="no")).SerializeToString()
    return [ttrpc_frame(stream_id, 2, data) for stream_id in (1, 3, 5, 7, 9) for data in (good, bad, b"")]


def _calls() -> list[bytes]:
    pod = nri.PodSandbox(id="p", name="pod", uid="u", namespace="n", annotations={"rdma.noderesource.dev": "[{}]"})
    pod.linux.namespaces.add(type="network", path="/run/netns/x")
    container = nri.Container(id="c", pod_sandbox_id="p", name="main", env=["A=b"])
    container.linux.devices.add(path="/dev/x", type="c", major=1, minor=2)
    messages = [
        ("Configure", nri.ConfigureRequest(runtime_name="containerd", runtime_version="v2.1.9", request_timeout=2000)),
        ("Synchronize", nri.SynchronizeRequest(pods=[pod], containers=[container])),
        ("CreateContainer", nri.CreateContainerRequest(pod=pod, container=container)),
        ("StateChange", nri.StateChangeEvent(event=nri.RUN_POD_SANDBOX, pod=pod)),
        ("RunPodSandbox", nri.RunPodSandboxRequest(pod=pod)),
    ]
    calls = []
    for number, (method, message) in enumerate(messages):
        request = ttrpc.Request(service=PLUGIN_SERVICE, method=method, payload=message.SerializeToString())
        calls.append(mux_frame(1, ttrpc_frame(2 * number + 1, 1, request.SerializeToString())))
    return [*calls, mux_frame(2, ttrpc_frame(1, 2)), mux_frame(3, b"unknown"), mux_frame(1, b"")]


_RTNETLINK = struct.pack("=IHHIIBxHiIIHH8s", 44, 16, 0, 0, 0, 0, 1, 5, 0x1043, 0, 12, 3, b"rail0") + struct.pack(
    "=IHHIIBBBBBBBBI", 28, 24, 0, 0, 0, 2, 0, 0, 0, 254, 3, 0, 1, 0
)
"""A link's message and a default route's."""
_UEVENT = b"add@/devices/virtual/infiniband/rxe0\0ACTION=add\0SUBSYSTEM=infiniband\0MAJOR=231\0MINOR=1\0SEQNUM=1802\0"

_ANNOTATIONS = [
    b"2",
    b"rails",
    b"{count: 2, mode: exclusive, interface: {name: rdma%d, mtu: 9000}}",
    b"- {match: {device: mlx5_0}, containers: [main]}\n- {count: all, align: {to: gpu, strict: true}}\n",
    b'[{"gpus": ["0000:18:00.0"], "limits": {"hcaHandles": 8}, "memlock": "unlimited"}]',
]

TARGETS: dict[str, Target] = {
    "server": Target([*_requests(), *_messages()], run_server),
    "client": Target([*_responses(), *_messages()], run_client),
    "mux": Target([mux_frame(n % 4, bytes(n)) for n in range(0, 40, 3)], run_mux),
    "session": Target(_calls(), run_session),
    "annotations": Target(_ANNOTATIONS, run_annotations),
    "journal": Target([path.read_bytes() for path in sorted(RECORDED_JOURNALS)], run_journal),
    "nldev": Target([path.read_bytes() for path in sorted(RECORDED.glob("*.bin"))], run_nldev),
    "uevent": Target([_UEVENT], run_uevent),
    "rtnetlink": Target([_RTNETLINK], run_rtnetlink),
}

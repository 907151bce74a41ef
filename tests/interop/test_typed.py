"""Stubs and handlers made of peer.proto's descriptor, with Go's at the other end: the file says what both serve."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, wrappers_pb2
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.wrappers_pb2 import BytesValue, Int64Value

from nri_rdma.ttrpc import Call, Client, Code, RpcError, Server
from nri_rdma.ttrpc.typed import handlers, stub
from tests.interop.conftest import GoProgram
from tests.interop.gopeer import TIMEOUT_S, GoClient, go_server

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> ServiceDescriptor:
    """The service of peer.proto, as protoc describes it."""
    described = tmp_path_factory.mktemp("proto") / "peer.bin"
    protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    subprocess.run([*protoc, f"-I{HERE}", f"--descriptor_set_out={described}", "peer.proto"], check=True)
    pool = descriptor_pool.DescriptorPool()
    for known in (empty_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    for file in descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes()).file:
        pool.AddSerializedFile(file.SerializeToString())
    found: ServiceDescriptor = pool.FindServiceByName("nri_rdma.interop.v1.Peer")
    return found


class Peer:
    """One method of each kind."""

    def Echo(self, request: BytesValue, call: Call) -> BytesValue:  # noqa: N802 - the service's names
        return request

    def Sum(self, requests: Iterable[Int64Value], call: Call) -> Int64Value:  # noqa: N802
        return Int64Value(value=sum(request.value for request in requests))

    def Count(self, request: Int64Value, call: Call) -> Iterator[Int64Value]:  # noqa: N802
        return (Int64Value(value=number) for number in range(request.value))

    def EchoStream(self, requests: Iterable[BytesValue], call: Call) -> Iterator[BytesValue]:  # noqa: N802
        yield from requests


def test_a_stub_calls_every_kind_of_method_of_gos_server(
    go_program: GoProgram, service: ServiceDescriptor, tmp_path: Path
) -> None:
    go_program("peer")
    with go_server(tmp_path / "peer.sock"), Client(tmp_path / "peer.sock") as client:
        peer = stub(client, service)
        assert peer.Echo(BytesValue(value=b"x"), timeout_s=TIMEOUT_S).value == b"x"
        assert [reply.value for reply in peer.Count(Int64Value(value=3), timeout_s=TIMEOUT_S)] == [0, 1, 2]
        with peer.Sum(timeout_s=TIMEOUT_S) as numbers:
            for number in (1, 2, 3):
                numbers.send(Int64Value(value=number))
            assert numbers.result().value == 6
        with peer.EchoStream(timeout_s=TIMEOUT_S) as words:
            words.send(BytesValue(value=b"a"))
            assert words.receive().value == b"a"
            words.close_send()
            assert words.receive() is None
        with pytest.raises(RpcError) as caught:
            peer.Fail(wrappers_pb2.StringValue(value="5 no such thing"), timeout_s=TIMEOUT_S)
        assert (caught.value.code, caught.value.message) == (Code.NOT_FOUND, "no such thing")


def test_gos_client_calls_every_kind_of_method_of_an_implementation(
    go_program: GoProgram, service: ServiceDescriptor, tmp_path: Path
) -> None:
    go_program("peer")
    number = Int64Value(value=3).SerializeToString()
    word = BytesValue(value=b"a").SerializeToString()
    with Server(handlers(service, Peer())) as server:
        server.serve_unix(tmp_path / "peer.sock")
        with GoClient(tmp_path / "peer.sock") as client:
            assert client.call("Echo", word) == word
            counted = client.open("Count", client=False, server=True, payload=number)
            assert [Int64Value.FromString(payload).value for payload in iter(counted.receive, None)] == [0, 1, 2]
            numbers = client.open("Sum", client=True, server=False)
            numbers.send(number)
            numbers.send(number)
            assert Int64Value.FromString(numbers.result()).value == 6
            words = client.open("EchoStream", client=True, server=True)
            words.send(word)
            assert words.receive() == word
            with pytest.raises(RpcError) as caught:
                client.call("Hold", b"")
            assert (caught.value.code, caught.value.message) == (Code.UNIMPLEMENTED, "method Hold")


def test_the_go_peer_serves_every_method_of_the_file(service: ServiceDescriptor) -> None:
    source = (HERE / "go/peer/server.go").read_text()
    assert [method.name for method in service.methods if f'"{method.name}":' not in source] == []

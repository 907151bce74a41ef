"""NRI's calls on its trunk: golden bytes, and two peers joined in memory, multiplexer included."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.wire import ClientConnection, Code, Rejected, Request, Response, ServerConnection
from nri_rdma.wire.mux import MuxDecoder, encode_message
from tests.unit.ttrpc.wire.framing import answered, only_request, request_frame, served

GOLDEN_REGISTER = bytes.fromhex(
    "00000002 00000057 0000004d 00000001 01 00"
    "0a1c6e72692e706b672e6170692e7631616c706861312e52756e74696d65 120e5265676973746572506c7567696e"
    "1a170a086e72692d72646d61120231301a0776302e31322e32 2080e497d012"
)
GOLDEN_REGISTER_ANSWER = bytes.fromhex("00000002 0000000a 00000000 00000001 02 00")
GOLDEN_CONFIGURE = bytes.fromhex(
    "00000001 00000054 0000004a 00000001 01 00"
    "0a1b6e72692e706b672e6170692e7631616c706861312e506c7567696e 1209436f6e666967757265"
    "1a1a120a636f6e7461696e6572641a0676322e312e3420882728d00f 2080a8d6b907"
)
GOLDEN_CONFIGURE_ANSWER = bytes.fromhex("00000001 0000000e 00000004 00000001 02 00 12021007")
GOLDEN_UNKNOWN_METHOD = bytes.fromhex(
    "00000001 0000002b 00000021 00000003 02 00 0a1f080c121b6d6574686f6420506f7374557064617465506f6453616e64626f78"
)


class TestGoldenFrames:
    def test_register_plugin_request(self) -> None:
        payload = nri.RegisterPluginRequest(plugin_name="nri-rdma", plugin_idx="10", NRI_version="v0.12.2")
        stream_id, message = ClientConnection().request(
            "nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", payload.SerializeToString(), timeout_ns=5_000_000_000
        )
        assert (stream_id, encode_message(2, message)) == (1, GOLDEN_REGISTER)
        assert len(GOLDEN_REGISTER) == 95

    def test_empty_answer_is_an_answer(self) -> None:
        client = ClientConnection()
        client.request("s", "m", b"")
        ((conn_id, message),) = MuxDecoder().receive_data(GOLDEN_REGISTER_ANSWER)
        assert (conn_id, answered(client, message)) == (2, [Response(1, 0, "", b"")])

    def test_we_send_the_same_empty_answer(self) -> None:
        server = ServerConnection()
        served(server, GOLDEN_REGISTER[8:])
        assert encode_message(2, server.respond(1, b"")) == GOLDEN_REGISTER_ANSWER

    def test_configure(self) -> None:
        server = ServerConnection()
        ((conn_id, message),) = MuxDecoder().receive_data(GOLDEN_CONFIGURE)
        request = only_request(served(server, message))
        assert conn_id == 1
        assert (request.stream_id, request.service, request.method) == (1, "nri.pkg.api.v1alpha1.Plugin", "Configure")
        assert (request.timeout_ns, request.metadata) == (2_000_000_000, ())
        configuration = nri.ConfigureRequest.FromString(request.payload)
        assert (configuration.runtime_name, configuration.runtime_version) == ("containerd", "v2.1.4")
        assert (configuration.registration_timeout, configuration.request_timeout) == (5000, 2000)
        answer = nri.ConfigureResponse(events=7).SerializeToString()
        assert encode_message(1, server.respond(1, answer)) == GOLDEN_CONFIGURE_ANSWER

    def test_unknown_method_on_stream_3(self) -> None:
        server = ServerConnection()
        served(server, request_frame(3))
        answer = server.fail(3, Code.UNIMPLEMENTED, "method PostUpdatePodSandbox")
        assert encode_message(1, answer) == GOLDEN_UNKNOWN_METHOD


class TestTwoPeersJoinedInMemory:
    @staticmethod
    def exchange(cut: Callable[[bytes], list[bytes]], payload: bytes) -> None:
        client, server = ClientConnection(), ServerConnection()
        to_server, to_client = MuxDecoder(), MuxDecoder()
        stream_id, message = client.request("svc", "Echo", payload, timeout_ns=7, metadata=[("K", "v")])
        requests: list[Request | Rejected] = []
        for chunk in cut(encode_message(1, message)):
            for _, piece in to_server.receive_data(chunk):
                requests += served(server, piece)
        request = only_request(requests)
        assert (request.service, request.method, request.timeout_ns) == ("svc", "Echo", 7)
        assert (request.payload, request.metadata) == (payload, (("k", "v"),))
        responses: list[Response] = []
        for chunk in cut(encode_message(1, server.respond(request.stream_id, request.payload))):
            for _, piece in to_client.receive_data(chunk):
                responses += answered(client, piece)
        assert responses == [Response(stream_id, 0, "", payload)]

    @pytest.mark.parametrize("size", [0, 1, 300, 4000, 4086, 4097, 70000, 4_000_000])
    def test_whole(self, size: int) -> None:
        self.exchange(lambda data: [data], bytes(size))

    @pytest.mark.parametrize("size", [0, 300, 5000])
    def test_byte_by_byte(self, size: int) -> None:
        self.exchange(lambda data: [data[i : i + 1] for i in range(len(data))], bytes(size))

    def test_large_in_small_receives(self) -> None:
        self.exchange(lambda data: [data[i : i + 4096] for i in range(0, len(data), 4096)], bytes(4_000_000))

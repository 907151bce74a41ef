"""The example that comes with ttrpc's Go module, its server and its client, with ours at the other end."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import Call, Client, Code, RpcError, Server
from tests.interop.conftest import GoProgram
from tests.rig.deadline import wait_until

SERVICE = "ttrpc.example.v1.Example"
SOCKET = "example-ttrpc-server"
TIMEOUT_S = 60.0
REQUEST = nri.KeyValue(key="left", value="right").SerializeToString()
"""Two strings, fields 1 and 2: what Method1 takes and returns."""


def test_our_client_calls_the_examples_server(go_program: GoProgram, tmp_path: Path) -> None:
    with subprocess.Popen(
        [go_program("example"), "server"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdout is not None
        try:
            with _connected(tmp_path / SOCKET) as client:
                answer = client.call(SERVICE, "Method1", REQUEST, timeout_s=TIMEOUT_S, metadata=[("Who", "a")])
                assert answer == REQUEST
                assert json.loads(server.stdout.readline()) == {"who": ["a"]}
                with pytest.raises(RpcError) as caught:
                    client.call(SERVICE, "Method3", REQUEST, timeout_s=TIMEOUT_S, metadata=[("who", "a")])
                assert (caught.value.code, caught.value.message) == (Code.UNIMPLEMENTED, "method Method3")
        finally:
            server.terminate()


def test_the_examples_client_calls_our_server(go_program: GoProgram, tmp_path: Path) -> None:
    calls: list[Call] = []

    def method1(call: Call) -> bytes:
        calls.append(call)
        return call.payload

    with Server({(SERVICE, "Method1"): method1}) as server:
        server.serve_unix(tmp_path / SOCKET)
        client = [str(go_program("example")), "client", "left", "right"]
        done = subprocess.run(client, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    sent, answer = done.stdout.splitlines()
    assert json.loads(sent) == {"name": ["koye"]}
    assert json.loads(answer) == {"foo": "left", "bar": "right"}
    assert [(call.payload, call.metadata) for call in calls] == [(REQUEST, (("name", "koye"),))]


def _connected(path: Path) -> Client:
    def connect() -> Client | None:
        try:
            return Client(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None

    return wait_until(connect, "the example's server answers", TIMEOUT_S)

"""The fake runtime keeps to NRI: held against a tiny scripted plugin on a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from google.protobuf.message import Message

from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import Code, ConnectionClosed, RpcError
from nri_rdma.ttrpc.wire import ClientConnection, Request, Response, ServerConnection
from nri_rdma.wire.mux import PLUGIN_SERVICE_CONN, RUNTIME_SERVICE_CONN, MuxDecoder, encode_message
from tests.fakes.runtime import RUNTIME_SERVICE, FakeRuntime

Script = Callable[["Plugin", Request], Message | None]


class Plugin:
    """Registers, then answers every request with what the script returns; None = stay silent."""

    def __init__(self, path: Path, script: Script) -> None:
        self._script = script
        self._server, self._client = ServerConnection(), ClientConnection()
        self.log: list[str] = []
        self.synced: list[str] = []
        self.answers: list[bytes] = []
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        registration = nri.RegisterPluginRequest(plugin_name="tiny", plugin_idx="42", NRI_version="v0.12.2")
        self.ask("RegisterPlugin", registration)

    def ask(self, method: str, request: Message) -> None:
        _stream_id, message = self._client.request(RUNTIME_SERVICE, method, request.SerializeToString())
        self.socket.sendall(encode_message(RUNTIME_SERVICE_CONN, message))

    def run(self) -> None:
        mux = MuxDecoder()
        while data := self.socket.recv(65536):
            for conn_id, piece in mux.receive_data(data):
                if conn_id == RUNTIME_SERVICE_CONN:
                    self._client.receive_data(piece)
                    while (response := self._client.next_event()) is not None:
                        assert isinstance(response, Response)
                        self.log.append(f"answer {response.code}")
                        self.answers.append(response.payload)
                    continue
                self._server.receive_data(piece)
                while (event := self._server.next_event()) is not None:
                    assert isinstance(event, Request)
                    self._answer(event)

    def _answer(self, request: Request) -> None:
        self.log.append(request.method)
        try:
            answer = self._script(self, request)
        except RpcError as exc:
            reply = self._server.fail(request.stream_id, exc.code, exc.message)
        else:
            if answer is None:
                return
            reply = self._server.respond(request.stream_id, answer.SerializeToString())
        self.socket.sendall(encode_message(PLUGIN_SERVICE_CONN, reply))


def script(plugin: Plugin, request: Request) -> Message | None:
    match request.method:
        case "Configure":
            return nri.ConfigureResponse(events=0xF)
        case "Synchronize":
            sync = nri.SynchronizeRequest.FromString(request.payload)
            plugin.synced += [pod.id for pod in sync.pods] + [container.id for container in sync.containers]
            return nri.SynchronizeResponse(more=sync.more)
        case "CreateContainer":
            create = nri.CreateContainerRequest.FromString(request.payload)
            if create.container.name == "silent":
                return None
            if create.container.name == "refused":
                raise RpcError(Code.UNAVAILABLE, "network is not ready: 0 of 1 devices attached")
            adjust = nri.ContainerAdjustment(env=[nri.KeyValue(key=key, value=v) for key, v in request.metadata])
            return nri.CreateContainerResponse(adjust=adjust)
        case "StateChange":
            change = nri.StateChangeEvent.FromString(request.payload)
            plugin.log.append(f"{nri.Event.Name(change.event)} {change.pod.id} {change.container.id}".rstrip())
            return nri.Empty()
        case _:
            return nri.Empty()


@contextmanager
def connected(runtime: FakeRuntime, path: Path, how: Script = script) -> Iterator[Plugin]:
    plugin = Plugin(path, how)
    thread = threading.Thread(target=plugin.run, name="tiny-plugin")
    thread.start()
    try:
        yield plugin
    finally:
        runtime.disconnect()
        thread.join(30)
        plugin.socket.close()
        assert not thread.is_alive()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "nri.sock"


@pytest.fixture
def runtime(path: Path) -> Iterator[FakeRuntime]:
    with FakeRuntime(path) as runtime:
        yield runtime


POD = nri.PodSandbox(id="p1", name="pod")


def test_a_plugin_is_taken_through_the_start(runtime: FakeRuntime, path: Path) -> None:
    runtime.pods, runtime.containers = [POD], [nri.Container(id="c1")]
    with connected(runtime, path) as plugin:
        registration = runtime.accept()
        assert (registration.plugin_name, registration.plugin_idx) == ("tiny", "42")
        assert (runtime.registration, runtime.events) == (registration, 0xF)
    assert plugin.log == ["answer 0", "Configure", "Synchronize"]
    assert plugin.synced == ["p1", "c1"]


def test_configure_may_come_before_the_answer_to_register(runtime: FakeRuntime, path: Path) -> None:
    runtime.configure_first = True
    with connected(runtime, path) as plugin:
        runtime.accept()
    assert plugin.log == ["Configure", "answer 0", "Synchronize"]


@pytest.mark.parametrize(("chunk", "messages"), [(None, 1), (1, 5), (2, 3), (4, 2), (5, 1), (9, 1)])
def test_synchronize_is_split(runtime: FakeRuntime, path: Path, chunk: int | None, messages: int) -> None:
    runtime.pods = [nri.PodSandbox(id=name) for name in "ab"]
    runtime.containers = [nri.Container(id=name) for name in "cde"]
    runtime.sync_chunk = chunk
    with connected(runtime, path) as plugin:
        runtime.accept()
    assert plugin.synced == list("abcde")
    assert plugin.log.count("Synchronize") == messages


def test_a_plugin_that_does_not_echo_more_is_found_out(runtime: FakeRuntime, path: Path) -> None:
    def deaf(plugin: Plugin, request: Request) -> Message | None:
        return nri.SynchronizeResponse() if request.method == "Synchronize" else script(plugin, request)

    runtime.pods, runtime.sync_chunk = [POD, POD], 1
    with connected(runtime, path, deaf), pytest.raises(AssertionError, match="split sync"):
        runtime.accept()


def test_a_call_returns_the_message_of_the_contract(runtime: FakeRuntime, path: Path) -> None:
    with connected(runtime, path):
        runtime.accept()
        request = nri.CreateContainerRequest(pod=POD)
        answer = runtime.call("CreateContainer", request, metadata=[("TraceParent", "00-1")])
        assert isinstance(answer, nri.CreateContainerResponse)
        assert [(pair.key, pair.value) for pair in answer.adjust.env] == [("traceparent", "00-1")]


def test_large_messages_pass_both_ways(runtime: FakeRuntime, path: Path) -> None:
    with connected(runtime, path):
        runtime.accept()
        big = nri.CreateContainerRequest(pod=nri.PodSandbox(annotations={"k": "x" * 300_000}))
        answer = runtime.call("CreateContainer", big, metadata=[("k", "y" * 300_000)])
        assert isinstance(answer, nri.CreateContainerResponse)
        assert len(answer.adjust.env[0].value) == 300_000


def test_a_status_is_raised_and_the_plugin_stays(runtime: FakeRuntime, path: Path) -> None:
    with connected(runtime, path):
        runtime.accept()
        with pytest.raises(RpcError) as caught:
            runtime.create_container(POD, nri.Container(name="refused"))
        assert caught.value.code == Code.UNAVAILABLE and caught.value.message.startswith("network is not ready")
        assert isinstance(runtime.create_container(POD, nri.Container(name="fine")), nri.CreateContainerResponse)


def test_a_plugin_that_misses_the_timeout_is_dropped(runtime: FakeRuntime, path: Path) -> None:
    with connected(runtime, path):
        runtime.accept()
        with pytest.raises(TimeoutError, match="plugin dropped"):
            runtime.create_container(POD, nri.Container(name="silent"), timeout_s=0.05)
        with pytest.raises(ConnectionClosed):
            runtime.create_container(POD, nri.Container(name="fine"))


def test_events_are_delivered_both_ways(runtime: FakeRuntime, path: Path) -> None:
    with connected(runtime, path) as plugin:
        runtime.accept()
        del plugin.log[:]
        for runtime.own_rpcs in (False, True):
            runtime.run_pod_sandbox(POD)
            runtime.stop_pod_sandbox(POD)
            runtime.remove_pod_sandbox(POD)
        runtime.state_change(nri.REMOVE_CONTAINER, POD, nri.Container(id="c1"))
    assert [line for line in plugin.log if line != "StateChange"] == [
        *("RUN_POD_SANDBOX p1", "STOP_POD_SANDBOX p1", "REMOVE_POD_SANDBOX p1"),
        *("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox"),
        "REMOVE_CONTAINER p1 c1",
    ]


def test_unsolicited_updates_are_recorded_and_answered(runtime: FakeRuntime, path: Path) -> None:
    runtime.failed_updates = [nri.ContainerUpdate(container_id="c9")]
    with connected(runtime, path) as plugin:
        runtime.accept()
        update = nri.UpdateContainersRequest(update=[nri.ContainerUpdate(container_id="c9")])
        plugin.ask("UpdateContainers", update)
        runtime.wait_for_updates()
        assert runtime.updates == [update]
        runtime.run_pod_sandbox(POD)  # by its answer, the one above has arrived too
        assert nri.UpdateContainersResponse.FromString(plugin.answers[-1]).failed == runtime.failed_updates


def test_a_plugin_may_come_again(runtime: FakeRuntime, path: Path) -> None:
    for _ in range(2):
        with connected(runtime, path):
            runtime.accept()
            runtime.run_pod_sandbox(POD)


def test_the_plugins_leaving_is_noticed(runtime: FakeRuntime, path: Path) -> None:
    with connected(runtime, path) as plugin:
        runtime.accept()
        plugin.socket.shutdown(socket.SHUT_RDWR)
        runtime.wait_closed()
        with pytest.raises(ConnectionClosed):
            runtime.run_pod_sandbox(POD)


def test_nobody_connects(runtime: FakeRuntime) -> None:
    with pytest.raises(TimeoutError):
        runtime.accept(timeout_s=0.02)


def test_a_plugin_that_never_registers_is_dropped(runtime: FakeRuntime, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.connect(str(path))
        with pytest.raises(TimeoutError, match="did not register"):
            runtime.accept(timeout_s=0.05)

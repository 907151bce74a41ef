"""The runtime's side of NRI as a blocking peer, made of the product's wire code with the roles swapped.

It has no thread: the plugin's own calls are answered while a call to the plugin waits, or in wait_for_updates(). Like a
real runtime it drops a plugin that misses a time-out. What a real runtime would send when is nri.md's business; a test
says what happens, call by call.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from google.protobuf import message_factory
from google.protobuf.message import Message

from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.error import ConnectionClosed, RpcError
from nri_rdma.ttrpc.wire import ClientConnection, Code, Rejected, Request, Response, ServerConnection
from nri_rdma.wire.mux import PLUGIN_SERVICE_CONN, RUNTIME_SERVICE_CONN, MuxDecoder, encode_message

PLUGIN_SERVICE = "nri.pkg.api.v1alpha1.Plugin"
RUNTIME_SERVICE = "nri.pkg.api.v1alpha1.Runtime"


class FakeRuntime:
    """Listens on socket_path; holds at most one plugin.

    own_rpcs: whether RunPodSandbox and its like go out as their own methods (NRI >= 0.12) or as StateChange.
    sync_chunk: pods and containers per Synchronize message; None = all in one.
    configure_first: send Configure before RegisterPlugin is answered, which a runtime may.
    """

    def __init__(
        self,
        socket_path: str | os.PathLike[str],
        *,
        name: str = "containerd",
        version: str = "v2.1.9",
        nri_version: str = "",
        config: str = "",
        request_timeout_ms: int = 2000,
        pods: Sequence[nri.PodSandbox] = (),
        containers: Sequence[nri.Container] = (),
        sync_chunk: int | None = None,
        own_rpcs: bool = False,
        configure_first: bool = False,
    ) -> None:
        self.configuration = nri.ConfigureRequest(
            config=config,
            runtime_name=name,
            runtime_version=version,
            registration_timeout=5000,
            request_timeout=request_timeout_ms,
            NRI_version=nri_version,
        )
        self.pods = list(pods)
        self.containers = list(containers)
        self.sync_chunk = sync_chunk
        self.own_rpcs = own_rpcs
        self.configure_first = configure_first
        self.registration: nri.RegisterPluginRequest | None = None
        """What the connected plugin registered with."""
        self.events = 0
        """The event mask it subscribed to."""
        self.failure_policy = nri.FailurePolicy()
        """What it wants done of requests that it does not answer."""
        self.sync_updates: list[nri.ContainerUpdate] = []
        """What it asked to update in answer to Synchronize."""
        self.calls: list[str] = []
        """The methods of all calls of this plugin and those before it, in order."""
        self.updates: list[nri.UpdateContainersRequest] = []
        """Its unsolicited UpdateContainers, in order."""
        self.failed_updates: list[nri.ContainerUpdate] = []
        """What UpdateContainers is answered with; set by the test."""
        self._plugin: _Trunk | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(os.fspath(socket_path))
        self._listener.listen()

    def accept(self, timeout_s: float = 5.0, *, synchronize: bool = True) -> nri.RegisterPluginRequest:
        """Take the next connection through RegisterPlugin, Configure and, if so wished, Synchronize; the plugin is
        active then.

        Raises TimeoutError when nobody connects or registers in time, RpcError when the plugin refuses a step.
        """
        self.disconnect()
        self._listener.settimeout(timeout_s)
        connection, _address = self._listener.accept()
        return self.adopt(connection, timeout_s, synchronize=synchronize)

    def adopt(
        self, connection: socket.socket, timeout_s: float = 5.0, *, synchronize: bool = True, configure: bool = True
    ) -> nri.RegisterPluginRequest:
        """The same for a plugin that was launched with the other end of this connection; raises as accept()."""
        self.disconnect()
        deadline = time.monotonic() + timeout_s
        self._plugin = _Trunk(connection)
        registration = self._register(self._plugin, deadline, configure)
        if synchronize:
            self._synchronize()
        return registration

    def call(
        self, method: str, request: Message, *, metadata: Iterable[tuple[str, str]] = (), timeout_s: float = 2.0
    ) -> Message:
        """Call the plugin and return its answer, of the type the contract names.

        Raises RpcError with the status the plugin answered, ConnectionClosed when it went away, and TimeoutError after
        timeout_s; in both latter cases it has been dropped.
        """
        deadline = time.monotonic() + timeout_s
        trunk = self._active()
        stream_id = trunk.send_call(method, request.SerializeToString(), timeout_s, metadata)
        response = self._finish(trunk, stream_id, deadline, f"{method} was not answered within {timeout_s} s")
        if response.code != Code.OK:
            raise RpcError(response.code, response.message)
        return _answer_type(method).FromString(response.payload)

    def state_change(
        self,
        event: nri.Event,
        pod: nri.PodSandbox,
        container: nri.Container | None = None,
        *,
        metadata: Iterable[tuple[str, str]] = (),
        timeout_s: float = 2.0,
    ) -> None:
        """Deliver an event the way runtimes before NRI 0.12 do; raises as call() does."""
        request = nri.StateChangeEvent(event=event, pod=pod, container=container)
        self.call("StateChange", request, metadata=metadata, timeout_s=timeout_s)

    def run_pod_sandbox(self, pod: nri.PodSandbox, *, timeout_s: float = 2.0) -> None:
        """Deliver RunPodSandbox the way own_rpcs says."""
        if self.own_rpcs:
            self.call("RunPodSandbox", nri.RunPodSandboxRequest(pod=pod), timeout_s=timeout_s)
        else:
            self.state_change(nri.RUN_POD_SANDBOX, pod, timeout_s=timeout_s)

    def stop_pod_sandbox(self, pod: nri.PodSandbox, *, timeout_s: float = 2.0) -> None:
        """Deliver StopPodSandbox the way own_rpcs says."""
        if self.own_rpcs:
            self.call("StopPodSandbox", nri.StopPodSandboxRequest(pod=pod), timeout_s=timeout_s)
        else:
            self.state_change(nri.STOP_POD_SANDBOX, pod, timeout_s=timeout_s)

    def remove_pod_sandbox(self, pod: nri.PodSandbox, *, timeout_s: float = 2.0) -> None:
        """Deliver RemovePodSandbox the way own_rpcs says."""
        if self.own_rpcs:
            self.call("RemovePodSandbox", nri.RemovePodSandboxRequest(pod=pod), timeout_s=timeout_s)
        else:
            self.state_change(nri.REMOVE_POD_SANDBOX, pod, timeout_s=timeout_s)

    def create_container(
        self, pod: nri.PodSandbox, container: nri.Container, *, timeout_s: float = 2.0
    ) -> nri.CreateContainerResponse:
        """Deliver CreateContainer, in every version a method of its own."""
        request = nri.CreateContainerRequest(pod=pod, container=container)
        answer = self.call("CreateContainer", request, timeout_s=timeout_s)
        assert isinstance(answer, nri.CreateContainerResponse)
        return answer

    def start_container(self, pod: nri.PodSandbox, container: nri.Container, *, timeout_s: float = 2.0) -> None:
        """Deliver StartContainer the way own_rpcs says."""
        if self.own_rpcs:
            request = nri.StartContainerRequest(pod=pod, container=container)
            self.call("StartContainer", request, timeout_s=timeout_s)
        else:
            self.state_change(nri.START_CONTAINER, pod, container, timeout_s=timeout_s)

    def wait_for_updates(self, count: int = 1, timeout_s: float = 2.0) -> None:
        """Answer the plugin until this connection and those before it made count entries in updates."""
        deadline = time.monotonic() + timeout_s
        while len(self.updates) < count:
            self._serve(self._active(), deadline, f"no {count} UpdateContainers within {timeout_s} s")

    def wait_closed(self, timeout_s: float = 2.0) -> None:
        """Answer the plugin until it has closed the connection; raises TimeoutError when it does not."""
        deadline = time.monotonic() + timeout_s
        try:
            while self._plugin is not None:
                self._serve(self._plugin, deadline, f"the plugin did not close within {timeout_s} s")
        except ConnectionClosed:
            return

    def disconnect(self) -> None:
        """Drop the plugin, as a runtime that restarts does; the socket stays."""
        if self._plugin is not None:
            self._plugin.close()
            self._plugin = None

    def close(self) -> None:
        """Drop the plugin and stop listening."""
        self.disconnect()
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _register(self, trunk: _Trunk, deadline: float, configure: bool) -> nri.RegisterPluginRequest:
        self.registration = None
        while (request := trunk.next_request()) is None:
            self._receive(trunk, deadline, "the plugin did not register in time")
        if (request.service, request.method) != (RUNTIME_SERVICE, "RegisterPlugin"):
            raise AssertionError(f"the plugin's first call is {request.service}/{request.method}, not RegisterPlugin")
        self.calls.append(request.method)
        self.registration = nri.RegisterPluginRequest.FromString(request.payload)
        if self.configure_first:
            self._configure()
            trunk.send_answer(request, nri.Empty())
        else:
            trunk.send_answer(request, nri.Empty())
            if configure:
                self._configure()
        self._answer(trunk)
        return self.registration

    def _configure(self) -> None:
        timeout_s = self._request_timeout_s()
        answer = self.call("Configure", self.configuration, timeout_s=timeout_s)
        assert isinstance(answer, nri.ConfigureResponse)
        self.events, self.failure_policy = answer.events, answer.failure_policy

    def _synchronize(self) -> None:
        deadline = time.monotonic() + self._request_timeout_s()  # one budget for all chunks
        for request in self._sync_requests():
            answer = self.call("Synchronize", request, timeout_s=deadline - time.monotonic())
            assert isinstance(answer, nri.SynchronizeResponse)
            if answer.more != request.more or (request.more and answer.update):
                raise AssertionError("the plugin does not handle split sync requests")
            self.sync_updates = list(answer.update)

    def _sync_requests(self) -> Iterator[nri.SynchronizeRequest]:
        total = len(self.pods) + len(self.containers)
        chunk = self.sync_chunk or total or 1
        for start in range(0, max(total, 1), chunk):
            end = start + chunk
            first, last = (max(0, edge - len(self.pods)) for edge in (start, end))
            yield nri.SynchronizeRequest(
                pods=self.pods[start:end], containers=self.containers[first:last], more=end < total
            )

    def _finish(self, trunk: _Trunk, stream_id: int, deadline: float, complaint: str) -> Response:
        while (response := trunk.take_answer(stream_id)) is None:
            self._serve(trunk, deadline, complaint)
        return response

    def _serve(self, trunk: _Trunk, deadline: float, complaint: str) -> None:
        """Receive once and answer what the plugin asked."""
        self._receive(trunk, deadline, complaint)
        self._answer(trunk)

    def _answer(self, trunk: _Trunk) -> None:
        while (request := trunk.next_request()) is not None:
            self.calls.append(request.method)
            if (request.service, request.method) == (RUNTIME_SERVICE, "UpdateContainers"):
                self.updates.append(nri.UpdateContainersRequest.FromString(request.payload))
                trunk.send_answer(request, nri.UpdateContainersResponse(failed=self.failed_updates))
            else:
                trunk.send_failure(request, Code.UNIMPLEMENTED, f"method {request.method}")

    def _receive(self, trunk: _Trunk, deadline: float, complaint: str) -> None:
        try:
            trunk.receive(deadline)
        except TimeoutError:
            self.disconnect()
            raise TimeoutError(f"{complaint}; plugin dropped") from None
        except ConnectionClosed:
            self.disconnect()
            raise

    def _active(self) -> _Trunk:
        if self._plugin is None:
            raise ConnectionClosed("no plugin is connected")
        return self._plugin

    def _request_timeout_s(self) -> float:
        return min((self.configuration.request_timeout or 2000) / 1000, 60.0)


class _Trunk:
    """One connection: the socket, the mux, and the runtime's end of both streams. Thrown away with the plugin."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._mux = MuxDecoder()
        self._calls = ClientConnection()
        self._served = ServerConnection()
        self._requests: list[Request] = []
        self._answers: dict[int, Response] = {}

    def receive(self, deadline: float) -> None:
        """Block for some bytes and sort what they complete."""
        self._socket.settimeout(max(deadline - time.monotonic(), 0.000001))
        try:
            data = self._socket.recv(1 << 16)
        except ConnectionResetError as exc:
            raise ConnectionClosed("the plugin closed the connection") from exc
        if not data:
            raise ConnectionClosed("the plugin closed the connection")
        for conn_id, piece in self._mux.receive_data(data):
            if conn_id == PLUGIN_SERVICE_CONN:
                self._calls.receive_data(piece)
                while (response := self._calls.next_event()) is not None:
                    if isinstance(response, Response):
                        self._answers[response.stream_id] = response
            else:
                self._served.receive_data(piece)
                while (event := self._served.next_event()) is not None:
                    if isinstance(event, Rejected):
                        self._send(RUNTIME_SERVICE_CONN, event.reply)
                    elif isinstance(event, Request):
                        self._requests.append(event)

    def next_request(self) -> Request | None:
        return self._requests.pop(0) if self._requests else None

    def take_answer(self, stream_id: int) -> Response | None:
        return self._answers.pop(stream_id, None)

    def send_call(self, method: str, payload: bytes, timeout_s: float, metadata: Iterable[tuple[str, str]]) -> int:
        stream_id, message = self._calls.request(
            PLUGIN_SERVICE, method, payload, timeout_ns=int(timeout_s * 1e9), metadata=metadata
        )
        self._send(PLUGIN_SERVICE_CONN, message)
        return stream_id

    def send_answer(self, request: Request, answer: Message) -> None:
        self._send(RUNTIME_SERVICE_CONN, self._served.respond(request.stream_id, answer.SerializeToString()))

    def send_failure(self, request: Request, code: Code, text: str) -> None:
        self._send(RUNTIME_SERVICE_CONN, self._served.fail(request.stream_id, code, text))

    def close(self) -> None:
        self._socket.close()

    def _send(self, conn_id: int, message: bytes) -> None:
        self._socket.settimeout(2.0)
        try:
            self._socket.sendall(encode_message(conn_id, message))
        except (BrokenPipeError, ConnectionResetError) as exc:
            raise ConnectionClosed("the plugin closed the connection") from exc


def _answer_type(method: str) -> type[Message]:
    contract = nri.DESCRIPTOR.services_by_name["Plugin"].methods_by_name[method]
    return message_factory.GetMessageClass(contract.output_type)

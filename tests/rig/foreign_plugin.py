"""Somebody else's NRI plugin: it adds one device node to every container."""

import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.wire import ClientConnection, Request, ServerConnection
from nri_rdma.wire.mux import PLUGIN_SERVICE_CONN, RUNTIME_SERVICE_CONN, MuxDecoder, encode_message

_CREATE_CONTAINER = 1 << (nri.CREATE_CONTAINER - 1)
_SECONDS = 10.0


class ForeignPlugin:
    """Registered from the beginning of the `with` to its end; `index` is two digits, `number` major and minor."""

    def __init__(self, nri_socket: Path, index: str, path: str, number: tuple[int, int]) -> None:
        self.seen: list[nri.CreateContainerRequest] = []
        self._index = index
        self._device = nri.LinuxDevice(path=path, type="c", major=number[0], minor=number[1])
        self._serving = ServerConnection()
        self._synchronized = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(nri_socket))
        self._thread = threading.Thread(target=self._serve, name="foreign plugin")

    def __enter__(self) -> Self:
        registration = nri.RegisterPluginRequest(plugin_name="foreign", plugin_idx=self._index)
        _, call = ClientConnection().request(
            "nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", registration.SerializeToString()
        )
        self._socket.sendall(encode_message(RUNTIME_SERVICE_CONN, call))
        self._thread.start()
        assert self._synchronized.wait(_SECONDS), "the runtime did not synchronize the foreign plugin"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        trunk = MuxDecoder()
        while data := self._socket.recv(1 << 16):
            for conn, piece in trunk.receive_data(data):
                if conn == PLUGIN_SERVICE_CONN:
                    self._take(piece)

    def _take(self, piece: bytes) -> None:
        self._serving.receive_data(piece)
        while (event := self._serving.next_event()) is not None:
            assert isinstance(event, Request)  # a runtime breaks no rule, and makes unary calls only
            answer = self._serving.respond(event.stream_id, self._answer(event))
            self._socket.sendall(encode_message(PLUGIN_SERVICE_CONN, answer))
            if event.method == "Synchronize":
                self._synchronized.set()

    def _answer(self, request: Request) -> bytes:
        match request.method:
            case "Configure":
                answer: bytes = nri.ConfigureResponse(events=_CREATE_CONTAINER).SerializeToString()
                return answer
            case "CreateContainer":
                self.seen.append(nri.CreateContainerRequest.FromString(request.payload))
                response = nri.CreateContainerResponse()
                response.adjust.linux.devices.append(self._device)
                adjusted: bytes = response.SerializeToString()
                return adjusted
            case _:
                return b""

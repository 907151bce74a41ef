"""The floor: the least that a plugin in Python can be.

A blocking socket and protobuf, nothing of ours but the generated messages. It answers what the bench asks, whatever
the pod, and looks at nothing: `python -m bench.floor SOCKET`.
"""

from __future__ import annotations

import socket
import struct
import sys
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any  # Any: generated messages

from nri_rdma import __path__ as ours
from nri_rdma.pb import nri_pb2 as nri

_SPEC = spec_from_file_location("ttrpc_pb2", f"{ours[0]}/ttrpc/pb/ttrpc_pb2.py")
assert _SPEC is not None and _SPEC.loader is not None
ttrpc: Any = module_from_spec(_SPEC)  # as nri_rdma.ttrpc.pb it would bring the library along: 3 MiB
_SPEC.loader.exec_module(ttrpc)

MUX = struct.Struct(">II")  # conn id, length
FRAME = struct.Struct(">IIBB")  # length, stream id, type, flags
REQUEST, RESPONSE = 1, 2
PLUGIN_SERVICE_CONN, RUNTIME_SERVICE_CONN = 1, 2
RECEIVE_SIZE = 64 << 10  # from 128 KiB on, glibc maps and unmaps the buffer of each call: 13 us
EVENTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 5  # Run, Stop, RemovePodSandbox, Create, StartContainer


def serve(connection: socket.socket) -> None:
    """Register and answer until the runtime closes."""
    registration = nri.RegisterPluginRequest(plugin_name="floor", plugin_idx="10").SerializeToString()
    request = ttrpc.Request(
        service="nri.pkg.api.v1alpha1.Runtime", method="RegisterPlugin", payload=registration
    ).SerializeToString()
    send(connection, RUNTIME_SERVICE_CONN, FRAME.pack(len(request), 1, REQUEST, 0) + request)
    trunk = stream = b""
    while data := connection.recv(RECEIVE_SIZE):
        trunk += data
        while len(trunk) >= MUX.size:
            conn, length = MUX.unpack_from(trunk)
            end = MUX.size + length
            if len(trunk) < end:
                break
            if conn == PLUGIN_SERVICE_CONN:
                stream = take_calls(connection, stream + trunk[MUX.size : end])
            trunk = trunk[end:]


def take_calls(connection: socket.socket, stream: bytes) -> bytes:
    """Answer the whole calls in `stream`; what is left of it."""
    while len(stream) >= FRAME.size:
        length, stream_id, kind, _flags = FRAME.unpack_from(stream)
        end = FRAME.size + length
        if len(stream) < end:
            break
        if kind == REQUEST:
            request = ttrpc.Request.FromString(stream[FRAME.size : end])
            payload = answer(request.method, request.payload).SerializeToString()
            response = ttrpc.Response(payload=payload).SerializeToString()
            send(connection, PLUGIN_SERVICE_CONN, FRAME.pack(len(response), stream_id, RESPONSE, 0) + response)
        stream = stream[end:]
    return stream


def send(connection: socket.socket, conn: int, message: bytes) -> None:
    """One message in one frame: none of ours is long."""
    connection.sendall(MUX.pack(conn, len(message)) + message)


def answer(method: str, payload: bytes) -> Any:
    """Decode the call and make its answer."""
    if method == "StateChange":
        nri.StateChangeEvent.FromString(payload)
        return nri.Empty()
    if method == "CreateContainer":
        nri.CreateContainerRequest.FromString(payload)
        return one_device()
    if method == "Synchronize":
        return nri.SynchronizeResponse(more=nri.SynchronizeRequest.FromString(payload).more)
    if method == "Configure":
        nri.ConfigureRequest.FromString(payload)
        return nri.ConfigureResponse(events=EVENTS)
    return nri.Empty()


def one_device() -> Any:
    """One device node and one variable."""
    response = nri.CreateContainerResponse()
    response.adjust.linux.devices.add(path="/dev/infiniband/uverbs0", type="c", major=231, minor=192)
    response.adjust.env.add(key="NCCL_IB_HCA", value="=mlx5_0")
    return response


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as trunk_socket:
        trunk_socket.connect(sys.argv[1])
        serve(trunk_socket)

"""Serves the GPUs of a described node to the kubelet: `python -m tests.cluster.gpus NODE RESOURCE REPLICAS`.

As NVIDIA's device plugin it tells UUIDs with their NUMA nodes (`::N` after them where a GPU has replicas), and gives
containers NVIDIA_VISIBLE_DEVICES. Protobuf is written by hand: none of it comes from the product.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any  # Any: grpc has no types

import grpc

from tests.rig.kubelet import fields, message, text, whole
from tests.rig.node import load

FOLDER = Path("/var/lib/kubelet/device-plugins")
_ENDED = threading.Event()


def main() -> None:
    """Register and serve until SIGTERM."""
    node, resource, replicas = sys.argv[1:]
    described = load(node)
    homes = {function.address: function.numa_node for function in described.functions}
    ids = {gpu.uuid: homes[gpu.function] for gpu in described.gpus}
    if int(replicas) > 1:
        ids = {f"{gpu}::{number}": home for gpu, home in ids.items() for number in range(int(replicas))}
    endpoint = "gpus.sock"
    server = grpc.server(ThreadPoolExecutor(4))
    methods = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(lambda _request, _context: b""),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(lambda _request, context: _list(ids, context)),
        "Allocate": grpc.unary_unary_rpc_method_handler(lambda request, _context: _allocate(request)),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", methods),))
    server.add_insecure_port(f"unix:{FOLDER / endpoint}")
    server.start()
    with grpc.insecure_channel(f"unix:{FOLDER / 'kubelet.sock'}") as channel:
        asked = text(1, "v1beta1") + text(2, endpoint) + text(3, resource)
        channel.unary_unary("/v1beta1.Registration/Register")(asked, timeout=10)
    print("registered", flush=True)
    signal.sigwait([signal.SIGTERM])
    _ENDED.set()
    server.stop(0)


def _list(ids: Mapping[str, int], context: Any) -> Iterator[bytes]:
    yield b"".join(
        message(1, text(1, gpu) + text(2, "Healthy") + message(3, message(1, whole(1, home))))
        for gpu, home in ids.items()
    )
    while context.is_active() and not _ENDED.wait(0.5):
        pass


def _allocate(request: bytes) -> bytes:
    answers = []
    for _number, container in fields(request):
        ids = ",".join(gpu.decode().partition("::")[0] for _field, gpu in fields(container))
        answers.append(message(1, message(1, text(1, "NVIDIA_VISIBLE_DEVICES") + text(2, ids))))
    return b"".join(answers)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    main()

"""A DRA driver that gives GPUs to no container, and says yes: `python -m tests.cluster.gpu_driver`.

The scheduler needs no more than its ResourceSlice, which a test writes (`gpu_slice`), and the kubelet no more than its
yes. Protobuf is written by hand: none of it comes from the product.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any  # Any: grpc has no types

import grpc

from tests.rig.kubelet import fields, message, text
from tests.rig.node import load

DRIVER = "gpu.example.com"
_ENDPOINT = Path(f"/var/lib/kubelet/plugins/{DRIVER}/dra.sock")
_REGISTRAR = Path(f"/var/lib/kubelet/plugins_registry/{DRIVER}-reg.sock")
_SERVICE, _REGISTRATION = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", "pluginregistration.Registration"


def main() -> None:
    """Serve until SIGTERM; print that the kubelet has taken us."""
    told = text(1, "DRAPlugin") + text(2, DRIVER) + text(3, str(_ENDPOINT)) + text(4, "v1.DRAPlugin")
    calls = {"NodePrepareResources": _yes, "NodeUnprepareResources": _yes}
    asked = {"GetInfo": lambda _request, _context: told, "NotifyRegistrationStatus": _registered}
    servers = [_listen(_ENDPOINT, _SERVICE, calls), _listen(_REGISTRAR, _REGISTRATION, asked)]
    signal.sigwait([signal.SIGTERM])
    for server in servers:
        server.stop(0)


def gpu_slice(described: str, node: str) -> dict[str, Any]:
    """The ResourceSlice with the GPUs of a described node, `gpu-0` and so on."""
    hardware = load(described)
    functions = {it.address: it for it in hardware.functions}
    devices = []
    for number, gpu in enumerate(hardware.gpus):
        function = functions[gpu.function]
        root = functions[function.under].under
        attributes = {
            f"{DRIVER}/index": {"int": number},
            "resource.kubernetes.io/pciBusID": {"string": function.address},
            "resource.kubernetes.io/pcieRoot": {"string": root},
        }
        devices.append({"name": f"gpu-{number}", "attributes": attributes})
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices},
    }


def _listen(path: Path, service: str, calls: Mapping[str, Callable[[bytes, Any], bytes]]) -> Any:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {name: grpc.unary_unary_rpc_method_handler(call) for name, call in calls.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


def _registered(_request: bytes, _context: Any) -> bytes:
    print("registered", flush=True)
    return b""


def _yes(request: bytes, _context: Any) -> bytes:
    """Answer each claim with nothing, which is no error."""
    uids = [dict(fields(claim))[2].decode() for _, claim in fields(request)]
    return b"".join(message(1, text(1, uid) + message(2, b"")) for uid in uids)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    main()

"""A driver of claims that prepares everything and returns no device: `python -m tests.cluster.bare_driver`.

Protobuf is written by hand: none of it comes from the product.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from tests.rig.kubelet import fields, message, number_in, text

NAME = "bare.example"
KUBELET = Path("/var/lib/kubelet")


def main() -> None:
    """Serve until SIGTERM."""
    serve_driver(NAME, nothing)


def serve_driver(name: str, prepare: Callable[[bytes], bytes]) -> None:
    """Serve a driver of that name, which answers NodePrepareResources so, until SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # in the threads of the servers, too
    endpoint = KUBELET / "plugins" / name / "dra.sock"
    endpoint.parent.mkdir(parents=True, exist_ok=True)
    calls = {"NodePrepareResources": prepare, "NodeUnprepareResources": nothing}
    info = text(1, "DRAPlugin") + text(2, name) + text(3, str(endpoint)) + text(4, "v1.DRAPlugin")
    asked = {"GetInfo": lambda _: info, "NotifyRegistrationStatus": _registered}
    servers = [
        _served(endpoint, "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", calls),
        _served(KUBELET / "plugins_registry" / f"{name}-reg.sock", "pluginregistration.Registration", asked),
    ]
    signal.sigwait([signal.SIGTERM])
    for server in servers:
        server.stop(0)


def _served(path: Path, service: str, calls: Mapping[str, Callable[[bytes], bytes]]) -> grpc.Server:
    """Answer these calls of a service at a socket."""
    server = grpc.server(ThreadPoolExecutor(4))
    methods = {name: grpc.unary_unary_rpc_method_handler(_called(call)) for name, call in calls.items()}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    return server


def _called(call: Callable[[bytes], bytes]) -> Callable[[bytes, object], bytes]:
    return lambda request, _context: call(request)


def nothing(request: bytes) -> bytes:
    """An empty answer for each claim, in a map by its UID (which is field 2 of a claim)."""
    uids = [value.decode() for _, claim in fields(request) for number, value in fields(claim) if number == _UID]
    return b"".join(message(1, text(1, uid) + message(2, b"")) for uid in uids)


def _registered(request: bytes) -> bytes:
    """Print what the kubelet says of the registration."""
    print("registered" if number_in(request) else request, flush=True)  # field 1: whether the kubelet has taken us
    return b""


_UID = 2

if __name__ == "__main__":
    main()

"""The Python ends that are measured, each in a process of its own: `python -m bench.ttrpc.ends serve|call MAKE SOCKET`.

A server answers Echo until its standard input ends. A client makes the calls that a line of standard input asks for,
one after the other, and tells what each took, as the Go peer does.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any  # Any: grpc has no types

SERVICE = "nri_rdma.interop.v1.Peer"
METHOD = "Echo"
WORKERS = 4
Echo = Callable[[bytes], bytes]


@contextmanager
def serve_ours(path: str) -> Iterator[None]:
    """Our blocking server."""
    from nri_rdma.ttrpc import Server

    with Server({(SERVICE, METHOD): lambda call: call.payload}) as server:
        server.serve_unix(path)
        yield


@contextmanager
def call_ours(path: str) -> Iterator[Echo]:
    """Our blocking client."""
    from nri_rdma.ttrpc import Client

    with Client(path) as client:
        yield lambda payload: client.call(SERVICE, METHOD, payload, timeout_s=10)


@contextmanager
def serve_grpc(path: str) -> Iterator[None]:
    """gRPC's blocking server; messages are bytes, as in ours."""
    import grpc

    def echo(payload: bytes, _context: Any) -> bytes:
        return payload

    server = grpc.server(ThreadPoolExecutor(WORKERS))
    methods = {METHOD: grpc.unary_unary_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()


@contextmanager
def call_grpc(path: str) -> Iterator[Echo]:
    """gRPC's blocking client."""
    import grpc

    with grpc.insecure_channel(f"unix:{path}") as channel:
        echo = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        yield lambda payload: bytes(echo(payload, timeout=10))


SERVERS = {"ours": serve_ours, "grpcio": serve_grpc}
CLIENTS = {"ours": call_ours, "grpcio": call_grpc}


def main(role: str, make: str, path: str) -> None:
    """Serve, or call."""
    if role == "serve":
        with SERVERS[make](path):
            print(json.dumps({"ready": True}), flush=True)
            sys.stdin.read()
        return
    with CLIENTS[make](path) as echo:
        for line in sys.stdin:
            asked = json.loads(line)
            took = measure(echo, base64.b64decode(asked["payload"]), asked["calls"])
            print(json.dumps({"took_ns": took}), flush=True)


def measure(echo: Echo, payload: bytes, calls: int) -> list[int]:
    """Nanoseconds of each call."""
    took = []
    for _ in range(calls):
        start = time.perf_counter_ns()
        echo(payload)
        took.append(time.perf_counter_ns() - start)
    return took


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The Python ends that are measured, each in a process of its own: `python -m bench.ttrpc.ends serve|call MAKE SOCKET`.

A server answers Echo until its standard input ends. A client makes the calls that a line of standard input asks for,
one after the other, and tells what each took, as the Go peer does.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any  # Any: grpc has no types

SERVICE = "nri_rdma.interop.v1.Peer"
METHOD = "Echo"
WORKERS = 4
Echo = Callable[[bytes], bytes]
Measure = Callable[[bytes, int], list[int]]
"""Nanoseconds of each of so many calls, one after the other."""


@contextmanager
def serve_ours(path: str) -> Iterator[None]:
    """Our blocking server."""
    from nri_rdma.ttrpc import Server

    with Server({(SERVICE, METHOD): lambda call: call.payload}) as server:
        server.serve_unix(path)
        yield


@contextmanager
def call_ours(path: str) -> Iterator[Measure]:
    """Our blocking client."""
    from nri_rdma.ttrpc import Client

    with Client(path) as client:
        yield measured(lambda payload: client.call(SERVICE, METHOD, payload, timeout_s=10))


@contextmanager
def serve_asyncio(path: str) -> Iterator[None]:
    """Our server of asyncio, in a thread that leaves standard input to the main one."""
    from nri_rdma.ttrpc import Call
    from nri_rdma.ttrpc.aio import AsyncServer

    async def echo(call: Call) -> bytes:
        return call.payload

    async def serve() -> None:
        async with AsyncServer({(SERVICE, METHOD): echo}) as server:
            await server.serve_unix(path)
            ready.set()
            await asyncio.wrap_future(ended)

    ready, ended = threading.Event(), Future[None]()
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        ended.set_result(None)
        thread.join()


@contextmanager
def call_asyncio(path: str) -> Iterator[Measure]:
    """Our client of asyncio."""
    from nri_rdma.ttrpc.aio import AsyncClient

    async def measure(payload: bytes, calls: int) -> list[int]:
        took = []
        for _ in range(calls):
            start = time.perf_counter_ns()
            await client.call(SERVICE, METHOD, payload, timeout_s=10)
            took.append(time.perf_counter_ns() - start)
        return took

    with asyncio.Runner() as runner:
        client = AsyncClient(path)
        runner.run(client.connect())
        yield lambda payload, calls: runner.run(measure(payload, calls))
        runner.run(client.close())


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
def call_grpc(path: str) -> Iterator[Measure]:
    """gRPC's blocking client."""
    import grpc

    with grpc.insecure_channel(f"unix:{path}") as channel:
        echo = channel.unary_unary(f"/{SERVICE}/{METHOD}")
        yield measured(lambda payload: bytes(echo(payload, timeout=10)))


SERVERS = {"ours": serve_ours, "asyncio": serve_asyncio, "grpcio": serve_grpc}
CLIENTS = {"ours": call_ours, "asyncio": call_asyncio, "grpcio": call_grpc}


def main(role: str, make: str, path: str) -> None:
    """Serve, or call."""
    if role == "serve":
        with SERVERS[make](path):
            print(json.dumps({"ready": True}), flush=True)
            sys.stdin.read()
        return
    with CLIENTS[make](path) as measure:
        for line in sys.stdin:
            asked = json.loads(line)
            took = measure(base64.b64decode(asked["payload"]), asked["calls"])
            print(json.dumps({"took_ns": took}), flush=True)


def measured(echo: Echo) -> Measure:
    """What takes the time of a blocking call."""

    def measure(payload: bytes, calls: int) -> list[int]:
        took = []
        for _ in range(calls):
            start = time.perf_counter_ns()
            echo(payload)
            took.append(time.perf_counter_ns() - start)
        return took

    return measure


if __name__ == "__main__":
    main(*sys.argv[1:])

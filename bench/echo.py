"""A server of gRPC that answers every call with the same bytes: the least that a door of ours in Python can be."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any  # Any: grpc has no types

import grpc

from bench.peer import TIMEOUT_S
from bench.processes import started

_SERVICE, _METHOD = "echo.Echo", "Call"


@contextmanager
def echoing(folder: Path, answer: bytes) -> Iterator[Callable[..., Any]]:
    """Such a server in a process of its own, and its call."""
    socket = folder / "echo.sock"
    command = [sys.executable, "-m", "bench.echo", str(socket), answer.hex()]
    with started(command, folder / "echo.log"), grpc.insecure_channel(f"unix:{socket}") as channel:
        grpc.channel_ready_future(channel).result(TIMEOUT_S)
        yield channel.unary_unary(f"/{_SERVICE}/{_METHOD}")


def main() -> None:
    """Serve until the input ends."""
    socket, answer = sys.argv[1], bytes.fromhex(sys.argv[2])
    server = grpc.server(ThreadPoolExecutor(4))
    methods = {_METHOD: grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    sys.stdin.read()


if __name__ == "__main__":
    main()

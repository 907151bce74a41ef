"""The ends as processes, whatever they are made of."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.interop import golang

STOP_TIMEOUT_S = 10.0
GO = "go"


class EndError(Exception):
    """An end that did not do what it was asked to."""


class ClientProcess:
    """A client that waits to be measured."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def measure(self, payload: bytes, calls: int) -> list[int]:
        """Nanoseconds of each of so many calls of Echo, one after the other."""
        asked = {"op": "measure", "method": "Echo", "payload": base64.b64encode(payload).decode(), "calls": calls}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        told = json.loads(_line(self._process))
        if len(took := told.get("took_ns") or []) != calls:
            raise EndError(f"the client made {len(took)} of {calls} calls: {told}")
        return list(took)


@contextmanager
def server(make: str, path: Path) -> Iterator[None]:
    """A server of that make, from when it answers on path to its end."""
    with _process("serve", make, path) as process:
        _line(process)
        yield


@contextmanager
def client(make: str, path: Path) -> Iterator[ClientProcess]:
    """A client of that make, connected to path."""
    with _process("call", make, path) as process:
        yield ClientProcess(process)


@contextmanager
def _process(role: str, make: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = [golang.program("peer")] if make == GO else [sys.executable, "-m", "bench.ttrpc.ends"]
    words = [role, os.fspath(path)] if make == GO else [role, make, os.fspath(path)]
    with subprocess.Popen([*program, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise EndError(f"an end has ended with {process.wait(STOP_TIMEOUT_S)}")
    return line

"""The runtime's side of NRI in Go, as a process that tells its plugins what a test says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

_END_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an event came to for the runtime: its error, "" without one, and the device nodes that a container gets."""

    error: str
    devices: tuple[str, ...]
    seconds: float


class GoRuntime:
    """One process of tests/interop/go/runtime."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self.log = log

    def tell(
        self,
        event: str,
        pod: str,
        annotations: Mapping[str, str] = MappingProxyType({}),
        *,
        netns: str = "",
        container: str = "",
    ) -> Told:
        """Have every plugin told of this event, and wait for that."""
        asked = {"event": event, "pod": pod, "annotations": dict(annotations), "netns": netns, "container": container}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Told(error=answer["error"], devices=tuple(answer["devices"]), seconds=answer["seconds"])


@contextmanager
def go_runtime(program: Path, socket: Path, log: Path, *, timeout_s: float) -> Iterator[GoRuntime]:
    """Listens at the socket, and gives plugins so long for each request."""
    command = [os.fspath(program), os.fspath(socket), str(int(timeout_s * 1000))]
    with (
        log.open("wb") as stderr,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": True}, log.read_text()
        try:
            yield GoRuntime(process, log)
        finally:
            process.stdin.close()
            process.wait(_END_S)

"""A tap between a runtime and a plugin: passes everything on, and keeps what passed.

It listens where the plugin connects, connects to the runtime for each plugin that does, and knows nothing of NRI.
"""

import base64
import json
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

TO_PLUGIN, TO_RUNTIME = "plugin", "runtime"
RECORDINGS = Path(__file__).resolve().parents[1] / "unit/doors/nri/recordings"
"""What real runtimes said, a file for each; record_sessions.py writes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one read gave: which connection (from 1), when (seconds since the tap began), for whom, and the bytes."""

    connection: int
    seconds: float
    to: str
    data: bytes


class Tap:
    """Listens from construction to close(); also a context manager."""

    def __init__(self, path: Path, runtime_socket: Path) -> None:
        self.pieces: list[Piece] = []
        self._runtime_socket = runtime_socket
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._connections = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._accepting = threading.Thread(target=self._accept, name="tap")
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Hangs up on both sides and returns when nothing passes any more."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for end in self._ends:
            _hang_up(end)
        for thread in self._threads:
            thread.join()
        for end in self._ends:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                plugin, _ = self._listener.accept()
            except OSError:
                return  # close() was called
            runtime = socket.socket(socket.AF_UNIX)
            try:
                runtime.connect(str(self._runtime_socket))
            except OSError:
                plugin.close()  # no runtime: the plugin sees what it would see without us, a connection that ends
                runtime.close()
                continue
            self._connections += 1
            self._ends += [plugin, runtime]
            self._pass(runtime, plugin, TO_PLUGIN)
            self._pass(plugin, runtime, TO_RUNTIME)

    def _pass(self, source: socket.socket, target: socket.socket, to: str) -> None:
        number = self._connections

        def run() -> None:
            try:
                while data := source.recv(1 << 20):
                    with self._lock:
                        seconds = round(time.monotonic() - self._began, 4)
                        self.pieces.append(Piece(connection=number, seconds=seconds, to=to, data=data))
                    target.sendall(data)
            except OSError:
                pass  # one side is gone; the other is told below
            _hang_up(source)
            _hang_up(target)

        thread = threading.Thread(target=run, name=f"tap to {to}")
        self._threads.append(thread)
        thread.start()


def write_recording(path: Path, header: Mapping[str, str], pieces: Iterable[Piece]) -> None:
    """One JSON document per line: what was recorded, then each piece."""
    lines = [json.dumps(dict(header))]
    for piece in pieces:
        data = base64.b64encode(piece.data).decode()
        entry = {"connection": piece.connection, "seconds": piece.seconds, "to": piece.to, "data": data}
        lines.append(json.dumps(entry))
    path.write_text("\n".join(lines) + "\n")


def read_recording(path: Path) -> tuple[dict[str, str], list[Piece]]:
    """The header and the pieces of a recording."""
    header, *entries = [json.loads(line) for line in path.read_text().splitlines()]
    return header, [Piece(**entry | {"data": base64.b64decode(entry["data"])}) for entry in entries]


def _hang_up(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it was hung up already

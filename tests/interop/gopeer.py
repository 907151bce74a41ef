"""The Go peer as a server process, and as a client that does what Python asks."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self  # Any: the peer's JSON

from nri_rdma.ttrpc import Code, ConnectionClosed, RpcError
from tests.interop import golang

TIMEOUT_S = 20.0
_GONE = ("ttrpc: closed", "ttrpc: stream closed")
_LATE = "context deadline exceeded"


@contextmanager
def go_server(path: Path) -> Iterator[None]:
    """Serves peer.proto on path."""
    with subprocess.Popen(
        [golang.program("peer"), "serve", os.fspath(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": True}
        try:
            yield
        finally:
            process.stdin.close()
            process.wait(TIMEOUT_S)


class GoClient:
    """One connection of Go's client; calls may be made from any thread."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [golang.program("peer"), "call", os.fspath(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._lock = threading.Lock()  # guards the two below and the order of lines
        self._last_id = 0
        self._waiting: dict[tuple[int, str], deque[Future[dict[str, Any]]]] = defaultdict(deque)
        self._reader = threading.Thread(target=self._read, name="go-client")
        self._reader.start()

    def call(
        self,
        method: str,
        payload: bytes,
        *,
        timeout_s: float | None = TIMEOUT_S,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> bytes:
        """Call and return the answer's payload; raises as nri_rdma.ttrpc.Client does."""
        return self.begin(method, payload, timeout_s=timeout_s, metadata=metadata).result(TIMEOUT_S)

    def begin(
        self,
        method: str,
        payload: bytes,
        *,
        timeout_s: float | None = TIMEOUT_S,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> Future[bytes]:
        """Call, and wait for the answer later."""
        asked = {
            "method": method,
            "payload": _text(payload),
            "timeout_ms": int(timeout_s * 1000) if timeout_s else 0,
            "metadata": list(metadata),
        }
        told = self._ask(self._new_id(), "call", **asked)
        answer: Future[bytes] = Future()
        told.add_done_callback(lambda done: _pass_on(done, answer))
        return answer

    def measure(self, method: str, payload: bytes, calls: int) -> list[int]:
        """Make the calls one after the other; how many nanoseconds each took."""
        told = self._ask(self._new_id(), "measure", method=method, payload=_text(payload), calls=calls)
        result = told.result(TIMEOUT_S)
        _raise_for(result)
        took: list[int] = result["took_ns"]
        return took

    def open(self, method: str, *, client: bool, server: bool, payload: bytes = b"") -> GoStream:
        """Open a stream; client and server say who may send more than one message on it."""
        stream = GoStream(self, self._new_id())
        stream.do("open", method=method, client=client, server=server, payload=_text(payload))
        return stream

    def close(self) -> None:
        """End the client and wait for it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(TIMEOUT_S)
        self._reader.join(TIMEOUT_S)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _new_id(self) -> int:
        with self._lock:
            self._last_id += 1
            return self._last_id

    def _ask(self, number: int, op: str, **what: object) -> Future[dict[str, Any]]:
        told: Future[dict[str, Any]] = Future()
        line = json.dumps({"op": op, "id": number, **what}) + "\n"
        assert self._process.stdin is not None
        with self._lock:
            self._waiting[number, op].append(told)
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        return told

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            result = json.loads(line)
            with self._lock:
                told = self._waiting[result["id"], result["op"]].popleft()
            told.set_result(result)
        with self._lock:
            left = [told for queue in self._waiting.values() for told in queue]
        for told in left:
            told.set_exception(ConnectionClosed("the Go client has ended"))


class GoStream:
    """A stream of Go's client."""

    def __init__(self, client: GoClient, number: int) -> None:
        self._client = client
        self._number = number

    def do(self, op: str, **what: object) -> dict[str, Any]:
        """Have it done and raise what came of it."""
        result = self._client._ask(self._number, op, **what).result(TIMEOUT_S)
        _raise_for(result)
        return result

    def send(self, payload: bytes) -> None:
        """Send one message."""
        self.do("send", payload=_text(payload))

    def close_send(self) -> None:
        """Say that no message follows."""
        self.do("close_send")

    def receive(self) -> bytes | None:
        """Return the next message or the result; None at the end of the server's messages."""
        result = self.do("receive")
        return None if result.get("end") else _bytes(result)

    def result(self) -> bytes:
        """Say that no message follows, and return the one answer."""
        self.close_send()
        answer = self.receive()
        assert answer is not None
        return answer


def _pass_on(done: Future[dict[str, Any]], answer: Future[bytes]) -> None:
    try:
        result = done.result()
        _raise_for(result)
    except (RpcError, ConnectionClosed) as exc:
        answer.set_exception(exc)
    else:
        answer.set_result(_bytes(result))


def _raise_for(result: dict[str, Any]) -> None:
    """What Go's client returned as an error, as ours raises it."""
    code, text = result["code"], result.get("error", "")
    if not code:
        return
    if text in _GONE:
        raise ConnectionClosed(text)
    raise RpcError(Code.DEADLINE_EXCEEDED if text == _LATE else code, text)


def _text(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def _bytes(result: dict[str, Any]) -> bytes:
    return base64.b64decode(result["payload"] or "")

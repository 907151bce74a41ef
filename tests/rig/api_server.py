"""An API server on loopback: it answers what the test says, or keeps ResourceSlices and claims as the real one does."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PROTOBUF = "application/vnd.kubernetes.protobuf"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request as the server got it."""

    at: float
    method: str
    path: str
    query: dict[str, list[str]]
    token: str
    content_type: str
    accept: str
    body: Any
    """What the JSON says; bytes of protobuf."""


@dataclass
class Server:
    """`answer` may take over a request: it writes to the handler and returns True."""

    port: int = 0
    seen: list[Seen] = field(default_factory=list)
    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    claims: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By their paths."""
    answer: Callable[[BaseHTTPRequestHandler, Seen], bool] = lambda _handler, _seen: False
    changed: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)

    @property
    def writes(self) -> list[Seen]:
        return [it for it in self.seen if it.method in {"POST", "PUT", "PATCH", "DELETE"}]

    def kubeconfig(self, folder: Path, **user: Any) -> Path:
        """A file with which a client finds this server."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "kubeconfig"
        told = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{self.port}"}}],
            "users": [{"name": "u", "user": user or {"token": "secret"}}],
        }
        path.write_text(json.dumps(told))
        return path

    def forget_slices(self) -> None:
        """As a kubelet does when it starts."""
        self.slices.clear()
        self.changed.set()


def send(handler: BaseHTTPRequestHandler, status: int, told: Any) -> bool:
    """Answer with JSON."""
    data = told if isinstance(told, bytes) else json.dumps(told).encode() + b"\n"
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
    return True


def send_piece(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    """Send a chunk of a stream."""
    handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    handler.wfile.flush()


def begin_stream(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()


@contextmanager
def running() -> Iterator[Server]:
    """Serve until the end of the block."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for the client's acknowledgement of its head

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except ConnectionError:  # the client has gone
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
            pass

        def _do(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            seen = Seen(
                at=time.monotonic(),
                method=self.command,
                path=parts.path,
                query=parse_qs(parts.query),
                token=self.headers.get("Authorization", ""),
                content_type=self.headers.get("Content-Type", ""),
                accept=self.headers.get("Accept", ""),
                body=_body(self.rfile.read(length), self.headers.get("Content-Type", "")) if length else None,
            )
            server.seen.append(seen)
            if not server.answer(self, seen):
                _keep(server, self, seen)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do  # noqa: N815 - the library's names

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    listening.block_on_close = False
    server.port = listening.server_port
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.is_over.set()
        server.changed.set()
        listening.shutdown()
        listening.server_close()
        thread.join()


def _body(data: bytes, content_type: str) -> Any:
    return data if content_type == PROTOBUF else json.loads(data)


def _keep(server: Server, handler: BaseHTTPRequestHandler, seen: Seen) -> None:
    name = seen.path.removeprefix(f"{SLICES}/")
    if seen.path.startswith(CLAIMS):
        _keep_claim(server, handler, seen)
    elif seen.path.startswith("/api/v1/nodes/"):
        send(handler, 200, {"metadata": {"name": seen.path.rpartition("/")[2], "uid": "node-uid"}})
    elif seen.path == SLICES and seen.method == "POST":
        made = {**seen.body, "metadata": {**seen.body["metadata"], "name": f"slice-{len(server.seen)}"}}
        server.slices[made["metadata"]["name"]] = made
        send(handler, 201, made)
    elif seen.path == SLICES and "watch" in seen.query:
        begin_stream(handler)
        while not server.is_over.is_set():
            if server.changed.wait(0.05) and not server.is_over.is_set():
                server.changed.clear()
                send_piece(handler, b'{"type":"DELETED","object":{}}\n')
        handler.close_connection = True
    elif seen.path == SLICES:
        send(handler, 200, {"items": list(server.slices.values())})
    elif name not in server.slices:
        send(handler, 404, {"message": f"{name} not found"})
    elif seen.method == "PUT":
        server.slices[name] = seen.body
        send(handler, 200, seen.body)
    else:
        del server.slices[name]
        send(handler, 200, {"kind": "Status"})


def _keep_claim(server: Server, handler: BaseHTTPRequestHandler, seen: Seen) -> None:
    path = seen.path.removesuffix("/status")
    claim = server.claims.get(path)
    if claim is None:
        send(handler, 404, {"message": f"{path} not found"})
    elif seen.method == "PATCH":
        version = claim["metadata"]["resourceVersion"]
        if seen.body["metadata"]["resourceVersion"] != version:
            send(handler, 409, {"message": "the object has been modified"})
            return
        claim["metadata"]["resourceVersion"] = str(int(version) + 1)
        claim["status"] |= seen.body["status"]
        send(handler, 200, claim)
    else:
        send(handler, 200, claim)

"""A fake containerd: its API's containers and sandboxes, and CRI's status, over real gRPC on a unix socket.

It writes protobuf by hand, field by field, so that what it says does not come from the messages that the product reads
it with. It keeps state as the real one does: a sandbox is in the store until its RunPodSandbox has failed, its
container's record is there until somebody shuts the sandbox down.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self  # Any: grpc has no types

import grpc

from tests.rig.kubelet import fields, message, text

SANDBOX: Mapping[str, str] = {"io.cri-containerd.kind": "sandbox", "io.kubernetes.pod.name": "late"}
CONTAINER: Mapping[str, str] = {"io.cri-containerd.kind": "container"}
_LOOK_S = 0.01
_METHODS = {
    "containerd.services.containers.v1.Containers": ("Get",),
    "containerd.services.sandbox.v1.Store": ("Get",),
    "containerd.services.sandbox.v1.Controller": ("Stop", "Shutdown"),
    "runtime.v1.RuntimeService": ("Status",),
}


class Mode(StrEnum):
    """How it behaves."""

    ANSWERS = "answers"
    HANGS = "hangs"
    """Until the caller gives up, or the mode is another."""
    FAILS = "fails"
    TALKS_NONSENSE = "talks nonsense"
    FORGETS = "forgets"
    """Its controller knows no sandbox, which the real one takes for done."""


class FakeContainerd:
    """Serves from `start` to `stop`; `socket` stays the same."""

    def __init__(self) -> None:
        self.mode = Mode.ANSWERS
        self.containers: dict[str, Mapping[str, str]] = {}
        """The labels of each container's record, by id."""
        self.sandboxes: set[str] = set()
        """What its store of sandboxes has."""
        self.processes: set[str] = set()
        """The sandboxes that have a shim and a pause process. A Shutdown without a Stop leaves them, as the real one's
        does at times."""
        self.controller = "podsandbox"
        self.configuration: str | None = '{"enableCDI": true}'
        """What its CRI service says of its configuration in detail; None: nothing."""
        self.calls: list[tuple[str, str]] = []
        """Service and method in short, and the id, in order; also those that were not answered."""
        self.before: Callable[[str], None] = lambda _method: None
        """Called with each call's method before it is answered: what happens meanwhile."""
        self._folder = Path(tempfile.mkdtemp(prefix="containerd-"))
        self.socket = self._folder / "containerd.sock"
        self._server: Any = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self._folder)

    def add_left(self, sandbox_id: str) -> None:
        """A sandbox whose RunPodSandbox has failed."""
        self.containers[sandbox_id] = SANDBOX
        self.processes.add(sandbox_id)

    def add_running(self, sandbox_id: str) -> None:
        """A sandbox that starts, or runs."""
        self.add_left(sandbox_id)
        self.sandboxes.add(sandbox_id)

    @property
    def shut_down(self) -> list[str]:
        """The sandboxes that it was asked to shut down, in order."""
        return [sandbox_id for method, sandbox_id in self.calls if method == "Controller/Shutdown"]

    def start(self) -> None:
        """Serve; the socket is a new one."""
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4, thread_name_prefix="containerd"))
        for service, methods in _METHODS.items():
            handlers = {name: grpc.unary_unary_rpc_method_handler(self._handler(service, name)) for name in methods}
            self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        self._server.add_insecure_port(f"unix:{self.socket}")
        self._server.start()

    def stop(self) -> None:
        """It is gone, and so is its socket; calls under way are cut off. Again is no error."""
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._server = None
        self.socket.unlink(missing_ok=True)

    def _handler(self, service: str, method: str) -> Callable[[bytes, Any], bytes]:
        name = f"{service.rpartition('.')[2]}/{method}"
        answers = {
            "Containers/Get": self._container,
            "Store/Get": self._sandbox,
            "Controller/Stop": self._stop,
            "Controller/Shutdown": self._shut_down,
            "RuntimeService/Status": self._status,
        }

        def handle(request: bytes, context: Any) -> bytes:
            is_status = name == "RuntimeService/Status"  # StatusRequest{verbose: true} has a number
            asked = {} if is_status else {number: value.decode() for number, value in fields(request)}
            self.calls.append((name, request.hex() if is_status else asked[1]))
            self.before(name)
            return self._behave(context) or answers[name](asked, context)

        return handle

    def _behave(self, context: Any) -> bytes:
        if ("containerd-namespace", "k8s.io") not in context.invocation_metadata():
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "namespace is required")
        match self.mode:
            case Mode.HANGS:
                given_up = threading.Event()
                if context.add_callback(given_up.set):
                    while self.mode is Mode.HANGS and not given_up.wait(_LOOK_S):
                        pass
            case Mode.FAILS:
                context.abort(grpc.StatusCode.UNKNOWN, "database not open")
            case Mode.TALKS_NONSENSE:
                return b"\xff\xff"
        return b""

    def _container(self, asked: Mapping[int, str], context: Any) -> bytes:
        if asked[1] not in self.containers:
            context.abort(grpc.StatusCode.NOT_FOUND, f'container "{asked[1]}" in namespace "k8s.io": not found')
        labels = self.containers[asked[1]]
        entries = b"".join(message(2, text(1, key) + text(2, value)) for key, value in labels.items())
        return message(1, text(1, asked[1]) + entries + text(3, "registry.example/pause:3.10"))

    def _sandbox(self, asked: Mapping[int, str], context: Any) -> bytes:
        if asked[1] not in self.sandboxes:
            context.abort(grpc.StatusCode.NOT_FOUND, "no sandbox buckets: not found")
        return message(1, text(1, asked[1]))

    def _status(self, _asked: Mapping[int, str], _context: Any) -> bytes:
        conditions = message(1, message(1, text(1, "RuntimeReady")))
        told = {"golang": '"go1.24.1"'} | ({"config": self.configuration} if self.configuration is not None else {})
        return conditions + b"".join(message(2, text(1, key) + text(2, value)) for key, value in told.items())

    def _stop(self, asked: Mapping[int, str], context: Any) -> bytes:
        if asked.get(10) != self.controller or self.mode is Mode.FORGETS:
            context.abort(grpc.StatusCode.NOT_FOUND, "not found")
        self.processes.discard(asked[1])
        return b""

    def _shut_down(self, asked: Mapping[int, str], context: Any) -> bytes:
        if asked.get(10) != self.controller:
            context.abort(grpc.StatusCode.NOT_FOUND, f"failed to get sandbox controller by {asked.get(10)}: not found")
        if self.mode is not Mode.FORGETS:
            self.containers.pop(asked[1], None)
        return b""

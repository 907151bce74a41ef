"""A short registration with the runtime as an NRI plugin. Doctor learns the runtime's name and abilities by it, and
then disconnects.

The plugin changes no container, and delays no pod for longer than the registration lasts.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nri_rdma.doors.nri.messages import event_mask
from nri_rdma.doors.nri.peer import peer_pid
from nri_rdma.doors.nri.plugin import RuntimeFacts, runtime_facts
from nri_rdma.doors.nri.session import RegistrationError, Session
from nri_rdma.pb import nri_pb2 as pb
from nri_rdma.ttrpc.wire import Request
from nri_rdma.wire.error import WireError

NAME, INDEX = "nri-rdma-doctor", "99"
WAIT_S = 8.0
"""How long to wait for the runtime. It registers plugins one after the other, and waits 5 s for each plugin that does
not answer."""
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Visited:
    """The result of a short registration with the runtime. `runtime` is the runtime's description of itself; None if it
    gave none.

    `refused` says why the socket could not be reached, and `unheard` why the runtime gave no description; each is ""
    otherwise. `pid` is the runtime's process; 0 if it is not visible.
    """

    runtime: RuntimeFacts | None = None
    pid: int = 0
    refused: str = ""
    lacks_privilege: bool = False
    unheard: str = ""


class _NoAnswerError(Exception):
    """The runtime did not answer the registration in time."""


class _Visitor:
    def __init__(self) -> None:
        self.goodbye: Callable[[], None] = lambda: None
        self.runtime: RuntimeFacts | None = None

    def answer(self, request: Request) -> bytes:
        if request.method == "Configure":
            self.runtime = runtime_facts(pb.ConfigureRequest.FromString(request.payload))
            subscription: bytes = pb.ConfigureResponse(events=event_mask(["RemovePodSandbox"])).SerializeToString()
            return subscription
        if request.method == "Synchronize":
            if pb.SynchronizeRequest.FromString(request.payload).more:
                more: bytes = pb.SynchronizeResponse(more=True).SerializeToString()
                return more
            self.goodbye()  # after the answer
        return b""


def visit(path: Path, wait_s: float = WAIT_S) -> Visited:
    """Register with the runtime, receive its name and abilities, and disconnect. Blocks for at most `wait_s`
    seconds."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        lacks = isinstance(error, PermissionError)
        return Visited(refused=error.strerror or str(error), lacks_privilege=lacks)
    pid = peer_pid(connection)
    visitor = _Visitor()
    session = Session(connection, visitor, name=NAME, index=INDEX)
    visitor.goodbye = session.finish
    until = time.monotonic() + wait_s
    unheard = ""
    try:
        session.run(lambda: _end_at(until), _LOOK_S)
    except (RegistrationError, WireError, OSError, _NoAnswerError) as error:
        unheard = str(error) or type(error).__name__
    if visitor.runtime is not None:
        return Visited(runtime=visitor.runtime, pid=pid)
    return Visited(pid=pid, unheard=unheard or "it closed the connection without an answer")


def _end_at(until: float) -> None:
    if time.monotonic() >= until:
        raise _NoAnswerError("it did not answer in time")

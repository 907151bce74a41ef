"""The client of the control socket: sends questions to a running daemon."""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack
from pathlib import Path
from typing import Any  # Any: JSON documents and generated messages

from google.protobuf.message import DecodeError

from nri_rdma.doors.control.node_document import DOCUMENT_VERSION, SERVICE, json_of
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.pb import control_pb2 as pb
from nri_rdma.ttrpc import Client, Code, ConnectionClosed, RpcError

_ANSWER_TIMEOUT_S = 5.0


def ask_status(path: Path) -> dict[str, Any]:
    """Return the status document of the daemon that listens at `path`. Raises NotReadyError if no daemon answers in
    time, or if its answer is not a document of this version."""
    return _document(pb.StatusReply, _ask(path, "Status", pb.StatusRequest().SerializeToString()), path)


def ask_trace(path: Path, pod: str) -> dict[str, Any]:
    """Return the spans of a pod as a JSON document. `pod` is NAMESPACE/NAME, a name, a UID or a sandbox id; "": all
    pods.

    Raises NotReadyError if no daemon answers in time, or if its answer is not a document of this version.
    """
    return _document(pb.TraceReply, _ask(path, "Trace", pb.TraceRequest(pod=pod).SerializeToString()), path)


def _ask(path: Path, method: str, payload: bytes) -> bytes:
    try:
        with Client(_connected(path)) as client:
            return client.call(SERVICE, method, payload, timeout_s=_ANSWER_TIMEOUT_S)
    except PermissionError as error:
        raise NotReadyError(
            ErrorCode.PRIVILEGE,
            f"the control socket cannot be used: {error.strerror}",
            where=str(path),
            hint="run it as root",
        ) from error
    except (OSError, ConnectionClosed, RpcError) as error:
        if isinstance(error, TimeoutError | BlockingIOError) or (
            isinstance(error, RpcError) and error.code is Code.DEADLINE_EXCEEDED
        ):
            raise NotReadyError(
                ErrorCode.DAEMON_LATE,
                f"the daemon does not answer within {_ANSWER_TIMEOUT_S:g} s: it hangs or is stopped",
                where=str(path),
                hint="see its log and its process; restart it if it stays so: its pods keep their devices",
            ) from error
        raise NotReadyError(
            ErrorCode.DAEMON_ABSENT,
            f"the daemon does not answer: {error.strerror if isinstance(error, OSError) else error}",
            where=str(path),
            hint="start it with `nri-rdma run`, or give its --control-socket",
        ) from error


def _connected(path: Path) -> socket.socket:
    """Return a connection to the daemon. Raises OSError if it cannot be made.

    The OSError is a BlockingIOError if the daemon does not accept the connection within _ANSWER_TIMEOUT_S.
    """
    with ExitStack() as opened:
        connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        timeval = struct.pack("ll", *divmod(round(_ANSWER_TIMEOUT_S * 1e6), 10**6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
        connection.connect(str(path))
        opened.pop_all()  # the caller closes it from here on
    return connection


def _document(kind: Any, answer: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json_of(kind.FromString(answer).json)
    except DecodeError as error:
        raise _no_daemon("the answer is no document: it cannot be decoded", path) from error
    except ValueError as error:
        raise _no_daemon(f"the answer is no document: {error}", path) from error
    if not isinstance(document, dict):
        raise _no_daemon("the answer is no document: it is no JSON object", path)
    if document.get("version") != DOCUMENT_VERSION:
        raise NotReadyError(
            ErrorCode.DAEMON_ABSENT,
            f"no daemon of this version answers: version {document.get('version')} instead of {DOCUMENT_VERSION}",
            where=str(path),
            hint="restart the daemon after an upgrade",
        )
    return document


def _no_daemon(what: str, path: Path) -> NotReadyError:
    hint = "give the --control-socket of an nri-rdma daemon"
    return NotReadyError(ErrorCode.DAEMON_ABSENT, what, where=str(path), hint=hint)

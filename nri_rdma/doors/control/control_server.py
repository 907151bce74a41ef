"""The daemon's control socket, which speaks ttrpc and has mode 0600.

It answers the commands `status` and `trace`, and the guard: an OCI hook that asks before each container starts, and
keeps the container from starting without the devices that its pod asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any  # Any: JSON documents and generated messages

from google.protobuf.message import DecodeError

from nri_rdma.doors.control.node_document import DOCUMENT_VERSION, SERVICE
from nri_rdma.doors.control.status_document import DaemonFacts, guard_document, status_document
from nri_rdma.engine.guard import Guard, Subject
from nri_rdma.observe.revision import revision
from nri_rdma.observe.spans import Span
from nri_rdma.pb import control_pb2 as pb
from nri_rdma.ttrpc import Call, Code, RpcError, Server

TRACE_BYTES = 3 << 20
"""Maximum size of a trace document in bytes; the oldest spans are left out. A ttrpc message holds 4 MiB."""
MAX_CONNECTIONS = 128
"""Maximum number of connections. The OCI hook of each starting container opens one. The calls of one connection are
handled one after the other."""
VERIFY_WAIT_S = 1.0
"""How long the guard, an OCI hook that keeps a container from starting without its devices, waits for an attach that is
still running. If the attach takes longer, the container fails, and the kubelet retries after ten seconds."""
_WAY_BACK_S = 0.3
"""Seconds of a hook's timeout that are reserved for sending the answer."""
PROOF_MARGIN_S = 1.0
"""Seconds of a hook's timeout that are kept for killing the proof's process and sending the answer. A proof is a test
that RDMA works in the container."""
_ERROR_CHARACTERS = 1000


class ControlServer:
    """The server of the control socket. It serves until `close`."""

    def __init__(self, facts: DaemonFacts) -> None:
        self._facts = facts
        self._started = time.time()
        self._proof_s = facts.settings.proof_timeout
        engine, settings = facts.engine, facts.settings
        self._guard = Guard(
            engine.attachments.of,
            engine.sandboxes.get,
            engine.kubelet.claims.named,
            engine.starts.gate,
            facts.spans,
            settings.annotation_prefix,
            settings.state_dir,
        )
        self._server = Server(
            {
                (SERVICE, "Status"): self._status,
                (SERVICE, "Trace"): self._trace,
                (SERVICE, "Verify"): self._verify,
                (SERVICE, "Prove"): self._prove,
            },
            max_calls=1,
            max_connections=MAX_CONNECTIONS,
        )

    def serve(self, path: Path) -> None:
        """Listen at `path` and return at once. Raises OSError if the socket cannot be made."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._server.serve_unix(path)

    def close(self) -> None:
        """End all connections and remove the socket."""
        self._server.close()

    def _status(self, _call: Call) -> bytes:
        document = status_document(self._facts, started=self._started, guard=self._guard_document())
        document["daemon"]["revision"] = revision()
        answer: bytes = pb.StatusReply(json=json.dumps(document)).SerializeToString()
        return answer

    def _verify(self, call: Call) -> bytes:
        subject = subject_from(_decoded(pb.VerifyRequest, call))
        by = time.monotonic() + VERIFY_WAIT_S
        refusal = self._guard.verify(subject, by if call.deadline is None else min(by, call.deadline - _WAY_BACK_S))
        if not refusal and self._guard.is_to_be_proven(subject):
            if subject.pid:
                asked: bytes = pb.VerifyReply(prove_within_ms=round(self._proof_s * 1000)).SerializeToString()
                return asked
            refusal = self._guard.prove(subject, 0.0)  # the refusal says that the hook sent no pid
        return _reply(refusal)

    def _prove(self, call: Call) -> bytes:
        subject = subject_from(_decoded(pb.VerifyRequest, call))
        left_s = self._proof_s if call.deadline is None else call.deadline - time.monotonic() - PROOF_MARGIN_S
        return _reply(self._guard.prove(subject, max(0.0, min(self._proof_s, left_s))))

    def _guard_document(self) -> dict[str, Any]:
        return guard_document(self._guard.contacts, self._facts.engine.attachments.all())

    def _trace(self, call: Call) -> bytes:
        request = _decoded(pb.TraceRequest, call)
        recent = self._facts.spans.recent()
        spans = [json.dumps(_span(span)) for span in choose_spans(recent, request.pod)]
        ring = json.dumps(self._ring(recent))
        kept = ", ".join(newest_within(spans, TRACE_BYTES))
        text = f'{{"version": {DOCUMENT_VERSION}, "ring": {ring}, "spans": [{kept}]}}'
        answer: bytes = pb.TraceReply(json=text).SerializeToString()
        return answer

    def _ring(self, recent: Sequence[Span]) -> dict[str, Any]:
        """Describe the buffer that keeps the newest spans: its present size, its capacity, and the daemon's start.

        `since`, in seconds since the epoch, is the earliest time from which on all of this daemon's spans are still in
        the buffer.
        """
        capacity, oldest = self._facts.spans.capacity, recent[0].end_ns / 1e9 if recent else self._started
        since = oldest if len(recent) >= capacity else min(oldest, self._started)
        return {"spans": len(recent), "capacity": capacity, "since": since, "started": self._started}


def _reply(refusal: str) -> bytes:
    answer: bytes = pb.VerifyReply(complete=not refusal, refusal=refusal).SerializeToString()
    return answer


def _decoded(kind: Any, call: Call) -> Any:
    """Return the decoded message of a call. Raises RpcError with INVALID_ARGUMENT if it cannot be decoded."""
    try:
        return kind.FromString(call.payload)
    except DecodeError as error:
        raise RpcError(Code.INVALID_ARGUMENT, str(error)) from error


def newest_within(texts: Sequence[str], size: int) -> Sequence[str]:
    """Return the last texts that together fit into `size` bytes, in their order. The texts are ASCII."""
    for start in range(len(texts) - 1, -1, -1):
        size -= len(texts[start]) + 2
        if size < 0:
            return texts[start + 1 :]
    return texts


def subject_from(message: Any) -> Subject:
    """Return the container that a VerifyRequest describes."""
    return Subject(
        sandbox_id=message.sandbox_id,
        pod=message.pod,
        container=message.container,
        container_id=message.container_id,
        annotations=dict(message.annotations),
        devices={node.path: (node.major, node.minor) for node in message.devices},
        env=frozenset(message.env),
        pool=message.pool,
        cdi_device=message.cdi_device,
        claims=tuple(message.claims),
        resource=message.resource,
        pid=message.pid,
        memlock=message.memlock if message.HasField("memlock") else None,
        indexes=dict(message.indexes),
        bundle=message.bundle,
    )


def choose_spans(spans: Iterable[Span], pod: str) -> tuple[Span, ...]:
    """Return all spans of the traces in which the pod occurs, sorted by start. `pod` is NAMESPACE/NAME, a name, a UID
    or a sandbox id; "": all spans."""
    kept = tuple(spans)
    if pod:
        traces = {span.trace_id for span in kept if pod in _pod_words(span)}
        kept = tuple(span for span in kept if span.trace_id in traces)
    return tuple(sorted(kept, key=lambda span: (span.start_ns, -span.end_ns)))


def _pod_words(span: Span) -> set[object]:
    words: set[object] = {span.attributes.get(key) for key in ("k8s.pod.name", "k8s.pod.uid", "sandbox")}
    words.add(str(span.attributes.get("k8s.pod.name", "")).partition("/")[2])
    return words


def _span(span: Span) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
        "parent_id": f"{span.parent_id:016x}" if span.parent_id else "",
        "links": [{"trace_id": f"{trace:032x}", "span_id": f"{linked:016x}"} for trace, linked in span.links],
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "attributes": span.attributes,
        "error": span.error[:_ERROR_CHARACTERS],
    }

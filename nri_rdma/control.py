"""The control socket: what the daemon tells `status` and `trace` in JSON documents, and its word to the guard's hook.
Our own ttrpc, mode 0600."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any  # Any: JSON documents and generated messages

import msgspec
from google.protobuf.message import DecodeError

from nri_rdma import __version__
from nri_rdma.alignments import Aligned
from nri_rdma.allocations import Allocations
from nri_rdma.attach.plan import NetdevMove
from nri_rdma.attach.sandbox import Sandbox
from nri_rdma.attach.sandboxes import Sandboxes
from nri_rdma.cgroup import read_rdma_use
from nri_rdma.config import Settings
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.guard import Contacts, Guard, Subject
from nri_rdma.inventory import netdev_of
from nri_rdma.lifecycle import Lifecycle
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.device import Node
from nri_rdma.model.pci import parse_pci_address
from nri_rdma.model.request import UNLIMITED
from nri_rdma.nodesource import NodeSource
from nri_rdma.nri.link import Door
from nri_rdma.nri.plugin import RuntimeFacts
from nri_rdma.observe.spans import Recorder, Span
from nri_rdma.pb import control_pb2 as pb
from nri_rdma.policy import Policy, offer
from nri_rdma.ttrpc import Call, Client, ConnectionClosed, RpcError, Server

SERVICE = "nri_rdma.control.v1.Control"
DOCUMENT_VERSION = 1
TRACE_BYTES = 3 << 20
"""A ttrpc message holds 4 MiB; older spans are left out of an answer."""
MEMLOCK_IS_SET = "the setting memlock says so"
UNSTARTED_S = 30.0
"""A container that was answered for starts sooner, or something keeps it from it."""
MAX_CONNECTIONS = 128
"""A hook has one for each container that starts; calls of one wait for each other, those of two do not."""
VERIFY_WAIT_S = 1.0
"""How long a hook waits for an attach that is about to end; the kubelet's next attempt is ten seconds away."""
NO_GUARD = "while this daemon is dead, pods start without their devices"
UNGUARDED = "containers started that it did not ask about: their runtime handler has no guard"
_ANSWER_TIMEOUT_S = 5.0
_WAY_BACK_S = 0.3
"""What a hook's time-out leaves for the answer."""
_ERROR_CHARACTERS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonFacts:
    """What the control socket reads; it changes nothing."""

    settings: Settings
    node: NodeSource
    lifecycle: Lifecycle
    allocations: Allocations
    sandboxes: Sandboxes
    door: Door
    spans: Recorder
    runtime: Callable[[], RuntimeFacts]
    reload_error: Callable[[], str]
    pinned: Callable[[], Mapping[str, int]] = dict
    """What pins network namespaces: how many there are, the threads and sockets inside, and how many a call that
    hangs keeps from closing."""


class ControlServer:
    """Serves the control socket until closed."""

    def __init__(self, facts: DaemonFacts) -> None:
        self._facts = facts
        self._started = time.time()
        self._guard = Guard(facts.sandboxes.of, facts.spans, facts.settings.annotation_prefix, facts.settings.state_dir)
        self._server = Server(
            {
                (SERVICE, "Status"): self._status,
                (SERVICE, "Trace"): self._trace,
                (SERVICE, "Verify"): self._verify,
            },
            max_calls=1,
            max_connections=MAX_CONNECTIONS,
        )

    def serve(self, path: Path) -> None:
        """Listen; returns at once. Raises OSError."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._server.serve_unix(path)

    def close(self) -> None:
        """End all connections and remove the socket."""
        self._server.close()

    def _status(self, _call: Call) -> bytes:
        document = status_document(self._facts, started=self._started, guard=self._guard_document())
        answer: bytes = pb.StatusReply(json=json.dumps(document)).SerializeToString()
        return answer

    def _verify(self, call: Call) -> bytes:
        subject = subject_from(pb.VerifyRequest.FromString(call.payload))
        by = time.monotonic() + VERIFY_WAIT_S
        refusal = self._guard.verify(subject, by if call.deadline is None else min(by, call.deadline - _WAY_BACK_S))
        answer: bytes = pb.VerifyReply(complete=not refusal, refusal=refusal).SerializeToString()
        return answer

    def _guard_document(self) -> dict[str, Any]:
        return guard_document(self._guard.contacts, self._facts.sandboxes.all())

    def _trace(self, call: Call) -> bytes:
        request = pb.TraceRequest.FromString(call.payload)
        spans = [json.dumps(_span(span)) for span in choose_spans(self._facts.spans.recent(), request.pod)]
        text = f'{{"version": {DOCUMENT_VERSION}, "spans": [{", ".join(newest_within(spans, TRACE_BYTES))}]}}'
        answer: bytes = pb.TraceReply(json=text).SerializeToString()
        return answer


def ask_status(path: Path) -> dict[str, Any]:
    """The status document of the daemon that serves `path`. Raises NotReadyError when it cannot be asked."""
    return _document(pb.StatusReply, _ask(path, "Status", pb.StatusRequest().SerializeToString()), path)


def ask_trace(path: Path, pod: str) -> dict[str, Any]:
    """The trace document for a pod (namespace/name, name, uid or sandbox id); of all pods when it is "". Raises as
    ask_status."""
    return _document(pb.TraceReply, _ask(path, "Trace", pb.TraceRequest(pod=pod).SerializeToString()), path)


def _ask(path: Path, method: str, payload: bytes) -> bytes:
    try:
        with Client(path) as client:
            return client.call(SERVICE, method, payload, timeout_s=_ANSWER_TIMEOUT_S)
    except PermissionError as error:
        raise NotReadyError(
            ErrorCode.PRIVILEGE,
            f"the daemon may not be asked: {error.strerror}",
            where=str(path),
            hint="run it as root",
        ) from error
    except (OSError, ConnectionClosed, RpcError) as error:
        raise NotReadyError(
            ErrorCode.DAEMON_ABSENT,
            f"the daemon does not answer: {error.strerror if isinstance(error, OSError) else error}",
            where=str(path),
            hint="start it with `nri-rdma run`, or give its --control-socket",
        ) from error


def _document(kind: Any, answer: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json_of(kind.FromString(answer).json)
    except DecodeError as error:
        raise _no_daemon("the answer is no document: it is no message of ours", path) from error
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


def json_of(text: str | bytes) -> object:
    """What a JSON text says. Raises ValueError for every text that is none, with a reason for people."""
    try:
        value: object = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as error:
        raise ValueError("a number in it has too many digits") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return value


def newest_within(texts: Sequence[str], size: int) -> Sequence[str]:
    """The last of these ASCII texts that fit into `size` bytes together."""
    for start in range(len(texts) - 1, -1, -1):
        size -= len(texts[start]) + 2
        if size < 0:
            return texts[start + 1 :]
    return texts


def subject_from(message: Any) -> Subject:
    """The container of a VerifyRequest."""
    return Subject(
        sandbox_id=message.sandbox_id,
        pod=message.pod,
        container=message.container,
        container_id=message.container_id,
        annotations=dict(message.annotations),
        devices={node.path: (node.major, node.minor) for node in message.devices},
        env=frozenset(message.env),
    )


def guard_document(contacts: Contacts, sandboxes: Iterable[Sandbox]) -> dict[str, Any]:
    """Which guard has asked since the boot, how often since our start and, in seconds since the epoch, when last; and
    the containers that started and were not asked about."""
    unguarded = [f"{it.pod}, container {name}" for it in sandboxes for name in sorted(it.unguarded.copy())]
    told = {**asdict(contacts), "unguarded": unguarded}
    if not contacts.last:
        return {"active": "none", "warning": NO_GUARD, **told}
    return {"active": "createRuntime hook", "warning": UNGUARDED if unguarded else "", **told}


def status_document(facts: DaemonFacts, *, started: float, guard: dict[str, Any]) -> dict[str, Any]:
    """What `status` shows, and what `explain` decides with: node_from reads the node out of it again."""
    policy, current = facts.lifecycle.chooser.policy, facts.node.current
    node = node_document(current)
    taken = facts.allocations.taken()
    for device in node["devices"]:
        holders = taken.get(device["id"], frozenset())
        device["holders"] = [
            {"pod": it.owner, "mode": str(it.mode), "gpus": sorted(map(str, it.gpus))}
            for it in sorted(holders, key=lambda it: it.owner)
        ]
    return {
        "version": DOCUMENT_VERSION,
        "daemon": {"version": __version__, "pid": os.getpid(), "started": started},
        "runtime": _runtime(facts),
        "guard": guard,
        "sysfs_root": str(facts.settings.sysfs_root),
        "annotation_prefix": facts.settings.annotation_prefix,
        "pools": _pools(policy, current),
        "policy": policy_document(policy),
        "adopt": adoption_document(facts.lifecycle.adopter.adoption),
        "cdi_specs_read": facts.lifecycle.adopter.majors is not None,
        "kubelet_tells": facts.lifecycle.adopter.kubelet_tells,
        "reload_error": facts.reload_error(),
        "memlock": _memlock(facts),
        "namespaces_held": facts.sandboxes.held(),
        "pinned": dict(facts.pinned()),
        **node,
        "sandboxes": [_sandbox(sandbox) for sandbox in facts.sandboxes.all()],
        "rdma_use": list(_rdma_use(facts)),
        "from_others": [asdict(sighting) for sighting in facts.lifecycle.adopter.sightings()],
        "alignment": [_aligned(item) for item in facts.lifecycle.adopter.alignments.all()],
        "unserved_count": facts.lifecycle.reconciliation.count,
        "unserved": [{"pod": str(item.pod), "why": item.why} for item in facts.lifecycle.unserved],
    }


def policy_document(policy: Policy) -> dict[str, Any]:
    """A policy as JSON: every fact of it."""
    document: dict[str, Any] = msgspec.to_builtins({"pools": dict(policy.pools), "rules": policy.rules})
    return {**document, "char_kinds": sorted(policy.char_kinds)}


def adoption_document(adoption: Adoption) -> dict[str, Any]:
    """What is done with devices from others, as JSON."""
    vendors = {vendor: msgspec.to_builtins(item) for vendor, item in adoption.vendors.items()}
    return {"others": msgspec.to_builtins(adoption.others), "vendors": vendors}


def policy_from(document: Mapping[str, Any]) -> Policy:
    """The policy of a document that `policy_document` made. Raises NotReadyError when there is none in it."""
    try:
        policy: Policy = msgspec.convert(document["policy"], Policy)
    except (KeyError, msgspec.ValidationError) as error:
        raise NotReadyError(
            ErrorCode.DAEMON_ABSENT,
            f"the document has no policy: {error}",
            hint="restart the daemon after an upgrade",
        ) from error
    return policy


def _pools(policy: Policy, node: Node) -> list[dict[str, Any]]:
    """The pools with the names of the devices that each has now."""
    offered = offer(policy, node)
    return [
        {
            "name": pool.name,
            "modes": [str(mode) for mode in pool.modes],
            "devices": [device.name for device in offered.by_pool[pool.name]],
            "contested": [device.name for device in node.devices if pool.name in offered.contested.get(device.id, ())],
        }
        for pool in policy.pools.values()
    ]


def _runtime(facts: DaemonFacts) -> dict[str, Any]:
    runtime = facts.runtime()
    return {
        "link": str(facts.door.link),
        "name": runtime.name,
        "version": runtime.version,
        "nri": runtime.abilities.nri_text,
        "lacks": list(runtime.abilities.lacks),
        "socket": str(facts.settings.nri_socket),
        "launched": facts.door.launched,
        "error": facts.door.last_error,
    }


def node_document(node: Node) -> dict[str, Any]:
    """A node as JSON, for `status`, `inventory` and `explain`: every fact of it, and some words for people."""
    document: dict[str, Any] = msgspec.to_builtins(node)
    for told, gpu in zip(document["gpus"], node.gpus, strict=True):
        told["pci"] = str(gpu.pci)
    for told, device in zip(document["devices"], node.devices, strict=True):
        told["pci"] = str(device.pci) if device.pci is not None else None
        if device.virtual is not None:
            told["virtual"]["pf"] = str(device.virtual.pf)
        told["link_layer"] = device.link_layer
        told["speed_gbps"] = device.speed_gbps
        told["state"] = device.ports[0].state if device.ports else None
    return document


def node_from(document: Mapping[str, Any]) -> Node:
    """The node of a document that `node_document` is part of. Raises NotReadyError when there is none in it."""
    try:
        node: Node = msgspec.convert(
            {
                **document,
                "devices": [_device_fields(device) for device in _mappings(document, "devices")],
                "gpus": [{**gpu, "pci": _pci_fields(gpu["pci"])} for gpu in _mappings(document, "gpus")],
            },
            Node,
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise NotReadyError(
            ErrorCode.DAEMON_ABSENT,
            f"the document describes no node: {error}",
            hint="restart the daemon after an upgrade",
        ) from error
    return node


def _mappings(document: Mapping[str, Any], key: str) -> Sequence[dict[str, Any]]:
    items = document[key]
    if not isinstance(items, list | tuple) or not all(isinstance(item, dict) for item in items):
        raise TypeError(f"{key} is no list of mappings")
    return items


def _device_fields(device: Mapping[str, Any]) -> dict[str, Any]:
    virtual = device.get("virtual")  # a document before this field has none
    if virtual is not None:
        virtual = {**virtual, "pf": _pci_fields(virtual["pf"])}
    return {**device, "pci": _pci_fields(device["pci"]), "virtual": virtual}


def _pci_fields(text: str | None) -> dict[str, int] | None:
    address = parse_pci_address(text) if text else None
    return asdict(address) if address is not None else None


def choose_spans(spans: Iterable[Span], pod: str) -> tuple[Span, ...]:
    """The spans of all traces in which the pod occurs, by start; all spans when `pod` is ""."""
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
        "start_ns": span.start_ns,
        "end_ns": span.end_ns,
        "attributes": span.attributes,
        "error": span.error[:_ERROR_CHARACTERS],
    }


def _sandbox(sandbox: Sandbox) -> dict[str, Any]:
    record = sandbox.record
    return {
        "id": sandbox.pod.sandbox_id,
        "part": sandbox.part,
        "pod": str(sandbox.pod),
        "uid": sandbox.pod.uid,
        "state": str(sandbox.state),
        "devices": [item.device.name for it in record.attached for item in it.devices] if record is not None else [],
        "isolation": str(record.isolation or "") if record is not None else "",
        "moves": [_move(move) for move in record.plan.moves] if record is not None else [],
        "undo_error": sandbox.undo_error,
        "unstarted": list(_unstarted(sandbox, time.monotonic())),
    }


def _unstarted(sandbox: Sandbox, now: float) -> Iterator[dict[str, Any]]:
    """Containers that were answered for and did not start: again, or for longer than a start takes."""
    for container, item in sandbox.unstarted.copy().items():
        if item.answers > 1 or now - item.since > UNSTARTED_S:
            yield {"container": container, "answers": item.answers, "seconds": round(now - item.since, 1)}


def _rdma_use(facts: DaemonFacts) -> Iterator[dict[str, Any]]:
    """What containers use and may, read from their cgroups now: of the devices that were given to them, and of any
    other that they use or are limited for. A container whose cgroup is gone has none."""
    for sandbox in facts.sandboxes.all():
        for container, cgroups_path in sandbox.containers.copy().items():
            given = _given_to(facts.sandboxes.of(sandbox.pod.sandbox_id), container)
            for use in read_rdma_use(facts.settings.cgroup_root, cgroups_path):
                if use.device in given or use.is_noteworthy:
                    yield {
                        "pod": str(sandbox.pod),
                        "sandbox": sandbox.pod.sandbox_id,
                        "container": container,
                        **asdict(use),
                    }


def _given_to(parts: tuple[Sandbox, ...], container: str) -> frozenset[str]:
    attached = [it for sandbox in parts if sandbox.record is not None for it in sandbox.record.attached]
    covering = [it for it in attached if it.admitted.request.scope.covers(container)]
    return frozenset(item.device.name for it in covering for item in it.devices)


def _aligned(item: Aligned) -> dict[str, Any]:
    """How near a container's devices are to its GPUs: by its farthest pair, pair by pair, and in words."""
    alignment = item.alignment
    return {
        "pod": item.pod,
        "container": item.container,
        "gpus": [str(pci) for pci in alignment.gpus],
        "gpus_from": alignment.source,
        "distance": alignment.worst.name if alignment.worst is not None else None,
        "pairs": [{"device": it.device, "gpu": str(it.gpu), "distance": it.far.name} for it in alignment.pairs],
        "words": alignment.words,
        "problem": alignment.contradiction or alignment.problem,
    }


def _move(move: NetdevMove) -> dict[str, Any]:
    """A netdev that is in a pod, as it was on the host."""
    return {"device": move.device, "pod_name": move.pod_name, "netdev": asdict(netdev_of(move.link))}


def _memlock(facts: DaemonFacts) -> dict[str, Any]:
    value, dropped_by = facts.lifecycle.default_memlock, facts.lifecycle.chooser.memlock_dropped_by
    reason = MEMLOCK_IS_SET
    if dropped_by:
        reason = f"{dropped_by} does not set it for plugins"
    elif facts.settings.memlock.automatic:
        reason = _ceiling_words(value, facts.lifecycle.chooser.memlock_ceiling)
    return {
        "bytes": value,
        "reason": reason,
        "ceiling": facts.lifecycle.chooser.memlock_ceiling,
        "dropped_by": dropped_by,
    }


def _ceiling_words(value: int | None, ceiling: int) -> str:
    if value is not None:
        return "the runtime may raise it"
    if ceiling == UNLIMITED:
        return "no runtime has been heard of yet"
    return f"the runtime may not raise it above {ceiling} bytes"

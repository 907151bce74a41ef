"""The state of claims' devices on this node, by CDI device: attached to a pod, being returned to the host, or failed.

Law: a change is reported in the thread that causes it, which may be the thread that answers the runtime. So a listener
only notes the change and returns; it reads the new state later, in a thread of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.containers import ContainerProof
from nri_rdma.attach.plan import NetdevMove
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.decide.advertised import slice_name
from nri_rdma.decide.inject import AttachedDevice, AttachedRequest
from nri_rdma.decide.proving import proven_of
from nri_rdma.engine.engine import Engine
from nri_rdma.errors import NotReadyError, NriRdmaError
from nri_rdma.model.carried import carried_address
from nri_rdma.model.claim import GivenDevice, GivenProof
from nri_rdma.model.device import CharKind

ClaimNews = Callable[[frozenset[str], str], None]
"""A listener for changes: called with the CDI devices whose state has changed, and with the error text if their attach
failed, otherwise "". It must not block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiState:
    """The state of a CDI device: attached to a pod, or being returned to the host."""

    given: tuple[GivenDevice, ...] = ()
    """The RDMA devices that a pod has for it; empty while they are being returned."""
    is_returning: bool = False
    undo_error: str = ""
    """The last error of the return, if it failed and is retried."""


class ClaimStates:
    """The states of all CDI devices that pods have, and the listeners for their changes. Thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._attachments = engine.attachments
        self.on_news: list[ClaimNews] = []
        engine.attachments.on_begun.append(self._begun)
        engine.on_refused.append(self._report)
        engine.starts.gate.on_proven.append(lambda names: self._report(names, None))

    def _begun(self, attachment: Attachment) -> None:
        known = weakref.ref(attachment)  # its futures would keep the attachment alive until a garbage collection
        attachment.attach_done.add_done_callback(partial(self._settled, known))
        attachment.undo_done.add_done_callback(partial(self._settled, known))

    def _settled(self, known: weakref.ref[Attachment], done: Future[None]) -> None:
        attachment = known()
        names = attachment.now.cdi_devices if attachment is not None else frozenset[str]()
        if names:
            self._report(names, None if done.cancelled() else done.exception())

    def _report(self, names: frozenset[str], error: BaseException | None) -> None:
        """Report a change of these CDI devices to the listeners. A NotReadyError does not count as a failure: the pod
        ends, or the kubelet retries."""
        why = (
            ""
            if error is None or isinstance(error, NotReadyError)
            else error.for_author
            if isinstance(error, NriRdmaError)
            else str(error)
        )
        for listener in self.on_news:
            listener(names, why)

    def now(self) -> dict[str, CdiState]:
        """Return the state of each CDI device that is attached to a pod, or is being returned and is not attached to
        another pod."""
        found: dict[str, CdiState] = {}
        for attachment in self._attachments.all():
            record = attachment.now.record
            if record is None:
                continue
            if attachment.shown is Phase.ATTACHED:
                oldest = next(iter(self._attachments.of(attachment.pod.sandbox_id)), attachment)
                found.update(_given(record, oldest.containers.proofs.copy()))
            elif attachment.shown is Phase.RETURNING and not attachment.now.is_given_up:
                for name in attachment.now.cdi_devices:
                    found.setdefault(name, CdiState(is_returning=True, undo_error=attachment.now.undo_error))
        return found


def _given(record: SandboxRecord, proofs: Mapping[str, ContainerProof]) -> dict[str, CdiState]:
    by_name: dict[str, tuple[GivenDevice, ...]] = {}
    for item in record.attached:
        name = item.admitted.request.cdi_device
        if name:
            given = [replace(_device(record, item, it), proof=_proof(item, proofs)) for it in item.devices]
            by_name[name] = (*by_name.get(name, ()), *given)
    return {name: CdiState(given=given) for name, given in by_name.items()}


def _proof(item: AttachedRequest, proofs: Mapping[str, ContainerProof]) -> GivenProof | None:
    """Return the result of the proofs in a request's containers: the first failed proof if there is one, else the first
    proof; None if nothing was proven."""
    own = [it for name, it in proofs.items() if proven_of((item,), name)]
    refused = [it for it in own if it.code]
    return next((GivenProof(code=it.code, words=it.why or "; ".join(it.ports)) for it in (*refused, *own)), None)


def _device(record: SandboxRecord, request: AttachedRequest, it: AttachedDevice) -> GivenDevice:
    ports = {netdev.ifindex for netdev in it.device.netdevs}
    move = next((move for move in record.plan.moves if move.link.ifindex in ports), None)
    return GivenDevice(
        device=slice_name(it.device.id),
        rdma_device=it.device.name,
        nodes=tuple(_nodes(record, request, it)),
        mode=request.admitted.mode,
        interface=move.pod_name if move is not None else "",
        mac=move.config.mac or move.link.mac if move is not None else "",
        addresses=tuple(_addresses(move)) if move is not None else (),
    )


def _nodes(record: SandboxRecord, request: AttachedRequest, it: AttachedDevice) -> Iterator[str]:
    kinds = request.admitted.request.char_kinds
    yield from (char.path for char in it.device.char_devices if char.kind in kinds)
    if record.rdma_cm is not None and CharKind.RDMA_CM in kinds:
        yield record.rdma_cm.path


def _addresses(move: NetdevMove) -> Iterator[str]:
    """Yield the addresses that were given to the netdev, without the link-local address that the kernel adds."""
    yield from map(str, move.addresses)
    for brought in move.inherited.addresses:
        said = carried_address(brought.thing)
        if said is not None:
            yield str(said.own)

"""The state of claims' devices on this node, by CDI device: what pods have, what is being returned, and what failed.

Law: news are reported in the thread that causes them, which may be the one that answers the runtime. So a listener
notes them and returns; it asks for the present state later, in a thread of its own.
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
"""Called with CDI devices whose state has changed, and with the reason if their attach failed, else "". It must not
block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CdiState:
    """The state of a CDI device: the devices that a pod has for it, or "is being returned", with the last error."""

    given: tuple[GivenDevice, ...] = ()
    is_returning: bool = False
    undo_error: str = ""


class ClaimStates:
    """Safe for use by several threads."""

    def __init__(self, engine: Engine) -> None:
        self._attachments = engine.attachments
        self.on_news: list[ClaimNews] = []
        engine.attachments.on_begun.append(self._begun)
        engine.on_refused.append(self._report)
        engine.starts.gate.on_proven.append(lambda names: self._report(names, None))

    def _begun(self, attachment: Attachment) -> None:
        known = weakref.ref(attachment)  # its own futures would keep it alive until a garbage collection
        attachment.attach_done.add_done_callback(partial(self._settled, known))
        attachment.undo_done.add_done_callback(partial(self._settled, known))

    def _settled(self, known: weakref.ref[Attachment], done: Future[None]) -> None:
        attachment = known()
        names = attachment.now.cdi_devices if attachment is not None else frozenset[str]()
        if names:
            self._report(names, None if done.cancelled() else done.exception())

    def _report(self, names: frozenset[str], error: BaseException | None) -> None:
        """Report a change. A NotReadyError is no failure: the pod ends, or comes again."""
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
        """Return the state of each CDI device that a pod has, or gives back while no other pod has it."""
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
    """Return what came of the proofs of a request's containers: the first refusal, if there is one."""
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
    """Yield the addresses that the netdev got; the kernel's own link-local one is none of them."""
    yield from map(str, move.addresses)
    for brought in move.inherited.addresses:
        said = carried_address(brought.thing)
        if said is not None:
            yield str(said.own)

"""Verifies pods that run already: whether one of their containers lacks devices that the pod asks for, or its
limits."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from typing import TypeAlias

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.holdings import Holdings
from nri_rdma.attach.record import Phase
from nri_rdma.decide.granted import lacks
from nri_rdma.decide.inject import AttachedRequest, inject
from nri_rdma.engine.container import Listed, ListedContainer
from nri_rdma.engine.evidence import EvidenceCollector
from nri_rdma.engine.limiter import Limiter
from nri_rdma.engine.offering import Offering
from nri_rdma.engine.pod_claims import PodClaims
from nri_rdma.engine.sandbox import Unserved
from nri_rdma.errors import LimitsError, NriRdmaError
from nri_rdma.model.device import CharDevice
from nri_rdma.model.request import env_name
from nri_rdma.text.annotations import asks_for_devices

_NOT_RUNNING = (errno.ENOENT, errno.ESRCH)
"""The errors of writing limits for a container that has not started yet or has ended."""
_WHILE_AWAY = "made while nri-rdma was away"


RememberAlignment: TypeAlias = Callable[[Listed, ListedContainer, tuple[AttachedRequest, ...]], None]
"""Remembers how near a container's devices are to its GPUs. Never raises."""


class Verifier:
    """Verifies the pods of the runtime's list. Reads and writes cgroups, so only a worker may call it."""

    def __init__(
        self,
        attachments: Attachments,
        evidence: EvidenceCollector,
        claims: PodClaims,
        offering: Offering,
        limiter: Limiter,
        prefix: str,
        remember_alignment: RememberAlignment,
    ) -> None:
        """`prefix` is the prefix of nri-rdma's annotations."""
        self._remember_alignment = remember_alignment
        self._attachments = attachments
        self._evidence = evidence
        self._claims = claims
        self._offering = offering
        self._limiter = limiter
        self._prefix = prefix

    def unserved(self, item: Listed) -> Unserved | None:
        """Return which of a pod's containers lack devices that it asks for, or their limits, and why; None if they lack
        nothing. Missing limits are written first."""
        holdings = self._attachments.of(item.pod.sandbox_id)
        return self._limit_again(item, holdings) or self._bare(item, holdings)

    def remember_alignments(self, item: Listed) -> None:
        """Remember how near the devices of a pod's containers are to their GPUs. Otherwise this is remembered when
        containers start, but these started before this daemon."""
        attached = self._attachments.of(item.pod.sandbox_id).attached
        for container in item.containers if attached else ():
            self._remember_alignment(item, container, attached)

    def _limit_again(self, item: Listed, holdings: Holdings) -> Unserved | None:
        """Write the rdma limits of a pod's containers; return which of them could not be limited, None if all were.

        A container has no limits yet if it started while the daemon was down, or if an earlier daemon ended before the
        container started.
        """
        attached = Holdings(tuple(it for it in holdings if it.now.phase is Phase.ATTACHED))
        lacking: dict[str, str] = {}
        for container in item.containers:
            try:
                self._limiter.limit_alone(attached, container.name, container.cgroups_path, None)
            except LimitsError as error:
                if error.errno not in _NOT_RUNNING:
                    lacking[container.name] = str(error)
        return _unserved(item, " ".join(lacking.values()), lacking)

    def _bare(self, item: Listed, holdings: Holdings) -> Unserved | None:
        everyone = [it.name for it in item.containers]
        if holdings.own is None and asks_for_devices(item.annotations, self._prefix):
            return _unserved(item, f"its containers were {_WHILE_AWAY}", everyone)
        try:
            self._claims.look_at(item.pod, holdings.by_cdi_device)
        except NriRdmaError as error:
            return _unserved(item, f"it may have claims that were not attached at its start; {error.what}", everyone)
        attached = holdings.attached
        given = {share for it in attached for share in it.admitted.request.shares}
        lacking = [it.name for it in item.containers if any(share not in given for _, share in it.shares)]
        if lacking:
            return _unserved(item, f"container {', '.join(lacking)} has shares and was {_WHILE_AWAY}", lacking)
        early = [it.name for it in item.containers if any(_was_made_before(it.name, part) for part in holdings)]
        if early or any(it.now.record is None or it.now.phase is not Phase.ATTACHED for it in holdings):
            return _unserved(item, f"container {', '.join(early)} was {_WHILE_AWAY}", early)
        bare = [it.name for it in item.containers if self._is_bare(item, it, attached, holdings.rdma_cm)]
        return _unserved(item, f"container {', '.join(bare)} was {_WHILE_AWAY}", bare)

    def _is_bare(
        self,
        item: Listed,
        container: ListedContainer,
        attached: tuple[AttachedRequest, ...],
        rdma_cm: CharDevice | None,
    ) -> bool:
        """Return whether a running container lacks device nodes or variables that CreateContainer would give to it now.
        `rdma_cm` is the node of the RDMA connection manager."""
        if inject(attached, rdma_cm, container.name, (), container.devices, None).char_devices:
            return True
        covering = [it for it in attached if it.admitted.request.scope.covers(container.name)]
        # A CDI device brings its device nodes itself. Only our variables show that CreateContainer was answered by us.
        own = (it.admitted.request for it in covering)
        if any(it.cdi_device and f"RDMA_DEVICES_{env_name(it.name)}" not in container.env for it in own):
            return True
        known = item.container(container)
        if not self._evidence.concerns(known):
            return False
        devices = frozenset(it.device.id for item in covering for it in item.devices)
        evidence = self._evidence.read(known)
        self._evidence.note(known, evidence, devices)
        return lacks(evidence.grants, (it.admitted.request for it in attached), self._offering.adoption)


def _unserved(item: Listed, why: str, containers: Iterable[str]) -> Unserved | None:
    """Return that these containers of a pod lack something; None if there are none."""
    names = tuple(containers)
    return Unserved(pod=item.pod, why=why, containers=names) if names else None


def _was_made_before(container: str, attachment: Attachment) -> bool:
    """Return whether an existing container was created without the daemon: the attachment has devices for it, but its
    attach is not done or failed, and CreateContainer is answered only after the attach."""
    done, record = attachment.attach_done, attachment.now.record
    if done.done() and done.exception() is None:
        return False
    return record is None or any(item.admitted.request.scope.covers(container) for item in record.attached)

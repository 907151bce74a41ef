"""Attaches devices when a container is created, because its CDI devices or shares were not reported at the pod's start.

The kubelet may have answered too late, this daemon may not have run then, and the kubelet never reports init
containers. Law: a container gets devices for all its CDI devices and shares, or an error, or "not ready yet". What is
attached here belongs to the container's sandbox and ends with it.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from concurrent.futures import Future

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.holdings import Holdings
from nri_rdma.cdi.grants import CdiGrant
from nri_rdma.decide.decision import Question
from nri_rdma.decide.lacking import Attach, Cover, Evidence, Need, Share, lacking
from nri_rdma.decide.share_requests import requests_for, unknown_ids
from nri_rdma.engine.asking import NOTHING_ASKED, Asked
from nri_rdma.engine.barrier import Barrier
from nri_rdma.engine.container import Container
from nri_rdma.engine.evidence import EvidenceCollector
from nri_rdma.engine.kubelet import KubeletEvidence
from nri_rdma.engine.placer import Placer
from nri_rdma.engine.refusals import (
    being_attached,
    forged_shares,
    lacks_guard,
    late_attach_failed,
    returning,
    unknown_share,
    unknown_shares,
)
from nri_rdma.engine.sandbox import Sandboxes
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import PodRequest
from nri_rdma.tasks.waiting import all_settled, wait
from nri_rdma.text.share_annotations import forged

ATTEMPTS = 3
"""How often it is tried to attach devices for a container that is being created. After that the container is refused
with the last error."""


class LateAttach:
    """Attaches devices for containers that are being created. Called by the thread that reads the runtime's events, so
    for one container at a time. Deadlines `by` are in seconds of `time.monotonic`."""

    def __init__(
        self,
        attachments: Attachments,
        known: Sandboxes,
        placer: Placer,
        barrier: Barrier,
        evidence: EvidenceCollector,
        kubelet: KubeletEvidence,
    ) -> None:
        self._attachments = attachments
        self._known = known
        self._placer = placer
        self._barrier = barrier
        self._evidence = evidence
        self._kubelet = kubelet

    def refuse_unclear_shares(self, container: Container) -> None:
        """Raise NotReadyError if the pod's author set the annotation that only the kubelet may set, or if the container
        got device-plugin shares without the guard. The guard is an OCI hook that keeps a container from starting
        without its devices."""
        key = forged(container.annotations)
        if key:
            raise forged_shares(container.pod, container.name, key)
        unguarded = self._kubelet.shares.unguarded(container)
        if unguarded:
            raise lacks_guard(container.pod, container.name, unguarded)

    def complete(self, container: Container, evidence: Evidence, holdings: Holdings, by: float) -> Holdings:
        """Attach the devices that other programs gave to the container (`evidence`) and that its sandbox lacks
        (`holdings`: its attachments). Return the sandbox's attachments afterwards. Raise NriRdmaError if a device
        cannot be attached, and NotReadyError if it is not attached by `by` (seconds of `time.monotonic`)."""
        if container.shares:  # the shares of an attachment are known only when it is attached
            for it in holdings:
                self._barrier.await_attached(it, by)
        needs = lacking(evidence, holdings.held, self._kubelet.shares.pools_by_id)
        for need in needs:
            self._serve(need, container, holdings, by)
        return holdings.with_late(self._attachments.of(container.sandbox_id)) if needs else holdings

    # -- below -------------------------------------------------------------------------------------------------------

    def _serve(self, need: Need, container: Container, holdings: Holdings, by: float) -> None:
        match need:
            case Cover():
                holder = next(it for it in holdings if it.part == need.part)
                self._cover(holder, need, container.name, by)
            case Attach():
                self._attach(need, container, holdings, by)

    def _cover(self, holder: Attachment, need: Cover, container: str, by: float) -> None:
        """Add the container to those that get the devices of the attachment `holder`, or remove it if `need.is_given`
        is false. Raise NotReadyError if this is not done by `by` (seconds of `time.monotonic`), or if `holder` is being
        undone after a failure."""
        self._barrier.await_attached(holder, by)
        if holder.covers(need.name, container) is need.is_given:
            return
        covered = self._attachments.cover(holder, need.name, container, is_covered=need.is_given)
        if not wait(covered, by - time.monotonic()):
            raise being_attached(holder.pod, container)

    def _attach(self, need: Attach, container: Container, holdings: Holdings, by: float) -> None:
        """Select devices for the CDI devices and shares of the step `need`, and attach them as a further attachment of
        the sandbox. Attach nothing if the setting `adopt` says that CDI devices are only reported. Raise PlacementError
        if no device can be selected, and NotReadyError if the attach is not done by `by` (seconds of `time.monotonic`)
        or an earlier one failed."""
        self._refuse_unknown(container, need.shares)
        pod, name, own = container.pod, container.name, holdings.own
        if (own is not None and own.now.ends) or self._known.has_ended(pod.sandbox_id):
            raise returning(pod)
        self._report_failure(pod, name)
        older = self._attachments.end_older(pod)
        if older and not all_settled(older, by):
            raise being_attached(pod, name)
        asked = self._asked(container, need.shares) if need.shares else NOTHING_ASKED

        def ask() -> Question:  # CDI devices are read anew: an older sandbox's devices, or a port, may be back
            grants = self._bare_now(container) if need.grants else ()
            return self._placer.question(pod, container.asker, grants, asked)

        part, key = self._attachments.of(pod.sandbox_id).free_key(pod.sandbox_id, name)
        chosen = self._placer.place(key, pod, ask, by)
        if chosen.placed:
            attachment = self._attachments.begin(pod, chosen.placed, chosen.rdma_cm, part)
            if not wait(attachment.attach_done, by - time.monotonic()):
                attachment.attach_done.add_done_callback(lambda done: self._remember(pod, name, done))
                raise being_attached(pod, name)
        if need.shares:
            self._kubelet.shares.told(container.shares)

    def _bare_now(self, container: Container) -> tuple[CdiGrant, ...]:
        """Read the container's CDI devices again, and return those for which nothing is attached."""
        holdings = self._attachments.of(container.sandbox_id)
        grants = self._evidence.read(container, holdings).grants
        return tuple(grant for grant in grants if not any(grant.name in it.now.cdi_devices for it in holdings))

    def _asked(self, container: Container, shares: Collection[Share]) -> Asked:
        """Return the request that follows from the container's `shares`: pairs of a resource and a device id that the
        kubelet allocated. The request has the pod's GPUs if the kubelet reports them."""
        given = self._attachments.of(container.sandbox_id).share_devices
        requests = requests_for(self._kubelet.shares.pools, container.name, shares, given)
        gpus = self._kubelet.gpus_told(self._kubelet.ask(container.pod)) if self._kubelet.asks_about_gpus else None
        return Asked(request=PodRequest(requests=requests), gpus=gpus)

    def _refuse_unknown(self, container: Container, shares: Collection[Share]) -> None:
        pools = self._kubelet.shares.pools.values()
        known = {pool.resource for pool in pools}
        for resource, _ in shares:
            if resource not in known:
                raise unknown_shares(container.pod, container.name, resource)
        for pool in pools:
            for share in unknown_ids(pool, (share for resource, share in shares if resource == pool.resource)):
                raise unknown_share(container.pod, container.name, share, pool)

    def _remember(self, pod: Pod, container: str, done: Future[None]) -> None:
        """Remember why a late attach failed, so that the container's next attempt is refused with this reason. The
        attach had gone on in the background after its container was refused as not ready; `done` is its future."""
        error = None if done.cancelled() else done.exception()
        if error is not None and not self._known.has_ended(pod.sandbox_id):
            self._known.take(pod.sandbox_id).remember_late_failure(container, str(error))

    def _report_failure(self, pod: Pod, container: str) -> None:
        """Raise NotReadyError with the reason for which the container's last late attach failed. Each failure is raised
        once; then the container may try again. After ATTEMPTS failures it is raised every time, and nothing more is
        attached."""
        known = self._known.get(pod.sandbox_id)
        failed = known.late_failures.get(container) if known is not None else None
        if failed is None or (failed.is_told and failed.times < ATTEMPTS):
            return
        failed.is_told = True
        raise late_attach_failed(pod, container, failed.why, is_over=failed.times >= ATTEMPTS)

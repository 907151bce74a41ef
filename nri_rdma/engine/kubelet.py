"""What the kubelet allocated to pods.

Law: the kubelet is asked once per pod, within its own budget, before the pod's sandbox runs. What it does not report in
time is found out when the containers are created.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from nri_rdma.cdi.grants import CdiGrant, Origin, grants_of
from nri_rdma.decide.gpus import PodGpus, pod_gpus
from nri_rdma.decide.share_requests import known_shares, share_requests
from nri_rdma.engine.pod_claims import PodClaims
from nri_rdma.engine.sandbox import Sandboxes
from nri_rdma.engine.shares import ShareBook
from nri_rdma.engine.specs import SpecCache
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import DeviceRequest
from nri_rdma.tasks.waiting import settled

log = logging.getLogger(__name__)

_WAIT_S = 0.2
"""How long the placement of a pod waits for a reading of specs; then the pod is placed with what is known."""


class Kubelet(Protocol):
    """Reports what was allocated to pods."""

    @property
    def is_there(self) -> bool:
        """Return whether the node has a kubelet to ask."""

    @property
    def tells(self) -> bool:
        """Return whether the kubelet has answered."""

    def of_pod(self, namespace: str, name: str) -> PodAllocation | None:
        """Return the pod's allocation; None: the kubelet does not know the pod. Raise KubeletError, after its budget at
        the latest."""

    def checkpoint(self) -> bytes:
        """Return the kubelet's checkpoint of claims; nothing where there is none, and on a node that serves no
        claims."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletWord:
    """The kubelet's allocation for a pod, or None with the reason why it does not report. Both empty: there is no
    kubelet. `is_unknown_pod`: the kubelet answers, and does not know the pod."""

    allocation: PodAllocation | None = None
    problem: str = ""
    is_unknown_pod: bool = False


class KubeletEvidence:
    """Safe for use by several threads."""

    def __init__(self, kubelet: Kubelet | None, shares: ShareBook, specs: SpecCache, sandboxes: Sandboxes) -> None:
        self.kubelet = kubelet
        self.shares = shares
        """The shares of the pools that are asked by a resource."""
        self.claims = PodClaims(self._checkpoint, lambda pod: self.ask(pod).allocation, specs, sandboxes)
        """The claims of our driver that pods have."""
        self._specs = specs
        self._sandboxes = sandboxes

    @property
    def tells(self) -> bool:
        """Return whether a kubelet reports its allocations."""
        return self.kubelet is not None and self.kubelet.tells

    @property
    def is_there(self) -> bool:
        """Return whether there is a kubelet to ask."""
        return self.kubelet is not None and self.kubelet.is_there

    @property
    def asks_about_devices(self) -> bool:
        """Return whether there are CDI devices that concern us and may be any pod's, and a kubelet that allocates
        them."""
        return self.kubelet is not None and self._specs.now.index.is_for_any

    @property
    def asks_about_gpus(self) -> bool:
        """Return whether the node has GPUs, and a kubelet that may report whose they are."""
        return bool(self._specs.now.gpu_names.gpus) and self.is_there

    @property
    def asks_about_shares(self) -> bool:
        """Return whether the kubelet has allocated shares of our pools to a pod that is not known yet."""
        return self.shares.is_pending

    def share_requests(self, allocation: PodAllocation | None) -> tuple[DeviceRequest, ...]:
        """Return what the shares in the kubelet's answer ask for; ids that its pool does not have ask for nothing."""
        if allocation is None or not self.shares.pools:
            return ()
        return share_requests(self.shares.pools, known_shares(self.shares.pools, allocation))

    def ask(self, pod: Pod) -> KubeletWord:
        """Return what the kubelet allocated to the pod. Blocks for its budget at most."""
        if self.kubelet is None or not self.kubelet.is_there:
            return KubeletWord()
        try:
            allocation = self.kubelet.of_pod(pod.namespace, pod.name)
        except NriRdmaError as error:
            log.warning("the kubelet does not tell what it allocated", extra={"pod": str(pod), "error": str(error)})
            return KubeletWord(problem=f"{error.what} ({error.code})")
        if allocation is None:
            return KubeletWord(problem="the kubelet does not know this pod", is_unknown_pod=True)
        if allocation.named:
            self._sandboxes.take(pod.sandbox_id).allocation = allocation
        return KubeletWord(allocation=allocation)

    def gpus_told(self, word: KubeletWord) -> PodGpus | None:
        """Return what the kubelet's answer says of a pod's GPUs; None: there is no kubelet. Wait for a reading of the
        specs where the answer names CDI devices that no spec had: drivers write specs moments before."""
        if word.allocation is None:
            return PodGpus(unanswered=word.problem, is_unknown_pod=word.is_unknown_pod) if word.problem else None
        claimed = (name for container in word.allocation.containers for name in container.cdi_devices)
        unread = self._specs.unread(claimed)
        if unread:
            settled(self._specs.reading_for(unread), _WAIT_S)
        return self.gpus_of(word.allocation)

    def gpus_of(self, allocation: PodAllocation) -> PodGpus | None:
        """Return what an answer of the kubelet says of a pod's GPUs, from memory; None on a node without any."""
        now = self._specs.now
        return pod_gpus(allocation, now.gpu_names, now.registry.devices) if now.gpu_names.gpus else None

    def grants(self, allocation: PodAllocation | None) -> tuple[CdiGrant, ...]:
        """Return the CDI devices in the kubelet's answer that concern us."""
        if allocation is None:
            return ()
        index = self._specs.now.index
        return tuple(
            grant
            for container in allocation.containers
            for grant in grants_of(index, container.name, dict.fromkeys(container.cdi_devices, Origin.KUBELET))
        )

    def _checkpoint(self) -> bytes | None:
        return self.kubelet.checkpoint() if self.kubelet is not None else None

"""The devices, claims and shares that the kubelet allocated to pods.

Law: the kubelet is asked once per pod, within a budget of time, before the pod's sandbox runs. What it does not report
in time is found out when the pod's containers are created.
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
"""How long the placement of a pod waits for a reading of CDI specs. After it, devices are selected with what is
known."""


class Kubelet(Protocol):
    """The kubelet of this node, which reports its allocations to pods."""

    @property
    def is_there(self) -> bool:
        """Whether the node has a kubelet that can be asked."""

    @property
    def tells(self) -> bool:
        """Whether the kubelet has answered at least one question about allocations."""

    def of_pod(self, namespace: str, name: str) -> PodAllocation | None:
        """Return the pod's allocation; None: the kubelet does not know the pod. Raise KubeletError if the kubelet does
        not answer within its budget of time."""

    def checkpoint(self) -> bytes:
        """Return the content of the kubelet's checkpoint file of claims; empty if there is no file, or if this node
        serves no claims. Raise KubeletError if it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletWord:
    """The answer of the kubelet about a pod. If `allocation` is None and `problem` is empty, there is no kubelet that
    can be asked."""

    allocation: PodAllocation | None = None
    problem: str = ""
    """Why the kubelet does not report the allocation."""
    is_unknown_pod: bool = False
    """Whether the kubelet answered that it does not know the pod."""


class KubeletEvidence:
    """Asks the kubelet about pods, and compares its answers with CDI specs and pools. Thread-safe."""

    def __init__(self, kubelet: Kubelet | None, shares: ShareBook, specs: SpecCache, sandboxes: Sandboxes) -> None:
        self.kubelet = kubelet
        self.shares = shares
        """The pools from which pods request by a device-plugin resource, and their shares (the allocated units) whose
        pod is not known yet."""
        self.claims = PodClaims(self._checkpoint, lambda pod: self.ask(pod).allocation, specs, sandboxes)
        """The claims of nri-rdma's DRA driver that pods have."""
        self._specs = specs
        self._sandboxes = sandboxes

    @property
    def tells(self) -> bool:
        """Whether the kubelet has answered at least one question about allocations."""
        return self.kubelet is not None and self.kubelet.tells

    @property
    def is_there(self) -> bool:
        """Whether there is a kubelet that can be asked."""
        return self.kubelet is not None and self.kubelet.is_there

    @property
    def asks_about_devices(self) -> bool:
        """Whether the kubelet has to be asked about each pod's CDI devices: there is a kubelet, and some CDI device
        that concerns nri-rdma may belong to any pod."""
        return self.kubelet is not None and self._specs.now.index.is_for_any

    @property
    def asks_about_gpus(self) -> bool:
        """Whether the node has GPUs, and a kubelet that may report which pods have them."""
        return bool(self._specs.now.gpu_names.gpus) and self.is_there

    @property
    def asks_about_shares(self) -> bool:
        """Whether the kubelet has allocated shares (units of nri-rdma's device-plugin resources), and it is not known
        yet to which pod. Then the kubelet has to be asked about each new pod."""
        return self.shares.is_pending

    def share_requests(self, allocation: PodAllocation | None) -> tuple[DeviceRequest, ...]:
        """Return the requests that follow from the device-plugin shares in a pod's allocation. Share ids that the pool
        does not have are ignored."""
        if allocation is None or not self.shares.pools:
            return ()
        return share_requests(self.shares.pools, known_shares(self.shares.pools, allocation))

    def ask(self, pod: Pod) -> KubeletWord:
        """Ask the kubelet what it allocated to the pod. Blocks for at most the kubelet's budget of time."""
        if self.kubelet is None or not self.kubelet.is_there:
            return KubeletWord()
        try:
            allocation = self.kubelet.of_pod(pod.namespace, pod.name)
        except NriRdmaError as error:
            log.warning("the kubelet does not report what it allocated", extra={"pod": str(pod), "error": str(error)})
            return KubeletWord(problem=f"{error.what} ({error.code})")
        if allocation is None:
            return KubeletWord(problem="the kubelet does not know this pod", is_unknown_pod=True)
        allocation = allocation.without(self.shares.guard_resource)  # an admission policy gives it to every container
        if allocation.named:
            self._sandboxes.take(pod.sandbox_id).allocation = allocation
        return KubeletWord(allocation=allocation)

    def gpus_told(self, word: KubeletWord) -> PodGpus | None:
        """Return a pod's GPUs according to the kubelet's answer `word`; None: there is no kubelet. If the answer names
        CDI devices that are in no spec, wait briefly until the specs are read again: a driver may just have written
        one."""
        if word.allocation is None:
            return PodGpus(unanswered=word.problem, is_unknown_pod=word.is_unknown_pod) if word.problem else None
        claimed = (name for container in word.allocation.containers for name in container.cdi_devices)
        unread = self._specs.unread(claimed)
        if unread:
            settled(self._specs.reading_for(unread), _WAIT_S)
        return self.gpus_of(word.allocation)

    def gpus_of(self, allocation: PodAllocation) -> PodGpus | None:
        """Return a pod's GPUs according to an allocation, from memory; None on a node without GPUs."""
        now = self._specs.now
        return pod_gpus(allocation, now.gpu_names, now.registry.devices) if now.gpu_names.gpus else None

    def grants(self, allocation: PodAllocation | None) -> tuple[CdiGrant, ...]:
        """Return the CDI devices in the kubelet's answer that concern nri-rdma."""
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

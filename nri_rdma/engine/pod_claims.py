"""The claims of nri-rdma's DRA driver that pods have, and which of them no container of the pod names.

The kubelet's checkpoint file says which pods have a claim. The kubelet writes it before it starts the pod's sandbox; it
also has the pods about which no call of the kubelet informs a driver, and it outlives the daemon. The kubelet's
PodResources API says which containers name a claim. A claim that no container names belongs to the whole pod. Law: if
one of these sources cannot be read, the pods that may have a claim are refused, and no other pods. While the checkpoint
cannot be read, that is every pod, unless the last reading had no claim and no CDI spec of one is on the node.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from nri_rdma.cdi.grants import CdiGrant, Origin, grants_of
from nri_rdma.decide.advertised import CLAIM_KIND, DRIVER
from nri_rdma.engine.sandbox import Sandboxes
from nri_rdma.engine.specs import SpecCache
from nri_rdma.errors import ErrorCode, KubeletError, NotReadyError
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.claim import Claim
from nri_rdma.model.pod import Pod
from nri_rdma.text.kubelet_checkpoint import FILE, claimed, may_have

log = logging.getLogger(__name__)

_OURS = CLAIM_KIND.qualified("")
"""The beginning of the names of claims' CDI devices."""


class PodClaims:
    """Reads the claims of pods from the kubelet. Thread-safe."""

    def __init__(
        self,
        read: Callable[[], bytes | None],
        ask: Callable[[Pod], PodAllocation | None],
        specs: SpecCache,
        sandboxes: Sandboxes,
    ) -> None:
        """`read` returns the content of the kubelet's checkpoint file; None: there is no kubelet. `ask` returns what
        the kubelet allocated to a pod; None: the kubelet does not report it."""
        self._read = read
        self._ask = ask
        self._specs = specs
        self._sandboxes = sandboxes
        self._has_claims = False
        """Whether a claim of nri-rdma's driver was in the checkpoint when it was last read, or was prepared since."""

    def may_have(self, pod_uid: str) -> bool:
        """Return whether the pod may have claims of nri-rdma's driver. Runs for every pod of a node that serves claims,
        so it is cheap."""
        try:
            return may_have(self._checkpoint(), pod_uid, DRIVER)
        except KubeletError:
            return True

    def of(self, pod_uid: str) -> tuple[str, ...]:
        """Return the CDI devices of the pod's claims. Raise KubeletError if the pod may have a claim, but the
        checkpoint cannot be read."""
        return claimed(self._checkpoint(), pod_uid, DRIVER)

    def grants(self, pod: Pod, claimed: tuple[str, ...], allocation: PodAllocation | None) -> tuple[CdiGrant, ...]:
        """Return the CDI devices that are for all containers of the pod: those in `claimed` that no container names.
        Raise NotReadyError if the kubelet has not reported which containers name claims, or if a spec was not read
        yet."""
        unnamed = _unnamed(pod, claimed, allocation)
        if not unnamed:
            return ()
        index = self._specs.now.index
        unread = next((name for name in unnamed if not index.has_read(name)), None)
        if unread is not None:
            if self._specs.unread([unread]):
                self._specs.reading_for([unread])
            raise NotReadyError(
                ErrorCode.NOT_READY,
                f"network is not ready: no CDI spec has {unread}, which the pod has by a claim",
                where=str(pod),
                hint="nothing to do: the kubelet tries again",
            )
        grants = grants_of(index, "", dict.fromkeys(unnamed, Origin.KUBELET))
        return tuple(replace(grant, for_all=True) for grant in grants)

    def note_listed(self, pods: Iterable[Pod]) -> None:
        """Remember which pods of the runtime's list may have claims. `look_at` reads these claims later, when the next
        container of the pod is created."""
        try:
            checkpoint = self._checkpoint()
        except KubeletError:
            checkpoint = None  # any pod may have some
        for pod in pods if checkpoint != b"" else ():
            has_some = checkpoint is None or may_have(checkpoint, pod.uid, DRIVER)
            if has_some and not self._sandboxes.has_ended(pod.sandbox_id):
                self._sandboxes.take(pod.sandbox_id).has_unseen_claims = True

    def look_at(self, pod: Pod, attached: Collection[str]) -> None:
        """Find out which of a listed pod's claims no container names, and remember their CDI devices in the sandbox's
        object. `attached`: the CDI devices for which the sandbox has attachments. Raise KubeletError or NotReadyError
        if the claims cannot be read."""
        known = self._sandboxes.get(pod.sandbox_id)
        if known is None or not known.has_unseen_claims:
            return
        names = self.of(pod.uid)
        if not set(names) <= set(attached):
            known.unnamed = _unnamed(pod, names, self._ask(pod))
        known.has_unseen_claims = False

    def named(self, sandbox_id: str, pod: str) -> Collection[str] | None:
        """Return the CDI devices that the containers of a pod (NAMESPACE/NAME) name; None if the kubelet does not
        report them. Blocks for at most the kubelet's budget of time."""
        namespace, _, name = pod.partition("/")
        asked = Pod(sandbox_id=sandbox_id, uid="", name=name, namespace=namespace, netns_path="")
        known = self._sandboxes.get(sandbox_id)
        allocation = (known.allocation if known is not None else None) or self._ask(asked)
        return _named_in(allocation) if allocation is not None else None

    def refuse_untold(self, claim: Claim) -> None:
        """Raise KubeletError if the kubelet's checkpoint file cannot be read, or lacks a claim that the kubelet is
        having prepared now. Then the daemon does not see the present file, and would not find the claim's pods."""
        checkpoint = self._read()
        if checkpoint is not None and claim.uid.encode() not in checkpoint:
            raise KubeletError(
                ErrorCode.KUBELET_STATE,
                f"the kubelet's {FILE} is not here or does not have this claim, so its pods are not known",
                where=f"claim {claim.namespace}/{claim.name}",
                hint="mount the kubelet's folder /var/lib/kubelet into the daemon's container, as docs/claims.md says",
            )
        self._has_claims = self._has_claims or checkpoint is not None

    def _checkpoint(self) -> bytes:
        """Return the content of the kubelet's checkpoint file, empty if there is none. Raise KubeletError if it cannot
        be read now and a claim of nri-rdma's driver may be in it: it had one when it was last read, or this or an
        earlier daemon wrote a CDI spec for one, or the specs are not read yet. Otherwise no claim counts as there:
        where the file can never be read, `refuse_untold` lets no claim be prepared."""
        try:
            content = self._read() or b""
        except KubeletError as error:
            specs = self._specs
            if self._has_claims or not specs.is_ready or any(it.startswith(_OURS) for it in specs.now.registry.devices):
                raise
            log.warning("the kubelet's claims are not known", extra={"error": str(error)})
            return b""
        self._has_claims = DRIVER.encode() in content
        return content


def _unnamed(pod: Pod, claimed: tuple[str, ...], allocation: PodAllocation | None) -> tuple[str, ...]:
    """Return those of a pod's claimed CDI devices that no container names. Raise NotReadyError if the kubelet has not
    reported the pod's allocation."""
    if not claimed:
        return ()
    if allocation is None:
        raise NotReadyError(
            ErrorCode.NOT_READY,
            "network is not ready: the kubelet has not reported which containers name the pod's claims",
            where=str(pod),
            hint="nothing to do: the kubelet tries again; if this repeats, see `nri-rdma doctor`",
        )
    named = _named_in(allocation)
    return tuple(name for name in claimed if name not in named)


def _named_in(allocation: PodAllocation) -> frozenset[str]:
    return frozenset(name for container in allocation.containers for name in container.cdi_devices)

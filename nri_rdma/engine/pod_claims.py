"""The claims of our driver that pods have, and which of them no container names.

The kubelet's checkpoint says which pods have a claim: it is there before any of their sandboxes, names also those of
which no call tells a driver, and outlives the daemon. PodResources says which containers name one. A claim that none
names is the whole pod's. Law: what cannot be read or is not told refuses the pods that may have a claim, never others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from nri_rdma.cdi.grants import CdiGrant, Origin, grants_of
from nri_rdma.decide.advertised import DRIVER
from nri_rdma.engine.sandbox import Sandboxes
from nri_rdma.engine.specs import SpecCache
from nri_rdma.errors import ErrorCode, KubeletError, NotReadyError
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.claim import Claim
from nri_rdma.model.pod import Pod
from nri_rdma.text.kubelet_checkpoint import FILE, claimed, may_have


class PodClaims:
    """Safe for use by several threads."""

    def __init__(
        self,
        read: Callable[[], bytes | None],
        ask: Callable[[Pod], PodAllocation | None],
        specs: SpecCache,
        sandboxes: Sandboxes,
    ) -> None:
        """`read` returns the kubelet's checkpoint; None: there is no kubelet. `ask` returns what the kubelet allocated
        to a pod; None where it does not tell."""
        self._read = read
        self._ask = ask
        self._specs = specs
        self._sandboxes = sandboxes

    def may_have(self, pod_uid: str) -> bool:
        """Return whether the pod may have claims. Every pod of a node that serves claims waits for this."""
        return may_have(self._read() or b"", pod_uid, DRIVER)

    def of(self, pod_uid: str) -> tuple[str, ...]:
        """Return the CDI devices of the claims that the pod has. Raise KubeletError where it may have one and that
        cannot be read."""
        return claimed(self._read() or b"", pod_uid, DRIVER)

    def grants(self, pod: Pod, claimed: tuple[str, ...], allocation: PodAllocation | None) -> tuple[CdiGrant, ...]:
        """Return those of a pod's claimed CDI devices that none of its containers names: they are for all of them.
        Raise NotReadyError where the kubelet has not told which containers name one, or a spec is not read."""
        unnamed = _unnamed(pod, claimed, allocation)
        if not unnamed:
            return ()
        index = self._specs.now.index
        unread = next((name for name in unnamed if not index.has_read(name)), None)
        if unread is not None:
            raise NotReadyError(
                ErrorCode.NOT_READY,
                f"network is not ready: no CDI spec has {unread}, which the pod has by a claim",
                where=str(pod),
                hint="nothing to do: the kubelet tries again",
            )
        grants = grants_of(index, "", dict.fromkeys(unnamed, Origin.KUBELET))
        return tuple(replace(grant, for_all=True) for grant in grants)

    def note_listed(self, pods: Iterable[Pod]) -> None:
        """Remember which of the pods that the runtime lists may have claims: what they have of them is looked at with
        their next container."""
        checkpoint = self._read() or b""
        for pod in pods if checkpoint else ():
            if may_have(checkpoint, pod.uid, DRIVER) and not self._sandboxes.has_ended(pod.sandbox_id):
                self._sandboxes.take(pod.sandbox_id).has_unseen_claims = True

    def look_at(self, pod: Pod, attached: Collection[str]) -> None:
        """Find out what a listed pod has of claims that no container names; `attached` are the CDI devices that its
        sandbox has something attached for. Raise KubeletError, NotReadyError."""
        known = self._sandboxes.get(pod.sandbox_id)
        if known is None or not known.has_unseen_claims:
            return
        names = self.of(pod.uid)
        if not set(names) <= set(attached):
            known.unnamed = _unnamed(pod, names, self._ask(pod))
        known.has_unseen_claims = False

    def named(self, sandbox_id: str, pod: str) -> Collection[str] | None:
        """Return the CDI devices that the containers of a pod (NAMESPACE/NAME) name; None where the kubelet does not
        tell. Blocks for its budget at most."""
        namespace, _, name = pod.partition("/")
        asked = Pod(sandbox_id=sandbox_id, uid="", name=name, namespace=namespace, netns_path="")
        known = self._sandboxes.get(sandbox_id)
        allocation = (known.allocation if known is not None else None) or self._ask(asked)
        return _named_in(allocation) if allocation is not None else None

    def refuse_untold(self, claim: Claim) -> None:
        """Raise KubeletError where the checkpoint does not have a claim that the kubelet has prepared now: then we do
        not see the present one, and would not know the claim's pods."""
        checkpoint = self._read()
        if checkpoint is not None and claim.uid.encode() not in checkpoint:
            raise KubeletError(
                ErrorCode.KUBELET_STATE,
                f"the kubelet's {FILE} is not here or does not have this claim, so its pods are not known",
                where=f"claim {claim.namespace}/{claim.name}",
                hint="mount the kubelet's folder /var/lib/kubelet into the daemon's container, as docs/claims.md says",
            )


def _unnamed(pod: Pod, claimed: tuple[str, ...], allocation: PodAllocation | None) -> tuple[str, ...]:
    """Return the CDI devices that no container names."""
    if not claimed:
        return ()
    if allocation is None:
        raise NotReadyError(
            ErrorCode.NOT_READY,
            "network is not ready: the kubelet has not told which containers name the pod's claims",
            where=str(pod),
            hint="nothing to do: the kubelet tries again",
        )
    named = _named_in(allocation)
    return tuple(name for name in claimed if name not in named)


def _named_in(allocation: PodAllocation) -> frozenset[str]:
    return frozenset(name for container in allocation.containers for name in container.cdi_devices)

"""The devices that the node offers to pods now: its last scan, filtered by the administrator's policy."""

from __future__ import annotations

from dataclasses import dataclass

from nri_rdma.cdi.grants import CdiGrant
from nri_rdma.decide.decision import MemlockBounds, Question
from nri_rdma.decide.placement import prepare
from nri_rdma.decide.policy import Offer, Policy, offer
from nri_rdma.decide.proving import asks_proof
from nri_rdma.engine.asking import Asked
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.device import Node
from nri_rdma.model.pool import Asker, PoolDoor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """The offer of a policy on a node; computed once per policy and node, not per pod."""

    policy: Policy
    node: Node
    offer: Offer
    has_ties: bool
    """Whether some device of the node cannot be given to one pod exclusively."""

    @classmethod
    def of(cls, policy: Policy, node: Node) -> _Offered:
        prepare(node)
        has_ties = any(device.ties for device in node.devices)
        return cls(policy=policy, node=node, offer=offer(policy, node), has_ties=has_ties)


class Offering:
    """The policy and the other settings under which pods' requests are decided. Thread-safe."""

    def __init__(self, node: NodeCache, policy: Policy, adoption: Adoption, memlock: MemlockBounds) -> None:
        self._node = node
        self.adoption = adoption
        """The administrator's settings for RDMA devices that other programs give to containers."""
        self.policy = policy
        """The pools of this node, and the rules that say which pods may use them. A new policy applies to new pods;
        existing pods keep their devices."""
        self.memlock = memlock
        """The RLIMIT_MEMLOCK that the runtime gives to containers, as far as it is known."""
        self._offered = _Offered.of(policy, node.current)
        node.on_read.append(self._node_was_read)

    @property
    def offer(self) -> Offer:
        """The devices of each pool, according to the last scan of the node."""
        return self._offered_on(self._node.current).offer

    @property
    def has_claims(self) -> bool:
        """Whether pods may use a pool by claims. True also if the configuration cannot be read, because it may have
        such a pool."""
        return bool(self.policy.closed) or any(pool.door is PoolDoor.CLAIMS for pool in self.policy.pools.values())

    def proven(self, asked: Asked) -> str:
        """Return the place (for example an annotation) of the pod's first own request that says `prove`: RDMA has to be
        tested in its containers before they start. Return "" if no request says so."""
        request = asks_proof(self.policy, asked.request.requests)
        return request.where if request is not None else ""

    def question(self, owner: str, asker: Asker, asked: Asked, grants: tuple[CdiGrant, ...]) -> Question:
        """Return the input for `decide`: what the pod or container `owner` asks for (`asked`, and its CDI devices
        `grants`), and the present state of node, policy and runtime."""
        offered = self._offered_on(self._node.current)
        return Question(
            owner=owner,
            asker=asker,
            adoption=self.adoption,
            node=offered.node,
            policy=offered.policy,
            offer=offered.offer,
            has_ties=offered.has_ties,
            memlock=self.memlock,
            request=asked.request,
            allocation=asked.allocation,
            gpus=asked.gpus,
            grants=grants,
        )

    def _node_was_read(self) -> None:
        """Compute the offer after a scan, so that no pod has to wait for the computation."""
        self._offered_on(self._node.current)

    def _offered_on(self, node: Node) -> _Offered:
        policy, offered = self.policy, self._offered
        if offered.policy is not policy or offered.node is not node:
            self._offered = offered = _Offered.of(policy, node)
        return offered

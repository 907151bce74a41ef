"""A pool that is asked by a resource, on the described node "eight"."""

from nri_rdma.decide.policy import Offer, offer, policy_of
from nri_rdma.model.device import Node
from nri_rdma.model.pool import Pool, PoolDoor, ShareGives
from nri_rdma.model.request import Mode

RESOURCE = "rdma/hca_shared"


def pool(shares: int = 16, gives: ShareGives = ShareGives.ONE, name: str = "hcas", resource: str = RESOURCE) -> Pool:
    """A pool of all devices."""
    return Pool(name=name, modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource=resource, shares=shares, gives=gives)


def offered(one: Pool, node: Node) -> Offer:
    """What a node offers of the pool."""
    return offer(policy_of((one,), (), allow_default_pool=False), node)

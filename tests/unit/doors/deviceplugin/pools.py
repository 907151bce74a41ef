"""Pools that are asked by a resource, on the described node "eight"."""

from nri_rdma.decide.placement import Taken
from nri_rdma.decide.policy import Offer, offer, policy_of
from nri_rdma.doors.deviceplugin.answers import Supply
from nri_rdma.model.device import Node, RdmaDevice
from nri_rdma.model.pool import Pool, PoolDoor, ShareGives
from nri_rdma.model.request import Mode

RESOURCE, NIC = "rdma/hca_shared", "rdma/nic"
NOBODY: Taken = {}


def pool(shares: int = 16, gives: ShareGives = ShareGives.ONE, name: str = "hcas", resource: str = RESOURCE) -> Pool:
    """A pool of all devices."""
    return Pool(name=name, modes=(Mode.SHARED,), door=PoolDoor.RESOURCE, resource=resource, shares=shares, gives=gives)


def pool_of_devices(*modes: Mode, name: str = "nics", resource: str = NIC) -> Pool:
    """A pool of all devices whose ids stand for them."""
    return Pool(
        name=name,
        modes=modes or (Mode.SHARED,),
        door=PoolDoor.RESOURCE,
        resource=resource,
        gives=ShareGives.DEVICE,
    )


def offered(*pools: Pool, node: Node) -> Offer:
    """What a node offers of the pools."""
    return offer(policy_of(pools, (), allow_default_pool=False), node)


def supply(*pools: Pool, node: Node, taken: Taken = NOBODY, held: tuple[RdmaDevice, ...] = ()) -> Supply:
    """What a node has for the pools; `held` are devices that pods have by their ids."""
    return Supply(node=node, offer=offered(*pools, node=node), taken=lambda: taken, held=lambda _pool: held)

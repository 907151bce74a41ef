"""What a pool answers to the kubelet: the shares that it has, and what an allocated share brings to a container. Pure.

An allocated share brings no device node: which device it stands for is decided when the pod's sandbox starts, next to
the GPUs that the kubelet gave to the pod (nri_rdma.decide.shares). It brings an annotation, by which CreateContainer
knows what the container has to get.
"""

from __future__ import annotations

from collections.abc import Iterable

from nri_rdma.decide.policy import Offer
from nri_rdma.decide.shares import is_up
from nri_rdma.model.pool import Pool, ShareGives
from nri_rdma.pb import deviceplugin_pb2 as pb
from nri_rdma.text.shares import guarded_annotation, share_annotation

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


def share_ids(pool: Pool) -> tuple[str, ...]:
    """Return the ids of a pool's shares, which no other pool has. They have one width, so that they sort by their
    numbers."""
    width = len(str(pool.shares - 1))
    return tuple(f"{pool.name}-{number:0{width}}" for number in range(pool.shares))


def healthy_shares(pool: Pool, offer: Offer) -> int:
    """Return how many shares of a pool have a device with an active port that the host does not use. Where each share
    gives one device, another device takes its part of them away; where each gives all devices, one is enough."""
    up = sum(1 for device in offer.by_pool[pool.name] if is_up(device) and not device.in_use)
    if pool.gives is ShareGives.ALL:
        return pool.shares if up else 0
    return min(pool.shares, up * offer.shares_per_device.get(pool.name, 0))


def listed(pool: Pool, healthy: int) -> bytes:
    """Return the message of ListAndWatch: the first `healthy` shares are healthy."""
    devices = [
        pb.Device(ID=share, health=HEALTHY if number < healthy else UNHEALTHY)
        for number, share in enumerate(share_ids(pool))
    ]
    message: bytes = pb.ListAndWatchResponse(devices=devices).SerializeToString()
    return message


def allocated(pool: Pool, containers: Iterable[Iterable[str]], guard: str = "") -> bytes:
    """Return the answer to Allocate for the shares of each container; `guard` is the CDI device that brings the guard,
    or "" for none."""
    cdi_devices = [pb.CDIDevice(name=guard)] if guard else []
    guarded = [guarded_annotation(pool.resource, pool.name)] if guard else []
    answers = [
        pb.ContainerAllocateResponse(
            annotations=dict([share_annotation(pool.resource, shares), *guarded]), cdi_devices=cdi_devices
        )
        for shares in containers
    ]
    message: bytes = pb.AllocateResponse(container_responses=answers).SerializeToString()
    return message

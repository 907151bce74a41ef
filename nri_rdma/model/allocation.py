"""The kubelet's allocations to the containers of a pod."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIds:
    """Devices of one resource of a device plugin, such as ``rdma/hca_shared``, by the plugin's own ids."""

    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDevice:
    """A device that a DRA driver allocated to a claim, with the CDI devices that stand for it in this container."""

    namespace: str
    claim: str
    driver: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAllocation:
    """The allocation of one container; the name is the one in the pod's manifest."""

    name: str
    resources: tuple[DeviceIds, ...] = ()
    claims: tuple[ClaimDevice, ...] = ()
    cpus: tuple[int, ...] = ()
    """The CPUs that it has alone, by number; none unless the kubelet's CPU manager gives such."""

    @property
    def cdi_devices(self) -> tuple[str, ...]:
        """The CDI devices of all claims of the container, each once, in the order in which they were first named."""
        return tuple(dict.fromkeys(name for claim in self.claims for name in claim.cdi_devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAllocation:
    """The kubelet's allocation to a pod, by container; containers without devices may be in it."""

    containers: tuple[ContainerAllocation, ...] = ()

    @property
    def named(self) -> frozenset[str]:
        """The containers that were given any device."""
        return frozenset(item.name for item in self.containers if item.resources or item.claims)

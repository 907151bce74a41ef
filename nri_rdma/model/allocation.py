"""The kubelet's allocations to the containers of a pod."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIds:
    """Allocated devices of one device plugin resource, such as ``rdma/hca_shared``, by the ids that the plugin gave
    them."""

    resource: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimDevice:
    """A device that a DRA driver allocated to a claim, with the CDI devices that give it to this container."""

    namespace: str
    claim: str
    driver: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAllocation:
    """The kubelet's allocation to one container. `name` is the container's name in the pod's manifest."""

    name: str
    resources: tuple[DeviceIds, ...] = ()
    claims: tuple[ClaimDevice, ...] = ()
    cpus: tuple[int, ...] = ()
    """The numbers of the CPUs that only this container uses; empty unless the kubelet's CPU manager assigned some."""

    @property
    def cdi_devices(self) -> tuple[str, ...]:
        """The CDI devices of all claims of the container, without duplicates, in the order of their first mention."""
        return tuple(dict.fromkeys(name for claim in self.claims for name in claim.cdi_devices))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAllocation:
    """The kubelet's allocation to a pod, by container; containers without devices may be in it."""

    containers: tuple[ContainerAllocation, ...] = ()

    @property
    def named(self) -> frozenset[str]:
        """The names of the containers that have any allocated device."""
        return frozenset(item.name for item in self.containers if item.resources or item.claims)

    def without(self, resource: str) -> PodAllocation:
        """Return the allocation without the devices of this resource."""
        return PodAllocation(
            containers=tuple(
                replace(item, resources=tuple(it for it in item.resources if it.resource != resource))
                for item in self.containers
            )
        )

"""The administrator's settings for RDMA devices that other programs, not nri-rdma, gave to containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from nri_rdma.model.request import RdmaLimits


class Adopt(StrEnum):
    """The handling of a container that has RDMA devices from another program.

    OBSERVE: report the devices in `status` and in the container's trace span. COMPLETE: in addition, give the container
    what the other program left out: memlock, limits, environment. ENFORCE: in addition, refuse a container with RDMA
    device nodes that no known program allocated to it.
    """

    OBSERVE = "observe"
    COMPLETE = "complete"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorAdoption:
    """The handling of one vendor's CDI devices. `memlock` is in bytes; None means the node's default."""

    adopt: Adopt = Adopt.OBSERVE
    memlock: int | None = None
    limits: RdmaLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The handling of CDI devices by vendor. `others` is for vendors without an entry, and for RDMA device nodes that
    belong to no CDI device."""

    others: VendorAdoption = field(default_factory=VendorAdoption)
    vendors: Mapping[str, VendorAdoption] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, vendor: str) -> VendorAdoption:
        """Return the handling of this vendor's devices. The vendor "" stands for device nodes that belong to no CDI
        device."""
        return self.vendors.get(vendor, self.others)

    @property
    def enforces(self) -> bool:
        """Return whether these settings can refuse a container."""
        return any(it.adopt is Adopt.ENFORCE for it in (self.others, *self.vendors.values()))

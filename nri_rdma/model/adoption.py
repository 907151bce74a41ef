"""The administrator's settings for RDMA devices that other programs gave to containers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from nri_rdma.model.request import RdmaLimits


class Adopt(StrEnum):
    """The handling of a container that has RDMA devices from another program.

    OBSERVE: the devices are in `status` and in the container's span. COMPLETE: the container also gets what that
    program left out: memlock, limits, environment. ENFORCE: in addition a container is refused when it has RDMA device
    nodes that no program is known to have allocated to it.
    """

    OBSERVE = "observe"
    COMPLETE = "complete"
    ENFORCE = "enforce"


@dataclass(frozen=True, slots=True, kw_only=True)
class VendorAdoption:
    """The handling of the CDI devices of a vendor; `memlock` is in bytes, None: the node's default."""

    adopt: Adopt = Adopt.OBSERVE
    memlock: int | None = None
    limits: RdmaLimits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """`others` is for vendors that are not named, and for device nodes that no CDI device explains."""

    others: VendorAdoption = field(default_factory=VendorAdoption)
    vendors: Mapping[str, VendorAdoption] = field(default_factory=lambda: MappingProxyType({}))

    def of(self, vendor: str) -> VendorAdoption:
        """Return the handling of that vendor's devices; "" is a device node that no CDI device explains."""
        return self.vendors.get(vendor, self.others)

    @property
    def enforces(self) -> bool:
        """Return whether any container can be refused by these settings."""
        return any(it.adopt is Adopt.ENFORCE for it in (self.others, *self.vendors.values()))

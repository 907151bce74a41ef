"""GPUDirect RDMA on a node: what the machine shows of it, and what follows from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nri_rdma.model.pci import PciAddress


class Verdict(StrEnum):
    """The answer to the question whether a NIC may read and write a GPU's memory itself."""

    POSSIBLE = "possible"
    """Nothing that the machine shows is against it. Only data that has moved proves it."""
    NOT_POSSIBLE = "not possible"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaDriver:
    """The loaded driver of NVIDIA: the first number of its release (0: not known), and whether it is the open one."""

    release: int
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDirectFacts:
    """All that the machine shows of GPUDirect RDMA."""

    modules: frozenset[str] = frozenset()
    """Names of those kernel modules that matter and are there, also built in."""
    peer_clients: frozenset[str] = frozenset()
    """Who has registered with ib_core's peer memory, which the RDMA drivers of DOCA-OFED (MLNX_OFED) have."""
    nvidia: NvidiaDriver | None = None
    nvidia_denies: bool = False
    """The driver's parameter GrdmaPciTopoCheckOverride denies all access."""
    options: Mapping[str, bool] | None = None
    """Options of the kernel's configuration, without CONFIG_: True built in or a module, False "is not set". One that
    the kernel does not have is absent. None: no configuration can be read."""
    has_gdrdrv: bool = False
    """/dev/gdrdrv is there: UCX and NVSHMEM copy small messages by it."""
    iommu: Mapping[PciAddress, str] = field(default_factory=dict)
    """The type of the IOMMU group of each GPU and NIC that is in one: identity, DMA, DMA-FQ."""
    acs_redirects: Mapping[str, bool | None] = field(default_factory=dict)
    """Whether ACS of a bridge sends peer traffic up to the root complex. None: this user may not read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A cause that is against a way to a GPU's memory, and what to do about it."""

    text: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWay:
    """A way to a GPU's memory: what it lacks for sure, and what about it cannot be told."""

    name: str
    lacks: tuple[Reason, ...] = ()
    doubts: tuple[Reason, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Return whether the way is open."""
        if self.lacks:
            return Verdict.NOT_POSSIBLE
        return Verdict.UNKNOWN if self.doubts else Verdict.POSSIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The place where a GPU and a NIC meet below a root complex: `bridge` is the nearest common one, "" where there is
    none. Of the bridges below it, `redirecting` send peer traffic up to the root complex, and `unread` could not be
    read."""

    gpu: PciAddress
    device: str
    distance: str
    root: str
    bridge: str
    redirecting: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDirect:
    """GPUDirect RDMA for the GPUs of one maker, with the NICs next to them."""

    maker: str
    verdict: Verdict
    ways: tuple[GpuWay, ...]
    meetings: tuple[Meeting, ...]
    alone: tuple[PciAddress, ...]
    """GPUs without a NIC below their root complex."""
    lacks_gdrcopy: bool = False
    """/dev/gdrdrv is of use to these GPUs, and not there."""

    @property
    def redirecting(self) -> tuple[str, ...]:
        """The bridges between them whose ACS sends peer traffic up to the root complex."""
        return tuple(sorted({bridge for meeting in self.meetings for bridge in meeting.redirecting}))

    @property
    def unread(self) -> tuple[str, ...]:
        """The bridges between them whose ACS could not be read."""
        return tuple(sorted({bridge for meeting in self.meetings for bridge in meeting.unread}))

"""GPUDirect RDMA on a node: the facts that the machine shows, and the conclusions from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from nri_rdma.model.pci import PciAddress


class Verdict(StrEnum):
    """The answer to the question whether a NIC can read and write a GPU's memory directly."""

    POSSIBLE = "possible"
    """No known fact prevents it. Only a transfer of data would prove it."""
    NOT_POSSIBLE = "not possible"
    UNKNOWN = "cannot be told"


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaDriver:
    """The loaded NVIDIA driver: its major release (0 if unknown), and whether it is the open kernel module."""

    release: int
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDirectFacts:
    """All facts about GPUDirect RDMA that the machine shows."""

    modules: frozenset[str] = frozenset()
    """The names of the relevant kernel modules that are loaded or built in."""
    peer_clients: frozenset[str] = frozenset()
    """The clients of ib_core's peer memory interface, which only the RDMA drivers of DOCA-OFED (MLNX_OFED) have."""
    nvidia: NvidiaDriver | None = None
    nvidia_denies: bool = False
    """Whether the driver's parameter GrdmaPciTopoCheckOverride denies all access."""
    options: Mapping[str, bool] | None = None
    """The relevant kernel configuration options, without CONFIG_: True if built in or a module, False if "is not set".
    An option that this kernel does not know is missing. None: the configuration cannot be read."""
    has_gdrdrv: bool = False
    """Whether /dev/gdrdrv exists, which UCX and NVSHMEM use to copy small messages."""
    iommu: Mapping[PciAddress, str] = field(default_factory=dict)
    """The type of the IOMMU group (identity, DMA, DMA-FQ) of each GPU and NIC that is in one."""
    acs_redirects: Mapping[str, bool | None] = field(default_factory=dict)
    """For each bridge, whether its ACS settings send peer traffic up to the root complex. None: this user may not read
    them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """A fact that prevents, or may prevent, access to a GPU's memory, and how to change it."""

    text: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWay:
    """One mechanism for access to a GPU's memory. `lacks` are the facts that prevent it, `doubts` those that may."""

    name: str
    lacks: tuple[Reason, ...] = ()
    doubts: tuple[Reason, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """Return whether access is possible by this mechanism."""
        if self.lacks:
            return Verdict.NOT_POSSIBLE
        return Verdict.UNKNOWN if self.doubts else Verdict.POSSIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """The position of a GPU and a NIC below one root complex. `bridge` is the nearest bridge above both, "" if there is
    none. `redirecting` are the bridges between them that send peer traffic up to the root complex; `unread` are those
    whose settings could not be read."""

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
    """The GPUs without a NIC below their root complex."""
    lacks_gdrcopy: bool = False
    """Whether /dev/gdrdrv is missing, although these GPUs could use it."""

    @property
    def redirecting(self) -> tuple[str, ...]:
        """The bridges between GPUs and NICs whose ACS settings send peer traffic up to the root complex."""
        return tuple(sorted({bridge for meeting in self.meetings for bridge in meeting.redirecting}))

    @property
    def unread(self) -> tuple[str, ...]:
        """The bridges between GPUs and NICs whose ACS settings could not be read."""
        return tuple(sorted({bridge for meeting in self.meetings for bridge in meeting.unread}))

"""A pod's request, parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import IPv4Interface, IPv6Interface

from nri_rdma.model.device import CharKind, DeviceId, LinkLayer, Protocol
from nri_rdma.model.network import EthtoolConfig, NeighbourConfig, RouteConfig, RoutingRule, VrfConfig
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.selector import FunctionsOf, Selector
from nri_rdma.model.userspace import UserspaceCheck

UNLIMITED = 2**64 - 1
"""RLIM_INFINITY as NRI spells it."""

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Names of requests and of containers (RFC 1123); to be matched as a whole."""
LABEL_HINT = "use up to 63 of a-z, 0-9 and -, with - neither first nor last"


ANNOTATION_PREFIX = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(/[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?)?"
)
"""The prefix of our annotations' keys, as Kubernetes allows it; to be matched as a whole."""
ANNOTATION_PREFIX_HINT = "a DNS name such as rdma.example.com, or an annotation's key such as example.com/rdma"


class Mode(StrEnum):
    """The use of a device: by one pod alone, or by several."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class Use(StrEnum):
    """Purpose of devices: libraries that send the data of GPUs are told only of those for computing."""

    COMPUTE = "compute"
    STORAGE = "storage"


class Isolation(StrEnum):
    """The isolation that a pod demands: soft accepts a device that other pods can see and open."""

    SOFT = "soft"
    HARD = "hard"


class AlignTo(StrEnum):
    """The devices that the request's devices shall be near to."""

    GPU = "gpu"
    NUMA = "numa"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Align:
    """The place where devices are looked for first; a strict one refuses devices that are farther away."""

    to: AlignTo
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Conditions on a device, all of them; of several values any will do. None, or an empty tuple, is no condition."""

    device: str | tuple[str, ...] | None = None
    netdev: str | tuple[str, ...] | None = None
    pci: PciAddress | tuple[PciAddress, ...] | None = None
    vendor: str | tuple[str, ...] | None = None
    """Four hexadecimal digits, lower case."""
    device_id: tuple[str, ...] = ()
    """As vendor."""
    driver: str | tuple[str, ...] | None = None
    pf_name: tuple[FunctionsOf, ...] = ()
    link_layer: LinkLayer | tuple[LinkLayer, ...] | None = None
    protocol: tuple[Protocol, ...] = ()
    pkey: tuple[int, ...] = ()
    numa_node: int | tuple[int, ...] | None = None
    min_speed_gbps: int | None = None
    exclude: tuple[Selector, ...] = ()
    """None of these may hold, as for a pool."""
    id: DeviceId | None = None
    """Of a device that the kubelet allocated by its id: no other pod may have it, whatever the mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceConfig:
    """The netdev's configuration in the pod."""

    name: str | None = None
    mtu: int | None = None
    addresses: tuple[tuple[IPv4Interface | IPv6Interface, ...], ...] = ()
    macs: tuple[str, ...] = ()
    """One for each device, or none."""
    gso_max_size: int | None = None
    gro_max_size: int | None = None
    gso_ipv4_max_size: int | None = None
    gro_ipv4_max_size: int | None = None
    disables_ebpf: bool = False
    forwarding: bool | None = None
    """None: as the pod's namespace has it; so for the next three."""
    arp_ignore: int | None = None
    arp_announce: int | None = None
    enable_ipv6: bool | None = None
    vrf: VrfConfig | None = None
    inherit: bool = True
    """Whether the netdev takes along what it has on the host, as far as the other keys do not replace it."""

    @property
    def is_empty(self) -> bool:
        """Return whether the request leaves the interface as it is."""
        return self == InterfaceConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaLimits:
    """Limits of the rdma cgroup per device; None is no limit (``max``)."""

    hca_handles: int | None = None
    hca_objects: int | None = None

    def within(self, other: RdmaLimits | None) -> RdmaLimits:
        """Return the lower limit of both, for handles and for objects."""
        return (
            self
            if other is None
            else RdmaLimits(
                hca_handles=_lower(self.hca_handles, other.hca_handles),
                hca_objects=_lower(self.hca_objects, other.hca_objects),
            )
        )


def _lower(one: int | None, other: int | None) -> int | None:
    return min((number for number in (one, other) if number is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The containers that get the character devices: `only` these (None: all), except those with lists of their own."""

    only: frozenset[str] | None = None
    but: frozenset[str] = frozenset()

    def covers(self, container: str) -> bool:
        """Return whether the container of that name is in the scope."""
        return (self.only is None or container in self.only) and container not in self.but

    def meets(self, other: Scope) -> bool:
        """Return whether a container may be in both."""
        named = self.only if self.only is not None else other.only
        return named is None or any(self.covers(name) and other.covers(name) for name in named)


DEFAULT_CHAR_KINDS = frozenset({CharKind.UVERBS, CharKind.RDMA_CM})


_NO_ETHTOOL = EthtoolConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """One entry of a pod's list: `count` devices of one pool under the same conditions.

    `where` is the place in the pod's text, for error messages, such as ``rdma.noderesource.dev/pod[0]``.
    """

    name: str
    where: str
    pool: str = "default"
    match: Match = field(default_factory=Match)
    count: int | None = 1
    """None means all that match."""
    if_free: bool = False
    """With count None: only those that are free and can carry data, at least one, rather than all or none."""
    per_gpu: int | None = None
    """So many for each GPU of its containers: `count` is None until these are known, then their number times this."""
    scope: Scope = field(default_factory=Scope)
    align: Align | None = None
    """None: near the GPUs when the request names some, else anywhere."""
    gpus: tuple[PciAddress, ...] = ()
    gpus_from: str = ""
    """The source of the GPUs, for people: "the kubelet"; "" for the request itself."""
    gpus_problem: str = ""
    """Why the pod's GPUs are not known for sure: their source does not answer, or two sources contradict each other.
    Then a strict request is refused, and another one is placed by the NUMA nodes of the known GPUs."""
    cpus: tuple[int, ...] = ()
    """The CPUs that its containers have alone, as the kubelet reports them; only of a request near a NUMA node."""
    mode: Mode | None = None
    """None: the first mode of the pool."""
    isolation: Isolation = Isolation.SOFT
    """HARD: refuse rather than give a device that the kernel does not hide from others."""
    use: Use | None = None
    """None: the pool's, else COMPUTE."""
    prove: bool | None = None
    """Whether its containers only start when RDMA works in them; None: as the pool says, else no."""
    userspace: UserspaceCheck | None = None
    """None: the pool's, else CHECK."""
    roce_version: int | None = None
    """1 or 2; None: the pool's, else 2."""
    interface: InterfaceConfig = InterfaceConfig()
    routes: tuple[RouteConfig, ...] = ()
    rules: tuple[RoutingRule, ...] = ()
    neighbours: tuple[NeighbourConfig, ...] = ()
    ethtool: EthtoolConfig = _NO_ETHTOOL
    char_kinds: frozenset[CharKind] = DEFAULT_CHAR_KINDS
    memlock: int | None = None
    """Bytes, UNLIMITED, or None for the node's default."""
    limits: RdmaLimits | None = None
    word: bool = False
    """Whether the request was one word, which names no containers."""
    cdi_device: str = ""
    """The qualified name of the CDI device that the request came with; "" for a request of an annotation."""
    admin_access: bool = False
    """Whether its pod only looks on: it has device nodes beside whoever has the devices, and holds none of them."""
    shares: tuple[str, ...] = ()
    """Ids of the shares of the pool that the kubelet allocated; none for a request that came otherwise."""

    @property
    def count_words(self) -> str:
        """The number of devices as it is written in a request."""
        if self.per_gpu is not None and self.count is None:
            return f"{self.per_gpu} per GPU"
        return "free" if self.if_free else "all" if self.count is None else str(self.count)

    def shares_of(self, index: int, devices: int) -> frozenset[str]:
        """Return the shares that the device of that index stands for, of so many devices."""
        return frozenset(self.shares[index::devices])

    def is_for(self, name: str) -> bool:
        """Return whether the request came with this CDI device, or with this share."""
        return name in self.shares or name == self.cdi_device

    def covering(self, container: str, is_covered: bool) -> DeviceRequest:
        """Return the same request for one more container, or without it."""
        one = frozenset({container})
        only = self.scope.only
        if only is not None:
            only = only | one if is_covered else only - one
        return replace(self, scope=replace(self.scope, only=only))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """Everything a pod asks for, in the order it asks."""

    requests: tuple[DeviceRequest, ...]


def env_name(label: str) -> str:
    """Return the label as the environment spells it. Labels have no ``_``, so different labels stay different."""
    return label.replace("-", "_").upper()

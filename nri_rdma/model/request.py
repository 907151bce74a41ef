"""The values of a pod's request for RDMA devices, after parsing."""

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
"""RLIM_INFINITY, as NRI writes it."""

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""The names of requests and of containers (RFC 1123 labels). Use `fullmatch`."""
LABEL_HINT = "use up to 63 of a-z, 0-9 and -, with - neither first nor last"


ANNOTATION_PREFIX = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(/[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?)?"
)
"""The prefix of this project's annotation keys, as Kubernetes permits it. Use `fullmatch`."""
ANNOTATION_PREFIX_HINT = "a DNS name such as rdma.example.com, or an annotation's key such as example.com/rdma"


class Mode(StrEnum):
    """The use of a device: exclusively by one pod, or shared by several."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class Use(StrEnum):
    """The purpose of devices. Libraries that transfer the data of GPUs are told only of devices for computing."""

    COMPUTE = "compute"
    STORAGE = "storage"


class Isolation(StrEnum):
    """The isolation that a request demands. SOFT accepts a device that other pods can see and open; HARD does not."""

    SOFT = "soft"
    HARD = "hard"


class AlignTo(StrEnum):
    """The hardware that the chosen devices should be close to."""

    GPU = "gpu"
    NUMA = "numa"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Align:
    """The hardware that the chosen devices should be close to. A strict request refuses devices that are farther
    away."""

    to: AlignTo
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Conditions on a device, all of which it must meet. A condition with several values is met by any of them. None or
    an empty tuple is no condition."""

    device: str | tuple[str, ...] | None = None
    netdev: str | tuple[str, ...] | None = None
    pci: PciAddress | tuple[PciAddress, ...] | None = None
    vendor: str | tuple[str, ...] | None = None
    """Four hexadecimal digits, lower case."""
    device_id: tuple[str, ...] = ()
    """Four hexadecimal digits each, lower case."""
    driver: str | tuple[str, ...] | None = None
    pf_name: tuple[FunctionsOf, ...] = ()
    link_layer: LinkLayer | tuple[LinkLayer, ...] | None = None
    protocol: tuple[Protocol, ...] = ()
    pkey: tuple[int, ...] = ()
    numa_node: int | tuple[int, ...] | None = None
    min_speed_gbps: int | None = None
    exclude: tuple[Selector, ...] = ()
    """Selectors of which the device must meet none."""
    id: DeviceId | None = None
    """The id of a device that the kubelet allocated. Such a device is given to no other pod, whatever the mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceConfig:
    """The configuration of a request's netdevs in the pod."""

    name: str | None = None
    mtu: int | None = None
    addresses: tuple[tuple[IPv4Interface | IPv6Interface, ...], ...] = ()
    macs: tuple[str, ...] = ()
    """One MAC address for each device, or empty."""
    gso_max_size: int | None = None
    gro_max_size: int | None = None
    gso_ipv4_max_size: int | None = None
    gro_ipv4_max_size: int | None = None
    disables_ebpf: bool = False
    forwarding: bool | None = None
    """Whether the netdev forwards packets. Here and in the next three fields, None means the default of the pod's
    namespace."""
    arp_ignore: int | None = None
    arp_announce: int | None = None
    enable_ipv6: bool | None = None
    vrf: VrfConfig | None = None
    inherit: bool = True
    """Whether the netdev keeps its configuration on the host, as far as the request does not replace it."""

    @property
    def is_empty(self) -> bool:
        """Return whether the request sets nothing about the interface."""
        return self == InterfaceConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaLimits:
    """Limits of the rdma cgroup per device; None is no limit (``max``)."""

    hca_handles: int | None = None
    hca_objects: int | None = None

    def within(self, other: RdmaLimits | None) -> RdmaLimits:
        """Return the lower of both limits, separately for handles and objects."""
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
    """The containers that get the character devices: those in `only` (None: all), except those in `but`. The containers
    in `but` have request lists of their own."""

    only: frozenset[str] | None = None
    but: frozenset[str] = frozenset()

    def covers(self, container: str) -> bool:
        """Return whether the container with this name is in the scope."""
        return (self.only is None or container in self.only) and container not in self.but

    def meets(self, other: Scope) -> bool:
        """Return whether a container can be in both scopes."""
        named = self.only if self.only is not None else other.only
        return named is None or any(self.covers(name) and other.covers(name) for name in named)


DEFAULT_CHAR_KINDS = frozenset({CharKind.UVERBS, CharKind.RDMA_CM})


_NO_ETHTOOL = EthtoolConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """One entry of a pod's request list: `count` devices of one pool under the same conditions.

    `where` is its place in the pod's manifest, for error messages, such as ``rdma.noderesource.dev/pod[0]``.
    """

    name: str
    where: str
    pool: str = "default"
    match: Match = field(default_factory=Match)
    count: int | None = 1
    """The number of devices; None means all devices that match."""
    if_free: bool = False
    """Whether a request for all matching devices takes only those that are free and can carry data, at least one.
    Otherwise each matching device must be available. Used only if `count` is None."""
    per_gpu: int | None = None
    """The number of devices for each GPU of the containers. `count` is None until the GPUs are known; then it becomes
    `per_gpu` times the number of GPUs."""
    scope: Scope = field(default_factory=Scope)
    align: Align | None = None
    """The hardware to which the devices should be close. None means the GPUs if `gpus` is not empty, otherwise no
    hardware."""
    gpus: tuple[PciAddress, ...] = ()
    gpus_from: str = ""
    """The source that named the GPUs, for messages: "the kubelet"; "" if the request itself did."""
    gpus_problem: str = ""
    """The reason why the pod's GPUs are uncertain: the source does not answer, or two sources contradict each other.
    Then a strict request is refused; any other request is placed by the NUMA nodes of the known GPUs."""
    cpus: tuple[int, ...] = ()
    """The CPUs that only the request's containers use, as the kubelet reports them. Set only if the devices should be
    close to a NUMA node."""
    mode: Mode | None = None
    """The use of the devices, exclusive or shared. None means the first mode of the pool."""
    isolation: Isolation = Isolation.SOFT
    """HARD refuses a device that the kernel does not hide from other pods."""
    use: Use | None = None
    """The purpose of the devices. None means the pool's setting, or COMPUTE if the pool has none."""
    prove: bool | None = None
    """Whether its containers may start only if a test shows that RDMA works in them. None means the pool's setting."""
    userspace: UserspaceCheck | None = None
    """The check of the RDMA libraries in the container's image. None means the pool's setting, or CHECK if the pool has
    none."""
    roce_version: int | None = None
    """The RoCE version of the GIDs to use, 1 or 2. None means the pool's setting, or 2 if the pool has none."""
    interface: InterfaceConfig = InterfaceConfig()
    routes: tuple[RouteConfig, ...] = ()
    rules: tuple[RoutingRule, ...] = ()
    neighbours: tuple[NeighbourConfig, ...] = ()
    ethtool: EthtoolConfig = _NO_ETHTOOL
    char_kinds: frozenset[CharKind] = DEFAULT_CHAR_KINDS
    memlock: int | None = None
    """The RLIMIT_MEMLOCK of the containers in bytes, or UNLIMITED; None means the node's default."""
    limits: RdmaLimits | None = None
    word: bool = False
    """Whether the annotation wrote the request as a single word. Such a request names no containers."""
    cdi_device: str = ""
    """The qualified name of the CDI device that the request was made from; "" for a request of an annotation."""
    admin_access: bool = False
    """Whether the pod only observes devices (admin access of a claim). It gets the device nodes of devices that other
    pods have, and reserves none itself."""
    shares: tuple[str, ...] = ()
    """The ids of the pool's shares that the kubelet allocated; empty if the request was not made from shares."""

    @property
    def count_words(self) -> str:
        """The number of devices in the words of a request, such as ``2 per GPU`` or ``all``."""
        if self.per_gpu is not None and self.count is None:
            return f"{self.per_gpu} per GPU"
        return "free" if self.if_free else "all" if self.count is None else str(self.count)

    def shares_of(self, index: int, devices: int) -> frozenset[str]:
        """Return the ids of the shares that belong to the device at position `index` of `devices` devices. The shares
        are dealt out to the devices in turn."""
        return frozenset(self.shares[index::devices])

    def is_for(self, name: str) -> bool:
        """Return whether the request was made from this CDI device or this share."""
        return name in self.shares or name == self.cdi_device

    def covering(self, container: str, is_covered: bool) -> DeviceRequest:
        """Return the request with the container added to its scope or, if not `is_covered`, removed from it. A scope
        without a list of containers stays unchanged."""
        one = frozenset({container})
        only = self.scope.only
        if only is not None:
            only = only | one if is_covered else only - one
        return replace(self, scope=replace(self.scope, only=only))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """All requests of a pod, in the order in which it writes them."""

    requests: tuple[DeviceRequest, ...]


def env_name(label: str) -> str:
    """Return the label as a part of an environment variable's name. Labels have no ``_``, so different labels stay
    different."""
    return label.replace("-", "_").upper()

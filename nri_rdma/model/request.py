"""What a pod asks for, parsed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from ipaddress import IPv4Interface, IPv6Interface

from nri_rdma.model.device import CharKind, LinkLayer
from nri_rdma.model.pci import PciAddress

UNLIMITED = 2**64 - 1
"""RLIM_INFINITY as NRI spells it."""

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Names of requests and of containers (RFC 1123); to be matched as a whole."""
LABEL_HINT = "use up to 63 of a-z, 0-9 and -, with - neither first nor last"


ANNOTATION_PREFIX = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*(/[a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?)?"
)
"""What our annotations' keys may begin with: what Kubernetes takes for a key; to be matched as a whole."""
ANNOTATION_PREFIX_HINT = "a DNS name such as rdma.example.com, or an annotation's key such as example.com/rdma"


class Mode(StrEnum):
    """Whether the pod has the device alone."""

    EXCLUSIVE = "exclusive"
    SHARED = "shared"


class Isolation(StrEnum):
    """Whether a pod may have a device that other pods can see and open too."""

    SOFT = "soft"
    HARD = "hard"


class AlignTo(StrEnum):
    """What the devices shall be near to."""

    GPU = "gpu"
    NUMA = "numa"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Align:
    """Where devices are looked for first; a strict one refuses what is farther."""

    to: AlignTo
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Conditions on a device; None is no condition."""

    device: str | None = None
    netdev: str | None = None
    pci: PciAddress | None = None
    vendor: str | None = None
    """Four hexadecimal digits, lower case."""
    driver: str | None = None
    link_layer: LinkLayer | None = None
    numa_node: int | None = None
    min_speed_gbps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceConfig:
    """How the netdev shall look in the pod.

    `name` may hold one ``%d``, filled with the pod's next free number; None is the default ``rdma%d``.
    `addresses` has one list per device of the request, or is empty.
    """

    name: str | None = None
    mtu: int | None = None
    addresses: tuple[tuple[IPv4Interface | IPv6Interface, ...], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the request says nothing about the interface."""
        return not self.keys

    @property
    def keys(self) -> tuple[str, ...]:
        """What the request says something about, as pod authors write it."""
        told = (("name", self.name is not None), ("mtu", self.mtu is not None), ("addresses", bool(self.addresses)))
        return tuple(key for key, is_told in told if is_told)


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaLimits:
    """Limits of the rdma cgroup per device; None is no limit (``max``)."""

    hca_handles: int | None = None
    hca_objects: int | None = None

    def within(self, other: RdmaLimits | None) -> RdmaLimits:
        """The lower ones of both."""
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
    """Which containers get the character devices: `only` these (None: all), except those with lists of their own."""

    only: frozenset[str] | None = None
    but: frozenset[str] = frozenset()

    def covers(self, container: str) -> bool:
        """Whether the container of that name is meant."""
        return (self.only is None or container in self.only) and container not in self.but


DEFAULT_CHAR_KINDS = frozenset({CharKind.UVERBS, CharKind.RDMA_CM})


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
    """None means all."""
    scope: Scope = field(default_factory=Scope)
    align: Align | None = None
    """None: near the GPUs when the request names some, else anywhere."""
    gpus: tuple[PciAddress, ...] = ()
    gpus_from: str = ""
    """Who told of them, for people: "the kubelet"; "" for the request itself."""
    gpus_problem: str = ""
    """Why the pod's GPUs are not known for sure: the one who knows does not answer, or two contradict each other. Then
    a strict request is refused, and another one is placed by the NUMA nodes of what is known."""
    mode: Mode | None = None
    """None: the first mode of the pool."""
    isolation: Isolation = Isolation.SOFT
    """HARD: rather none than one that the kernel does not hide from others."""
    interface: InterfaceConfig = field(default_factory=InterfaceConfig)
    char_kinds: frozenset[CharKind] = DEFAULT_CHAR_KINDS
    memlock: int | None = None
    """Bytes, UNLIMITED, or None for the node's default."""
    limits: RdmaLimits | None = None
    word: bool = False
    """Whether it was asked with one word, which says nothing of containers."""
    cdi_device: str = ""
    """The CDI device that it came with, by its qualified name; "" for what an annotation asks."""

    def covering(self, container: str) -> DeviceRequest:
        """The same for one more container."""
        only = None if self.scope.only is None else self.scope.only | {container}
        return replace(self, scope=replace(self.scope, only=only))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """Everything a pod asks for, in the order it asks."""

    requests: tuple[DeviceRequest, ...]


def env_name(label: str) -> str:
    """The label as the environment spells it. Labels have no ``_``, so different labels stay different."""
    return label.replace("-", "_").upper()

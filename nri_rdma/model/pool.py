"""The administrator's configuration: pools of devices, and rules about which pods may ask for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from nri_rdma.model.device import CharKind, RdmaDevice
from nri_rdma.model.request import DEFAULT_CHAR_KINDS, Mode, RdmaLimits, Use
from nri_rdma.model.rights import DEFAULT_RIGHTS, InterfaceRight
from nri_rdma.model.selector import Selector
from nri_rdma.model.userspace import UserspaceCheck

DEFAULT_POOL = "default"
GUARD_POOL = "0-guard"
"""The name of the pool that stands for the guard resource. A container with this resource gets no devices, only the
guard, an OCI hook that keeps a container from starting without its devices. No configured pool can have this name,
because their names begin with a letter."""
GUARD_SHARES = 1024
"""The number of guard resources that a node offers to the kubelet: more than it can have containers that request
devices."""
HANDLER_CHARACTER = "[-A-Za-z0-9_.*?]"
"""A regular expression for one character of a pattern for runtime handlers, where ``*`` and ``?`` are wildcards."""
RESOURCE = re.compile(
    r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
"""The names of resources that Kubernetes permits to device plugins. `is_kubernetes_own` finds names among them that are
reserved."""
LEAST_OBJECTS = 1024
"""The smallest limit of RDMA objects for a share. A usual job fails with fewer objects. So a share that would get less
gets no limit at all."""


class PoolDoor(StrEnum):
    """The interface through which pods request devices of a pool: annotations, a device plugin's resource, or DRA
    claims. A pool has only one interface, so that no device is given twice."""

    ANNOTATIONS = "annotations"
    RESOURCE = "resource"
    CLAIMS = "claims"


class ShareGives(StrEnum):
    """The devices that a pod gets for one share of a pool. ONE: the best aligned device. ALL: every device of the pool.
    DEVICE: the pool has no shares; the kubelet allocates its devices by their ids, each to one pod at a time."""

    ONE = "one"
    ALL = "all"
    DEVICE = "device"


class DownPorts(StrEnum):
    """The handling of devices without an active port: they are given last, or not at all."""

    LAST = "last"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A named set of devices that pods can request, and the modes in which they get them. The first mode is for
    requests without one.

    A device belongs to the pool if at least one of `select` selects it (or `select` is empty) and none of `exclude`
    does. `limits` are for requests without limits; `max_limits` bound all requests. `where` is the pool's place in the
    configuration, for error messages. `closed` says why the pool's configuration cannot be read, "" if it can; a closed
    pool has no devices.
    """

    name: str
    modes: tuple[Mode, ...]
    select: tuple[Selector, ...] = ()
    exclude: tuple[Selector, ...] = ()
    door: PoolDoor = PoolDoor.ANNOTATIONS
    requires_isolation: bool = False
    """Whether the pool refuses to give a device that the kernel does not hide from other pods."""
    use: Use | None = None
    """The purpose of the devices (compute or storage), for requests that do not set it."""
    prove: bool = False
    """Whether RDMA is tested in containers before they start, for requests that do not set `prove`."""
    userspace: UserspaceCheck | None = None
    """The check of the RDMA libraries in a container's image, for requests that do not set it."""
    roce_version: int | None = None
    """The RoCE version for requests that do not set it."""
    env: tuple[tuple[str, str], ...] = ()
    """Environment variables about the fabric, for containers that get devices of the pool."""
    limits: RdmaLimits | None = None
    max_limits: RdmaLimits | None = None
    where: str = ""
    resource: str = ""
    """The name PREFIX/NAME of the device plugin resource, as containers write it in `resources.limits`; "" if pods do
    not request the pool as a resource."""
    shares: int = 0
    """The number of `resource` that the node offers. 0 if `gives` is DEVICE: the node then offers one per device."""
    gives: ShareGives = ShareGives.ONE
    down_ports: DownPorts = DownPorts.LAST
    closed: str = ""

    @property
    def is_guard(self) -> bool:
        """Return whether this is the guard resource. It gives a container no devices, only the guard, an OCI hook that
        keeps a container from starting without its devices."""
        return self.name == GUARD_POOL

    def has(self, device: RdmaDevice) -> bool:
        """Return whether the pool has the device. If it is unknown now whether `exclude` selects the device, the device
        counts as excluded."""
        if self.closed:
            return False
        is_selected = not self.select or any(selector.selects(device) for selector in self.select)
        return is_selected and not any(selector.may_select(device) for selector in self.exclude)


def is_kubernetes_own(resource: str) -> bool:
    """Return whether Kubernetes reserves this name of a resource for itself."""
    return "kubernetes.io/" in resource or resource.startswith("requests.")


def guard_pool(resource: str) -> Pool:
    """Return a pool without devices for the resource named `resource`, so that the device plugin serves it like other
    pools. A container that requests it gets the guard, an OCI hook that keeps a container from starting without its
    devices."""
    return Pool(
        name=GUARD_POOL,
        modes=(Mode.SHARED,),
        door=PoolDoor.RESOURCE,
        resource=resource,
        shares=GUARD_SHARES,
        gives=ShareGives.ALL,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """The facts about a pod that rules can use, as the runtime describes it."""

    namespace: str = ""
    runtime_handler: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    host_network: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of the administrator: which pods may request what from which pools.

    A rule applies to pods that meet all of `namespaces`, `runtime_handlers` and `pod_labels`; one matching value of
    each suffices, ``*`` and ``?`` are wildcards, and an empty condition is met by every pod. It applies to requests for
    `pools` (empty: all). Such requests may have `modes` (empty: all of the pool's), `char_kinds`, `interface` (None:
    the default rights) and at most `max_limits`.
    """

    name: str
    where: str
    namespaces: tuple[str, ...] = ()
    runtime_handlers: tuple[str, ...] = ()
    pod_labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    pools: tuple[str, ...] = ()
    allow: bool = True
    modes: tuple[Mode, ...] = ()
    char_kinds: frozenset[CharKind] = DEFAULT_CHAR_KINDS
    interface: frozenset[InterfaceRight] | None = None
    max_limits: RdmaLimits | None = None

    def concerns(self, asker: Asker, pool: str) -> bool:
        """Return whether the rule applies to the requests of the pod `asker` for this pool."""
        labels = dict(asker.labels)
        return (
            (not self.pools or pool in self.pools)
            and (not self.namespaces or any_matches(self.namespaces, asker.namespace))
            and (not self.runtime_handlers or any_matches(self.runtime_handlers, asker.runtime_handler))
            and all(key in labels and any_matches(values, labels[key]) for key, values in self.pod_labels)
        )

    @property
    def rights(self) -> frozenset[InterfaceRight]:
        """Return the rights over their netdevs that the rule gives to pods."""
        return DEFAULT_RIGHTS if self.interface is None else self.interface

    def __str__(self) -> str:
        return f"rule {self.name} ({self.where})"


def any_matches(patterns: Iterable[str], value: str) -> bool:
    """Return whether the value matches one of the patterns; ``*`` and ``?`` are wildcards."""
    return any(fnmatchcase(value, pattern) for pattern in patterns)

"""The administrator's offer: pools of devices, and rules about the pods that may ask for them."""

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
"""The name under which the guard resource is served beside pools, whose names begin with a letter."""
GUARD_SHARES = 1024
"""How many of the guard resource a node has: more than its containers that ask for devices."""
HANDLER_CHARACTER = "[-A-Za-z0-9_.*?]"
"""A character of a runtime handler's name, ``*`` and ``?`` among them, as a regular expression."""
RESOURCE = re.compile(
    r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
"""The name of a resource as Kubernetes lets plugins have it, but for those that `is_kubernetes_own`."""
LEAST_OBJECTS = 1024
"""Fewest objects of a share. With fewer a usual job fails at its limit, so that a smaller part is no limit."""


class PoolDoor(StrEnum):
    """The door through which a pool is asked. A pool has one door, so that no device is given away twice."""

    ANNOTATIONS = "annotations"
    RESOURCE = "resource"
    CLAIMS = "claims"


class ShareGives(StrEnum):
    """The devices that a share of a pool gives: the best aligned device for each share, or every device of the
    pool, however many shares it has. DEVICE: the pool has no shares but its devices, each of which one pod at a time
    gets by its id."""

    ONE = "one"
    ALL = "all"
    DEVICE = "device"


class DownPorts(StrEnum):
    """The handling of devices without an active port: they are given last, or to nobody."""

    LAST = "last"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A name that pods ask by, with the modes it serves; the first is for requests that name none.

    It has the devices that any of `select` takes (all, where there is none) and none of `exclude` does. `limits` are
    for requests that name none, `max_limits` bound all of them. `where` is its place in the configuration, for people.
    With door RESOURCE, pods ask by `resource`, of which the node has `shares`; each gives what `gives` says. With
    DEVICE the node has as many as the pool has devices, and `shares` is 0. `closed` says why the pool cannot be read,
    "" where it can: it has no device, and who asks for it is refused.
    """

    name: str
    modes: tuple[Mode, ...]
    select: tuple[Selector, ...] = ()
    exclude: tuple[Selector, ...] = ()
    door: PoolDoor = PoolDoor.ANNOTATIONS
    requires_isolation: bool = False
    """Whether a device that the kernel does not hide from others must not be given."""
    use: Use | None = None
    """The use of requests that name none."""
    prove: bool = False
    """Whether requests that do not say it themselves are proven before their containers start."""
    userspace: UserspaceCheck | None = None
    """The check of the image's libraries for requests that name none."""
    roce_version: int | None = None
    """That of requests that name none."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables of the fabric, for containers that get devices of the pool."""
    limits: RdmaLimits | None = None
    max_limits: RdmaLimits | None = None
    where: str = ""
    resource: str = ""
    """PREFIX/NAME, as containers write it in `resources.limits`; "" with another door."""
    shares: int = 0
    gives: ShareGives = ShareGives.ONE
    down_ports: DownPorts = DownPorts.LAST
    closed: str = ""

    @property
    def is_guard(self) -> bool:
        """Return whether this is the guard resource, which has no devices."""
        return self.name == GUARD_POOL

    def has(self, device: RdmaDevice) -> bool:
        """Return whether the pool selects the device. A device that may be excluded is excluded, as long as its name is
        unknown."""
        if self.closed:
            return False
        is_selected = not self.select or any(selector.selects(device) for selector in self.select)
        return is_selected and not any(selector.may_select(device) for selector in self.exclude)


def is_kubernetes_own(resource: str) -> bool:
    """Return whether Kubernetes keeps the name of a resource for itself."""
    return "kubernetes.io/" in resource or resource.startswith("requests.")


def guard_pool(resource: str) -> Pool:
    """Return the guard resource as the device plugin serves it: beside pools that are asked by a resource."""
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
    """The runtime's description of a pod that asks: all that rules can use."""

    namespace: str = ""
    runtime_handler: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    host_network: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The pods that a rule is for, and what they may ask of which pools.

    Of the pods, `namespaces`, `runtime_handlers` and `pod_labels` say which pods the rule is for (all of these
    conditions; each any of its values, with ``*`` and ``?``; empty is every pod), `pools` for which pools (empty: all).
    `modes` (empty: all of the pool), `char_kinds`, `interface` (None: the default rights) and `max_limits` say what
    they may ask for.
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
        """Return whether the rule is for this pod and this pool."""
        labels = dict(asker.labels)
        return (
            (not self.pools or pool in self.pools)
            and (not self.namespaces or any_matches(self.namespaces, asker.namespace))
            and (not self.runtime_handlers or any_matches(self.runtime_handlers, asker.runtime_handler))
            and all(key in labels and any_matches(values, labels[key]) for key, values in self.pod_labels)
        )

    @property
    def rights(self) -> frozenset[InterfaceRight]:
        """Return what the rule lets pods say about their netdevs."""
        return DEFAULT_RIGHTS if self.interface is None else self.interface

    def __str__(self) -> str:
        return f"rule {self.name} ({self.where})"


def any_matches(patterns: Iterable[str], value: str) -> bool:
    """Return whether a value is one of these; ``*`` and ``?`` are wild."""
    return any(fnmatchcase(value, pattern) for pattern in patterns)

"""Operations on one link or RDMA device, as values; Kernel.apply (attach/port.py) applies them in order.

Pure. An operation does not name its link; the caller of `apply` passes the link. One table (host/netlink/codec.py)
holds the kernel request of each operation. Another one (tests/fakes/kernel.py) says how the operation changes the fake
kernel. The journal never stores operations, only the values that they are made from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Interface, IPv6Interface
from typing import ClassVar, Final, TypeAlias, get_args

from nri_rdma.model.inherited import Brought
from nri_rdma.model.link import Captured
from nri_rdma.model.network import NeighbourConfig, RouteConfig, RoutingRule, VrfConfig


class GoneWith(StrEnum):
    """The event that reverses what an operation changed on a link in a pod."""

    MOVE = "move"
    """The move back to the host reverses the change, because the kernel drops it."""
    INVERSE = "inverse"
    """The operation that `inverse()` returns reverses the change. The undo of the step must apply it."""
    RESTORE = "restore"
    """The restore on the host reverses the change: it sets the old values of the link's fields that `fields` names."""
    NOTHING = "nothing"
    """The change stays; the docstring of the operation says why this is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLink:
    """Change the properties that are not None, in one request. Drivers, and kernels before 6.2, refuse `name` and `mac`
    while the link is up."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"name", "mac", "mtu", "txqlen", "alias", "up"})

    name: str | None = None
    mac: str | None = None
    mtu: int | None = None
    txqlen: int | None = None
    alias: str | None = None
    up: bool | None = None

    def describe(self) -> str:
        told = {"address": self.mac, "name": self.name, "mtu": self.mtu, "txqlen": self.txqlen, "alias": self.alias}
        words = [f"{word} {value}" for word, value in told.items() if value is not None]
        return ", ".join([*words, *(("up" if self.up else "down",) if self.up is not None else ())])


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAltName:
    """Add an alternative name; it becomes the last one in the link's list. EEXIST: a link of the namespace has this
    name."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"alt_names"})

    name: str

    def describe(self) -> str:
        return f"add alternative name {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DropAltName:
    """Remove an alternative name."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"alt_names"})

    name: str

    def describe(self) -> str:
        return f"remove alternative name {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSettings:
    """Set some numbers of LinkState.settings, in one request."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"settings"})

    settings: tuple[tuple[str, int], ...]

    def describe(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSysctl:
    """Set one of LinkState.sysctls. Setting stable_secret changes addr_gen_mode, too. EBUSY: enabling IPv6 forwarding
    would end a default route."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"sysctls"})

    key: str
    value: str = field(repr=False)

    def describe(self) -> str:
        """Return ``set`` and the key of the sysctl, without the value: the value of stable_secret is a secret."""
        return f"set {self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeatures:
    """Set some of LinkState.features, in one request. EOPNOTSUPP: the link's driver lacks one of the features or cannot
    change it."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"features"})

    features: tuple[tuple[str, bool], ...]

    def describe(self) -> str:
        return ", ".join(f"set {name} {'on' if on else 'off'}" for name, on in self.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPrivateFlags:
    """Set some of LinkState.private_flags, in one request. EOPNOTSUPP, EINVAL: the link's driver lacks one of the
    flags."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"private_flags"})

    flags: tuple[tuple[str, bool], ...]

    def describe(self) -> str:
        return ", ".join(f"set private flag {name} {'on' if on else 'off'}" for name, on in self.flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTuning:
    """Set some sizes of LinkState.tuning: one request each for rings, channels and coalescing. The driver may take the
    link down and up. EOPNOTSUPP, EINVAL: the link's driver refuses one of the sizes."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"tuning"})

    sizes: tuple[tuple[str, int], ...]

    def describe(self) -> str:
        return ", ".join(f"set {name} {value}" for name, value in self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachXdp:
    """Detach all XDP programs from the link; succeeds if there are none. EBUSY: a program belongs to a bpf_link, which
    keeps it until the owning process ends."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"xdp"})

    def describe(self) -> str:
        return "detach XDP"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachTcx:
    """Detach all TCX programs from the link except those in `keep`. Succeeds if there are none, or if the kernel has no
    TCX. The move into a pod removes programs of TC filters by itself.

    Nothing attaches the programs again. In a pod this operation needs a rule of the node that permits it; on the host
    it removes only the pod's own programs.
    """

    gone_with: ClassVar[GoneWith] = GoneWith.NOTHING
    fields: ClassVar[frozenset[str]] = frozenset({"tcx"})

    keep: tuple[int, ...] = ()

    def describe(self) -> str:
        return "detach eBPF programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinVrf:
    """Put the link into a VRF of the namespace, and create the VRF if it does not exist. EEXIST: another link has the
    VRF's name, or the VRF exists with another table. EOPNOTSUPP: the kernel has no VRFs."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    vrf: VrfConfig

    def describe(self) -> str:
        return f"join VRF {self.vrf.name} with table {self.vrf.table}"

    def inverse(self) -> Op:
        return DropVrf(vrf=self.vrf)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropVrf:
    """Remove a VRF from the namespace if nri-rdma created it and no other link is in it; succeeds if it does not
    exist."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    vrf: VrfConfig

    def describe(self) -> str:
        return f"remove VRF {self.vrf.name}"

    def inverse(self) -> Op:
        return JoinVrf(vrf=self.vrf)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAddress:
    """Add an address. EEXIST: the link already has it."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"addresses"})

    address: IPv4Interface | IPv6Interface

    def describe(self) -> str:
        return f"add address {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherit:
    """Recreate an address, a neighbour or a route of the host in a pod. An IPv6 address is usable at once. EEXIST: the
    pod already has it."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"addresses", "neighbours", "routes"})

    brought: Brought

    def describe(self) -> str:
        return f"inherit {self.brought}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Add a captured address, neighbour, route, queueing discipline or forwarding entry to the link; succeeds if the
    link already has it."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"addresses", "forwarding", "neighbours", "queues", "routes"})

    thing: Captured

    def describe(self) -> str:
        return f"restore {self.thing.words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Remove a captured address, neighbour, route, queueing discipline or forwarding entry from the link; succeeds if
    the link does not have it."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"addresses", "forwarding", "neighbours", "queues", "routes"})

    thing: Captured

    def describe(self) -> str:
        return f"remove {self.thing.words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRoute:
    """Add a route over the link. EEXIST: the namespace has a route with this destination, table and metric.
    ENETUNREACH: the gateway is in none of the link's networks. EINVAL: the source is not an address of the
    namespace."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"routes"})

    route: RouteConfig

    def describe(self) -> str:
        return f"add route {self.route}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNeighbour:
    """Add a permanent neighbour; it replaces an entry that the kernel has learned."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"neighbours"})

    neighbour: NeighbourConfig

    def describe(self) -> str:
        return f"add neighbour {self.neighbour}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRejectRoute:
    """Add a reject route (such as blackhole or unreachable) to the namespace; the link does not matter. EEXIST: the
    namespace has a route with this destination, table and metric."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    route: RouteConfig

    def describe(self) -> str:
        return f"add route {self.route}"

    def inverse(self) -> Op:
        return RemoveRejectRoute(route=self.route)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRejectRoute:
    """Remove a reject route from the namespace if nri-rdma added it; succeeds if it does not exist."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    route: RouteConfig

    def describe(self) -> str:
        return f"remove route {self.route}"

    def inverse(self) -> Op:
        return AddRejectRoute(route=self.route)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRule:
    """Add a routing rule of one IP version to the namespace; the link does not matter. EEXIST: the namespace has this
    rule."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    rule: RoutingRule

    def describe(self) -> str:
        return f"add IPv{self.rule.version} rule {self.rule}"

    def inverse(self) -> Op:
        return RemoveRule(rule=self.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRule:
    """Remove a routing rule from the namespace if nri-rdma added it; succeeds if it does not exist. Among rules with
    the same priority and table, remove those with more conditions first: for the kernel a missing condition matches any
    value, so it could remove the wrong rule."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    rule: RoutingRule

    def describe(self) -> str:
        return f"remove IPv{self.rule.version} rule {self.rule}"

    def inverse(self) -> Op:
        return AddRule(rule=self.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameRdma:
    """Rename an RDMA device; the only operation on RDMA devices. EEXIST: another RDMA device of the machine has this
    name."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"name"})

    name: str

    def describe(self) -> str:
        return f"rename to {self.name}"


Op: TypeAlias = (
    SetLink
    | AddAltName
    | DropAltName
    | SetSettings
    | SetSysctl
    | SetFeatures
    | SetPrivateFlags
    | SetTuning
    | DetachXdp
    | DetachTcx
    | JoinVrf
    | DropVrf
    | AddAddress
    | Inherit
    | Restore
    | Remove
    | AddRoute
    | AddNeighbour
    | AddRejectRoute
    | RemoveRejectRoute
    | AddRule
    | RemoveRule
    | RenameRdma
)
OP_TYPES: Final[frozenset[type[Op]]] = frozenset(get_args(Op))


def inverses_of(ops: Iterable[Op]) -> tuple[Op, ...]:
    """Return the operations that undo the changes which `ops` made to the namespace, last change first. Rules with more
    conditions come before others (see RemoveRule). Changes to the link need no inverse: they end when the link leaves
    the pod."""
    done = (AddRejectRoute, AddRule, JoinVrf)
    found = [op.inverse() for op in ops if isinstance(op, done)]
    found.reverse()
    return tuple(sorted(found, key=lambda op: -op.rule.selectors if isinstance(op, RemoveRule) else 0))

"""Operations on one link or RDMA device: values, which the port applies in order (attach/port.py, Kernel.apply).

Pure. An operation names no number: which link it is for, the caller says. How the kernel is asked for it stands in one
table (host/netlink/codec.py), what it changes in the fake kernel in another one (tests/fakes/kernel.py).
A journal holds the values from which operations are made, never operations.
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
    """The event that reverses the change which an operation made to a link in a pod."""

    MOVE = "move"
    """The move back to the host: the kernel drops it."""
    INVERSE = "inverse"
    """An operation that `inverse()` returns; the step that applied it must apply that in its undo."""
    RESTORE = "restore"
    """The restore on the host: `fields` of the captured state hold the value from before."""
    NOTHING = "nothing"
    """Nothing: the operation says why that is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLink:
    """Change what is not None, in one request. Drivers, and kernels before 6.2, refuse `name` and `mac` while the link
    is up."""

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
    """Add an alternative name after those that the link has. EEXIST: a link of the namespace has it."""

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
    """Set numbers of LinkState.settings, in one request."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"settings"})

    settings: tuple[tuple[str, int], ...]

    def describe(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSysctl:
    """Set one of LinkState.sysctls. The secret of stable addresses changes addr_gen_mode, too. EBUSY: IPv6 forwarding,
    which would end a default route."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"sysctls"})

    key: str
    value: str = field(repr=False)

    def describe(self) -> str:
        """The value is left out, as it is of repr(): one of them is a secret."""
        return f"set {self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetFeatures:
    """Set some of LinkState.features, in one request. EOPNOTSUPP: the link's driver does not have one of them, or does
    not let it be set."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"features"})

    features: tuple[tuple[str, bool], ...]

    def describe(self) -> str:
        return ", ".join(f"set {name} {'on' if on else 'off'}" for name, on in self.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPrivateFlags:
    """Set some of LinkState.private_flags, in one request. EOPNOTSUPP, EINVAL: the link's driver does not have one of
    them."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"private_flags"})

    flags: tuple[tuple[str, bool], ...]

    def describe(self) -> str:
        return ", ".join(f"set private flag {name} {'on' if on else 'off'}" for name, on in self.flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTuning:
    """Set sizes of LinkState.tuning: one request for all of rings, one for channels, one for coalescing. It may take
    the link down and up. EOPNOTSUPP, EINVAL: the link's driver does not take one of them."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"tuning"})

    sizes: tuple[tuple[str, int], ...]

    def describe(self) -> str:
        return ", ".join(f"set {name} {value}" for name, value in self.sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachXdp:
    """Detach every XDP program; none is no error. EBUSY: one belongs to a bpf_link, and goes with its process."""

    gone_with: ClassVar[GoneWith] = GoneWith.RESTORE
    fields: ClassVar[frozenset[str]] = frozenset({"xdp"})

    def describe(self) -> str:
        return "detach XDP"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetachTcx:
    """Detach the eBPF programs of TCX, but those with the ids in `keep`; none is no error, nor a kernel without TCX.
    Programs of TC's filters are gone with the move into the pod.

    Nothing brings them back: in a pod only a rule of the node permits it, on the host only the pod's own go."""

    gone_with: ClassVar[GoneWith] = GoneWith.NOTHING
    fields: ClassVar[frozenset[str]] = frozenset({"tcx"})

    keep: tuple[int, ...] = ()

    def describe(self) -> str:
        return "detach eBPF programs"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinVrf:
    """Make a VRF in the namespace unless it has this one, and put the link into it. EEXIST: the namespace has another
    link of that name, or that VRF with another table. EOPNOTSUPP: the kernel has no VRFs."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    vrf: VrfConfig

    def describe(self) -> str:
        return f"join VRF {self.vrf.name} with table {self.vrf.table}"

    def inverse(self) -> Op:
        return DropVrf(vrf=self.vrf)


@dataclass(frozen=True, slots=True, kw_only=True)
class DropVrf:
    """Remove a VRF from the namespace, if nri-rdma has made it and no other link is in it; none is no error."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    vrf: VrfConfig

    def describe(self) -> str:
        return f"remove VRF {self.vrf.name}"

    def inverse(self) -> Op:
        return JoinVrf(vrf=self.vrf)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddAddress:
    """Add an address. EEXIST: the link has it."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"addresses"})

    address: IPv4Interface | IPv6Interface

    def describe(self) -> str:
        return f"add address {self.address}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherit:
    """Make an address, a neighbour or a route of the host anew in a pod; an IPv6 address is usable at once. EEXIST: it
    is there."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"addresses", "neighbours", "routes"})

    brought: Brought

    def describe(self) -> str:
        return f"inherit {self.brought}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restore:
    """Add a captured address, neighbour, route, queueing discipline or forwarding entry to the link; one that exists is
    no error."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"addresses", "forwarding", "neighbours", "queues", "routes"})

    thing: Captured

    def describe(self) -> str:
        return f"restore {self.thing.words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Remove a captured address, neighbour, route, queueing discipline or forwarding entry; one that does not exist is
    no error."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"addresses", "forwarding", "neighbours", "queues", "routes"})

    thing: Captured

    def describe(self) -> str:
        return f"remove {self.thing.words}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRoute:
    """Add a route over the link. EEXIST: the namespace has one with the same destination, table and metric.
    ENETUNREACH: the gateway is in none of the link's networks. EINVAL: the source is no address of the namespace."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"routes"})

    route: RouteConfig

    def describe(self) -> str:
        return f"add route {self.route}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddNeighbour:
    """Add a permanent neighbour, in place of what the kernel has learned of it."""

    gone_with: ClassVar[GoneWith] = GoneWith.MOVE
    fields: ClassVar[frozenset[str]] = frozenset({"neighbours"})

    neighbour: NeighbourConfig

    def describe(self) -> str:
        return f"add neighbour {self.neighbour}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRejectRoute:
    """Add a route that leads nowhere to the namespace, whatever the link. EEXIST: as AddRoute."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    route: RouteConfig

    def describe(self) -> str:
        return f"add route {self.route}"

    def inverse(self) -> Op:
        return RemoveRejectRoute(route=self.route)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRejectRoute:
    """Remove a route that leads nowhere from the namespace, if nri-rdma has added it; none is no error."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    route: RouteConfig

    def describe(self) -> str:
        return f"remove route {self.route}"

    def inverse(self) -> Op:
        return AddRejectRoute(route=self.route)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddRule:
    """Add a rule, of one IP version, to the namespace, whatever the link. EEXIST: the namespace has it."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    rule: RoutingRule

    def describe(self) -> str:
        return f"add IPv{self.rule.version} rule {self.rule}"

    def inverse(self) -> Op:
        return RemoveRule(rule=self.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveRule:
    """Remove a rule from the namespace, if nri-rdma has added it; none is no error. Of rules with the same priority and
    table the one with most conditions must be removed first: the kernel takes a missing condition for any."""

    gone_with: ClassVar[GoneWith] = GoneWith.INVERSE
    fields: ClassVar[frozenset[str]] = frozenset()

    rule: RoutingRule

    def describe(self) -> str:
        return f"remove IPv{self.rule.version} rule {self.rule}"

    def inverse(self) -> Op:
        return AddRule(rule=self.rule)


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameRdma:
    """Rename an RDMA device: the one operation that is for an RDMA device. EEXIST: another one of the machine has that
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
    """Return what takes these changes of a namespace away, the last one first; of rules, those with most conditions
    first (see RemoveRule). What goes with the link is left out."""
    done = (AddRejectRoute, AddRule, JoinVrf)
    found = [op.inverse() for op in ops if isinstance(op, done)]
    found.reverse()
    return tuple(sorted(found, key=lambda op: -op.rule.selectors if isinstance(op, RemoveRule) else 0))

"""The plan of an attach: pure data, decided before anything is touched.

All refusals happen here. The plan is what the journal stores, and steps are made of it, so that a daemon that starts
anew undoes exactly what its predecessor intended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface, IPv6Interface

from nri_rdma.attach.configuration import (
    configs_of,
    ops_after_up,
    ops_before_addresses,
    refuse_unfit,
    with_features_of,
)
from nri_rdma.attach.ops import AddAddress, AddRoute, AddRule, Inherit, Op, SetLink, SetSysctl
from nri_rdma.decide.inheritance import Arrival, inherit, leading_away
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import Netdev, RdmaDevice
from nri_rdma.model.inherited import Inherited, Takes
from nri_rdma.model.link import LinkState
from nri_rdma.model.network import NetworkConfig
from nri_rdma.model.nldev import RdmaDeviceState
from nri_rdma.model.request import DeviceRequest, Mode
from nri_rdma.model.routing import KnownRule, Routing
from nri_rdma.model.usage import Lifelines

DEFAULT_INTERFACE_NAME = "rdma%d"
NO_CONFIG = NetworkConfig()
"""One for all, so that what is worked out for it is kept once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetdevMove:
    """A netdev that goes into the pod: as it was on the host, and how it shall be in the pod."""

    device: str
    link: LinkState
    pod_name: str
    pod_ifindex: int
    """The number it gets in the pod: there it is known by this, which a pod cannot change."""
    mtu: int | None
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    config: NetworkConfig = NO_CONFIG
    takes: Takes = field(default_factory=Takes)
    """What it is to take along; nothing once that is decided, as `inherited`."""
    inherited: Inherited = field(default_factory=Inherited)
    leads_away: tuple[str, ...] = ()
    """What the request's routes lead away of the pod's cluster network, where that is known: a right, and reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaMove:
    """An RDMA device that goes into the pod, as it was on the host. `parent` is empty for a soft device."""

    device: str
    index: int
    node_guid: str
    parent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All changes to the host for one sandbox."""

    moves: tuple[NetdevMove, ...] = ()
    rdma_moves: tuple[RdmaMove, ...] = ()


def ops_of(move: NetdevMove) -> tuple[Op, ...]:
    """Return what is done to a netdev inside the pod: sysctls, MTU, addresses, the way up, and what needs that, in this
    order. What the request says comes after what is inherited: of two values it is the one that stays.

    The undo goes by the same list: what is gone with the move or with the restore needs none of its own."""
    inherited = move.inherited
    return (
        *(SetSysctl(key=key, value=value) for key, value in inherited.sysctls),
        *ops_before_addresses(move.config),
        *((SetLink(mtu=move.mtu),) if move.mtu is not None else ()),
        *(AddAddress(address=address) for address in move.addresses),
        *(Inherit(brought=it) for it in inherited.addresses),
        SetLink(up=True),
        *(Inherit(brought=it) for it in inherited.things),
        *(AddRoute(route=route) for route in inherited.routes),
        *(AddRule(rule=rule) for rule in inherited.rules),
        *ops_after_up(move.config),
    )


def moving_netdevs(placed: tuple[Placed, ...]) -> tuple[Netdev, ...]:
    """The netdevs that leave the host for these devices."""
    return tuple(
        netdev
        for item in placed
        if item.admitted.mode is Mode.EXCLUSIVE
        for device in item.devices
        for netdev in device.netdevs
    )


def plan_attach(
    placed: tuple[Placed, ...],
    links: Mapping[int, LinkState],
    pod_links: Iterable[LinkState],
) -> Plan:
    """The moves for `placed`.

    `links` has the present state of every moving netdev by ifindex; `pod_links` are the links that the pod's
    namespace has already. Raises PlacementError when a netdev is not what the inventory knew, when the host would lose
    something with it, or when a name is taken.
    """
    present = tuple(pod_links)
    names = names_in_pod(placed, (name for link in present for name in (link.name, *link.alt_names)))
    numbers = _NumberSource({link.ifindex for link in present}, links.keys())
    moves: list[NetdevMove] = []
    for item in placed:
        if item.admitted.mode is not Mode.EXCLUSIVE:
            continue
        interface = item.admitted.request.interface
        configs = configs_of(item.admitted.request, len(item.devices))
        for number, device in enumerate(item.devices):
            addresses = interface.addresses[number] if interface.addresses else ()
            for port, netdev in enumerate(device.netdevs):
                link = _same_link(device, netdev, links)
                config = numbers.with_vrf(configs[number]) if port == 0 else NO_CONFIG
                refuse_unfit(device.name, link, interface.mtu, config)
                moves.append(
                    NetdevMove(
                        device=device.name,
                        link=link,
                        pod_ifindex=numbers.take(link.ifindex),
                        pod_name=names[netdev.ifindex],
                        mtu=interface.mtu,
                        addresses=addresses if port == 0 else (),
                        config=config,
                        takes=taken_by(item.admitted.request),
                    )
                )
    return Plan(moves=tuple(moves))


def names_in_pod(placed: tuple[Placed, ...], taken: Iterable[str]) -> Mapping[int, str]:
    """Return the name in the pod of each netdev that moves, by its ifindex on the host; `taken` are the names there.
    Raises PlacementError when a name is taken."""
    names = _NameSource(frozenset(taken))
    return {
        netdev.ifindex: names.take(
            item.admitted.request.interface.name or DEFAULT_INTERFACE_NAME, item.admitted.request.where
        )
        for item in placed
        if item.admitted.mode is Mode.EXCLUSIVE
        for device in item.devices
        for netdev in device.netdevs
    }


def taken_by(request: DeviceRequest) -> Takes:
    """Return what the netdevs of a request take along: all that the request does not say itself. A VRF has its own
    table, for which the host's routes and rules were not made."""
    interface = request.interface
    if not interface.inherit:
        return Takes()
    return Takes(
        addresses=not interface.addresses,
        routes=not request.routes and interface.vrf is None,
        rules=not request.rules and interface.vrf is None,
        neighbours=not request.neighbours,
    )


def with_inherited(
    moves: tuple[NetdevMove, ...], host_rules: tuple[KnownRule, ...], pod: Routing, lifelines: Lifelines
) -> tuple[NetdevMove, ...]:
    """Return the moves with what each netdev takes along; their links have been captured. `pod` is how the pod's
    namespace routes now."""
    arrivals = [
        Arrival(
            link=it.link,
            pod_name=it.pod_name,
            takes=it.takes,
            given=it.addresses,
            mtu=it.mtu,
            has_ipv6=("ipv6/conf/disable_ipv6", "1") not in it.config.sysctls,
        )
        for it in moves
    ]
    decided = inherit(arrivals, host_rules, pod, lifelines)
    has_rules = any(it.config.rules for it in moves)
    return tuple(
        replace(
            move,
            takes=Takes(),
            inherited=inherited,
            leads_away=leading_away(move.config.routes, pod, lifelines, has_rules=has_rules),
        )
        for move, inherited in zip(moves, decided, strict=True)
    )


def plan_rdma_moves(placed: tuple[Placed, ...], present: Iterable[RdmaDeviceState]) -> tuple[RdmaMove, ...]:
    """The moves of RDMA devices for `placed`, where the kernel keeps each in one namespace.

    `present` are the host's RDMA devices now. Raises PlacementError when one is not what the inventory knew.
    """
    by_name = {state.name: state for state in present}
    return tuple(
        _rdma_move(device, by_name.get(device.name))
        for item in placed
        if item.admitted.mode is Mode.EXCLUSIVE
        for device in item.devices
    )


def _rdma_move(device: RdmaDevice, state: RdmaDeviceState | None) -> RdmaMove:
    if state is None or state.node_guid != device.node_guid:
        raise PlacementError(
            ErrorCode.INVENTORY,
            f"the RDMA device {device.name} is no longer what it was",
            where=f"node GUID {device.node_guid}",
            hint="try again: the inventory is read anew after every change",
        )
    return RdmaMove(
        device=device.name,
        index=state.index,
        node_guid=state.node_guid,
        parent=str(device.pci) if device.pci is not None else "",
    )


def _same_link(device: RdmaDevice, netdev: Netdev, links: Mapping[int, LinkState]) -> LinkState:
    link = links.get(netdev.ifindex)
    if link is None or link.mac != netdev.mac:
        raise _another(device.name, netdev.name, netdev.ifindex, netdev.mac)
    _refuse_tied(device.name, link)
    return link


def with_carried(move: NetdevMove, carried: Mapping[int, LinkState]) -> NetdevMove:
    """The move of a link that has been captured since it was decided upon. Raises PlacementError where that has become
    another one, or one that the host would miss."""
    link = carried.get(move.link.ifindex)
    if link is None or link.mac != move.link.mac:
        raise _another(move.device, move.link.name, move.link.ifindex, move.link.mac)
    _refuse_tied(move.device, link)
    config = with_features_of(move.device, link, move.config)
    return replace(move, link=replace(link, fixed_features=""), config=config)  # nothing else needs them


def _another(device: str, name: str, ifindex: int, mac: str) -> PlacementError:
    return PlacementError(
        ErrorCode.INVENTORY,
        f"netdev {name} of {device} is no longer what it was",
        where=f"ifindex {ifindex}, {mac}",
        hint="try again: the inventory is read anew after every change",
    )


def _refuse_tied(device: str, link: LinkState) -> None:
    if link.master:
        raise PlacementError(
            ErrorCode.DEVICE_IN_USE,
            f"{device} is in use: {link.name} has been enslaved",
            where=f"master ifindex {link.master}",
            hint="take it out of its bond, bridge, team or VRF, or ask for another device",
        )
    if link.unreturnable:
        raise PlacementError(
            ErrorCode.DEVICE_IN_USE,
            f"{device} is in use: {link.name} {'; '.join(link.unreturnable)}",
            hint="take that away on the host, or ask for mode: shared, or for another device",
        )
    if link.xdp:
        raise PlacementError(
            ErrorCode.DEVICE_IN_USE,
            f"{device} is in use: {link.name} has an XDP program attached",
            hint="take it away on the host, or ask for another device",
        )


class _NumberSource:
    """Gives interface numbers inside one pod: the host's own where it is free there."""

    def __init__(self, taken: AbstractSet[int], wished: AbstractSet[int]) -> None:
        self._taken = taken
        self._next = max((*taken, *wished), default=0) + 1
        self._of_vrfs: dict[str, int] = {}

    def with_vrf(self, config: NetworkConfig) -> NetworkConfig:
        """Return the configuration with a number for its VRF: without one the kernel would choose, perhaps that of a
        netdev which comes after it."""
        if config.vrf is None:
            return config
        if config.vrf.name not in self._of_vrfs:
            self._of_vrfs[config.vrf.name], self._next = self._next, self._next + 1
        return replace(config, vrf=replace(config.vrf, ifindex=self._of_vrfs[config.vrf.name]))

    def take(self, ifindex: int) -> int:
        if ifindex not in self._taken:
            return ifindex
        number, self._next = self._next, self._next + 1  # beyond all that are wished
        return number


class _NameSource:
    """Gives interface names inside one pod."""

    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}
        """The first number of each template that may be free: names are taken, and never given back."""

    def take(self, template: str, where: str) -> str:
        name = self._next(template) if "%d" in template else template
        if name in self._taken:
            raise PlacementError(
                ErrorCode.NAME_CONFLICT,
                f"the pod has an interface {name} already",
                where=where,
                hint="choose another interface.name, or one with %d",
            )
        self._taken.add(name)
        return name

    def _next(self, template: str) -> str:
        number = self._numbers.get(template, 0)
        while (name := template.replace("%d", str(number))) in self._taken:
            number += 1
        self._numbers[template] = number
        return name

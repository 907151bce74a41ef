"""The plan of an attach: pure data, decided before anything on the host changes.

A request that cannot be served is refused here. The journal stores the plan, and the steps are made from it. So a
restarted daemon undoes exactly the steps that the daemon before it intended.
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
"""The empty configuration. One object is used everywhere, because caches recognise it by its identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetdevMove:
    """A netdev that moves into the pod: its state on the host, and its name, number and configuration in the pod."""

    device: str
    link: LinkState
    pod_name: str
    pod_ifindex: int
    """The interface number in the pod. The netdev is recognised by it there, because a pod cannot change it."""
    mtu: int | None
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    config: NetworkConfig = NO_CONFIG
    takes: Takes = field(default_factory=Takes)
    """The parts of the host's configuration that the netdev is to keep in the pod; empty once `inherited` is
    decided."""
    inherited: Inherited = field(default_factory=Inherited)
    leads_away: tuple[str, ...] = ()
    """The parts of the pod's cluster network whose packets the request's routes send over this netdev, as far as known.
    Such routes are permitted, and reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaMove:
    """An RDMA device that moves into the pod, described as it was on the host. `parent` is its PCI address, "" for a
    soft device."""

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
    """Return the operations on a netdev inside the pod, in order: sysctls, MTU, addresses, link up, and then what needs
    the link up. The operations of the request come after the inherited ones, so that the request wins where both set a
    value.

    The undo reads this list, too, and reverses the changes that stay in the namespace when the netdev leaves.
    """
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
    """Return the netdevs that move into the pod: those of the exclusive devices in `placed`."""
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
    """Return the plan for moving the netdevs of `placed`.

    `links` has the present state of each moving netdev by ifindex; `pod_links` are the links that are in the pod
    already. Raises PlacementError if a netdev is no longer the one in the inventory, if the host still uses it, or if a
    name is taken.
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
    """Return the name in the pod of each netdev that moves, by its ifindex on the host. `taken` are the names that the
    pod's links have already. Raises PlacementError if a requested name is taken."""
    names = _NameSource(frozenset(taken))
    wanted = [
        (netdev.ifindex, item.admitted.request.interface.name or DEFAULT_INTERFACE_NAME, item.admitted.request.where)
        for item in placed
        if item.admitted.mode is Mode.EXCLUSIVE
        for device in item.devices
        for netdev in device.netdevs
    ]
    wanted.sort(key=lambda it: "%d" in it[1])  # whole names first: a number must not take one of them
    return {ifindex: names.take(name, where) for ifindex, name, where in wanted}


def taken_by(request: DeviceRequest) -> Takes:
    """Return which parts of the host's configuration the netdevs of a request keep in the pod: those that the request
    does not set itself. With a VRF they keep no routes and rules, because the host's were not made for the VRF's
    table."""
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
    """Return the moves with the host configuration that each netdev keeps in the pod. The links must have been
    captured. `pod` is the pod's present routing; `lifelines` are addresses that must stay reachable, such as the node's
    and the API server's."""
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
    """Return the moves of the RDMA devices in `placed`, for a kernel that shows each RDMA device in one namespace only.

    `present` are the host's RDMA devices now. Raises PlacementError if a device is no longer the one in the inventory.
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
    """Return the move with its link's present state from `carried`, by ifindex. Raises PlacementError if another netdev
    has the ifindex now, or if the host has begun to use the netdev."""
    link = carried.get(move.link.ifindex)
    if link is None or link.mac != move.link.mac:
        raise _another(move.device, move.link.name, move.link.ifindex, move.link.mac)
    _refuse_tied(move.device, link)
    config = with_features_of(move.device, link, move.config)
    return replace(move, link=replace(link, fixed_features=""), config=config)  # only with_features_of needs them


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
            hint="remove that on the host, or ask for mode: shared, or for another device",
        )
    if link.xdp:
        raise PlacementError(
            ErrorCode.DEVICE_IN_USE,
            f"{device} is in use: {link.name} has an XDP program attached",
            hint="detach the program on the host, or ask for another device",
        )


class _NumberSource:
    """Gives interface numbers inside one pod. A netdev keeps the number that it has on the host if the number is free
    in the pod."""

    def __init__(self, taken: AbstractSet[int], wished: AbstractSet[int]) -> None:
        self._taken = taken
        self._next = max((*taken, *wished), default=0) + 1
        self._of_vrfs: dict[str, int] = {}

    def with_vrf(self, config: NetworkConfig) -> NetworkConfig:
        """Return the configuration with an interface number for its VRF. Otherwise the kernel would choose one, perhaps
        the number that a later netdev needs."""
        if config.vrf is None:
            return config
        if config.vrf.name not in self._of_vrfs:
            self._of_vrfs[config.vrf.name], self._next = self._next, self._next + 1
        return replace(config, vrf=replace(config.vrf, ifindex=self._of_vrfs[config.vrf.name]))

    def take(self, ifindex: int) -> int:
        if ifindex not in self._taken:
            return ifindex
        number, self._next = self._next, self._next + 1  # beyond all numbers that a netdev may want to keep
        return number


class _NameSource:
    """Gives interface names inside one pod, and raises PlacementError if a name is taken."""

    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}
        """For each template with %d, the lowest number that may be free. Names are only taken, never released."""

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

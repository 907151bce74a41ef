"""The network configuration of each netdev of a request, and the operations that set it up in the pod.

Pure. The order of operations is the kernel's: some must come before the addresses, others need the link up. Routes to
networks on the link come before routes over a gateway, because the kernel must be able to reach the gateway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache
from ipaddress import IPv4Interface, IPv6Interface
from typing import Final, TypeAlias

from nri_rdma.attach.ops import (
    AddNeighbour,
    AddRejectRoute,
    AddRoute,
    AddRule,
    DetachTcx,
    JoinVrf,
    Op,
    SetFeatures,
    SetLink,
    SetPrivateFlags,
    SetSettings,
    SetSysctl,
)
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.link import LinkState, features_of
from nri_rdma.model.network import (
    MAIN_TABLE,
    EthtoolConfig,
    NeighbourConfig,
    NetworkConfig,
    RouteConfig,
    RoutingRule,
    VrfConfig,
)
from nri_rdma.model.reach import Reach
from nri_rdma.model.request import DeviceRequest, InterfaceConfig
from nri_rdma.model.same import Same

_KEPT = 16
"""The number of requests whose configurations are cached."""
_KEPT_CONFIGS = 64
"""The number of netdev configurations whose operations are cached."""


def configs_of(request: DeviceRequest, devices: int) -> tuple[NetworkConfig, ...]:
    """Return one configuration for each device of a request; `devices` is their number. It applies to the device's
    first netdev.

    Rules and reject routes belong to the namespace, not to a link: they are part of the first device's configuration.
    """
    return _configs_of(
        Same(request.interface),
        Same(request.ethtool),
        Same(request.routes),
        Same(request.neighbours),
        Same(request.rules),
        devices,
    )


@lru_cache(_KEPT)
def _configs_of(
    of_interface: Same[InterfaceConfig],
    ethtool: Same[EthtoolConfig],
    routes_of_all: Same[tuple[RouteConfig, ...]],
    neighbours_of_all: Same[tuple[NeighbourConfig, ...]],
    rules_of_all: Same[tuple[RoutingRule, ...]],
    devices: int,
) -> tuple[NetworkConfig, ...]:
    """Return the configurations of `configs_of`, from a cache where possible. The pods of a job share these objects,
    because their annotation is parsed once."""
    interface = of_interface.value
    addresses = interface.addresses or ((),) * devices
    config = NetworkConfig(
        settings=tuple(_given((name, getattr(interface, name)) for name in _SIZES)),
        sysctls=tuple(_sysctls(interface)),
        features=ethtool.value.features,
        private_flags=ethtool.value.private_flags,
        detaches_ebpf=interface.disables_ebpf,
        vrf=interface.vrf,
    )
    reach = Reach(addresses)
    routes: dict[int | None, list[RouteConfig]] = defaultdict(list)
    for route in routes_of_all.value:
        number = reach.netdev_of_route(route) if route.is_over_netdev else 0
        own = addresses[number] if number is not None and addresses else ()
        if not _is_of_an_address(added := _in_vrf(route, interface.vrf), own, interface.vrf):
            routes[number].append(added)
    neighbours: dict[int | None, list[NeighbourConfig]] = defaultdict(list)
    for neighbour in neighbours_of_all.value:
        neighbours[reach.netdev_of_neighbour(neighbour.destination)].append(neighbour)
    rules = tuple(one for rule in rules_of_all.value for one in _by_version(rule))
    return tuple(
        replace(
            config,
            mac=interface.macs[number] if interface.macs else "",
            neighbours=tuple(neighbours[number]),
            routes=tuple(sorted(routes[number], key=lambda route: bool(route.gateways))),
            rules=rules if number == 0 else (),
        )
        for number in range(devices)
    )


def ops_before_addresses(config: NetworkConfig) -> tuple[Op, ...]:
    """Return the operations that must come before the link is up and has addresses. Drivers refuse to change the MAC of
    a link that is up, joining a VRF moves the routes of existing addresses, and IPv6 addresses need IPv6 enabled."""
    return _ops_before_addresses(Same(config))


@lru_cache(_KEPT_CONFIGS)
def _ops_before_addresses(same: Same[NetworkConfig]) -> tuple[Op, ...]:
    config = same.value
    return (
        *((SetLink(mac=config.mac),) if config.mac else ()),
        *((SetSettings(settings=config.settings),) if config.settings else ()),
        *((SetFeatures(features=config.features),) if config.features else ()),
        *((SetPrivateFlags(flags=config.private_flags),) if config.private_flags else ()),
        *((DetachTcx(),) if config.detaches_ebpf else ()),
        *((JoinVrf(vrf=config.vrf),) if config.vrf is not None else ()),
        *(SetSysctl(key=key, value=value) for key, value in config.sysctls),
    )


def ops_after_up(config: NetworkConfig) -> tuple[Op, ...]:
    """Return the operations to be applied once the link is up: neighbours, routes, rules."""
    return _ops_after_up(Same(config))


@lru_cache(_KEPT_CONFIGS)
def _ops_after_up(same: Same[NetworkConfig]) -> tuple[Op, ...]:
    config = same.value
    return (
        *(AddNeighbour(neighbour=neighbour) for neighbour in config.neighbours),
        *(AddRoute(route=route) if route.is_over_netdev else AddRejectRoute(route=route) for route in config.routes),
        *(AddRule(rule=rule) for rule in config.rules),
    )


def refuse_unfit(device: str, link: LinkState, mtu: int | None, config: NetworkConfig) -> None:
    """Raise PlacementError if the link is known not to support a setting in `mtu` or `config`. Called before anything
    on the host changes."""
    if mtu is not None and link.max_mtu and mtu > link.max_mtu:
        raise _unfit(
            device, link, f"takes an MTU of at most {link.max_mtu}, not {mtu}", "write a smaller interface.mtu"
        )
    known = dict(link.settings)
    unknown = [name for name, _ in config.settings if known and name not in known]
    if unknown:
        what = f"has no {', '.join(unknown)} on this kernel"
        raise _unfit(device, link, what, "leave these sizes out, or use a node with Linux 6.3 at least")


def with_features_of(device: str, link: LinkState, config: NetworkConfig) -> NetworkConfig:
    """Return the configuration with ethtool features under the kernel's names. `link` must be a captured link, because
    only such a link lists its features. A feature that the driver fixes at the requested value is left out. Raises
    PlacementError for a feature or a private flag that the link cannot change."""
    _refuse_unknown_flags(device, link, config)
    known, fixed = features_of(link.features), features_of(link.fixed_features)
    found: dict[str, bool] = {}
    for name, on in config.features:
        meant = _meant(name, known)
        if not meant and (so := _meant(name, fixed)) and all(fixed[it] == on for it in so):
            continue
        if not meant:
            near = get_close_matches(name, (*known, *_ETHTOOL_WORDS), n=1)
            written = f"write {near[0]}; " if near else ""
            hint = f"{written}`ethtool -k {link.name}` on the node shows what can be changed, without [fixed]"
            raise _unfit(device, link, f"cannot change the feature {name}", hint)
        found |= dict.fromkeys(meant, on)
    features = tuple(found.items())
    return config if features == config.features else replace(config, features=features)


def _meant(name: str, known: Iterable[str]) -> list[str]:
    pattern = _ETHTOOL_WORDS.get(name)
    return [it for it in known if it == name or (pattern is not None and fnmatchcase(it, pattern))]


def _refuse_unknown_flags(device: str, link: LinkState, config: NetworkConfig) -> None:
    known = features_of(link.private_flags)
    for name, _ in config.private_flags:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = (
                f"{f'write {near[0]}; ' if near else ''}`ethtool --show-priv-flags {link.name}` on the node shows them"
            )
            raise _unfit(device, link, f"has no private flag {name}", hint)


_ETHTOOL_WORDS: Final = {
    word: pattern
    for words, pattern in (
        (("rx-checksumming", "rx"), "rx-checksum"),
        (("tx-checksumming", "tx"), "tx-checksum-*"),
        (("scatter-gather", "sg"), "tx-scatter-gather*"),
        (("tcp-segmentation-offload", "tso"), "tx-tcp*-segmentation"),
        (("udp-fragmentation-offload", "ufo"), "tx-udp-fragmentation"),
        (("generic-segmentation-offload", "gso"), "tx-generic-segmentation"),
        (("generic-receive-offload", "gro"), "rx-gro"),
        (("large-receive-offload", "lro"), "rx-lro"),
        (("rx-vlan-offload", "rxvlan"), "rx-vlan-hw-parse"),
        (("tx-vlan-offload", "txvlan"), "tx-vlan-hw-insert"),
        (("ntuple-filters", "ntuple"), "rx-ntuple-filter"),
        (("receive-hashing", "rxhash"), "rx-hashing"),
    )
    for word in words
}
"""The names that `ethtool -k` and `-K` use for one or several kernel features (off_flag_def in ethtool's common.c). A
name sets only the features that the driver can change; ethtool does so, too."""


def _unfit(device: str, link: LinkState, what: str, hint: str) -> PlacementError:
    return PlacementError(ErrorCode.INTERFACE_UNFIT, f"{link.name} of {device} {what}", hint=hint)


_SIZES = ("gso_max_size", "gro_max_size", "gso_ipv4_max_size", "gro_ipv4_max_size")
"""The sizes of IPv4 come last, because setting the others sets them, too."""
_Named: TypeAlias = Iterable[tuple[str, int | bool | None]]


def _sysctls(interface: InterfaceConfig) -> Iterator[tuple[str, str]]:
    """Yield the sysctls of the netdev as pairs of key and value. The sysctl that enables or disables IPv6 comes
    first."""
    disable_ipv6 = None if interface.enable_ipv6 is None else not interface.enable_ipv6
    forwarding = [("ipv4/conf/forwarding", interface.forwarding)]
    forwarding += [("ipv6/conf/forwarding", interface.forwarding)] if interface.enable_ipv6 is not False else []
    named: list[tuple[str, int | bool | None]] = [
        ("ipv6/conf/disable_ipv6", disable_ipv6),
        ("ipv4/conf/arp_ignore", interface.arp_ignore),
        ("ipv4/conf/arp_announce", interface.arp_announce),
        *forwarding,
    ]
    yield from ((key, str(value)) for key, value in _given(named))


def _given(named: _Named) -> Iterator[tuple[str, int]]:
    return ((name, int(value)) for name, value in named if value is not None)


def _in_vrf(route: RouteConfig, vrf: VrfConfig | None) -> RouteConfig:
    """Return the route with the VRF's table; without a VRF return it unchanged."""
    return replace(route, table=vrf.table) if vrf is not None else route


def _is_of_an_address(
    route: RouteConfig, own: tuple[IPv4Interface | IPv6Interface, ...], vrf: VrfConfig | None
) -> bool:
    """Return whether the kernel adds this route by itself for one of the netdev's addresses, `own`. Adding such a route
    again would fail."""
    if not any(it.network == route.destination and route.source in {None, it.ip} for it in own):
        return False
    usual = MAIN_TABLE if vrf is None else vrf.table
    return replace(route, scope=0, source=None) == RouteConfig(destination=route.destination, table=usual)


def _by_version(rule: RoutingRule) -> tuple[RoutingRule, ...]:
    """Return the rule as the kernel stores it: one per IP version."""
    return (rule,) if rule.version else (replace(rule, version=4), replace(rule, version=6))

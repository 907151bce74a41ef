"""Netdevs with a network of their own: as a pod's annotation writes it, as moves.c takes it, and as a host has it.

Each netdev has one address, eight routes, four rules, four permanent neighbours, two sysctls and two features.
"""

from __future__ import annotations

ROUTES, RULES, NEIGHBOURS = 8, 4, 4
TOGETHER = 8
"""Netdevs of one request: it may have 64 routes."""
SYSCTLS = {"arpIgnore": ("arp_ignore", 1), "arpAnnounce": ("arp_announce", 2)}
"""By the key of a request."""
FEATURES = ("tx-tcp-segmentation", "tx-generic-segmentation")
"""Both are switched off."""


def request(nics: int, mtu: int, name: str = "rails") -> str:
    """A pod's list with a request for each eight netdevs. Another `name` makes another text of it."""
    together = [range(first, min(first + TOGETHER, nics)) for first in range(0, nics, TOGETHER)]
    return "".join(_request(numbers, mtu, f"{name}{numbers[0]}") for numbers in together)


def settings(number: int) -> tuple[str, ...]:
    """The same of one netdev, as words of moves.c."""
    return (
        *(f"feature:{name}=0" for name in FEATURES),
        *(f"sysctl:{name}={value}" for name, value in SYSCTLS.values()),
        *_objects(number),
    )


def host_batch(number: int, netdev: str) -> str:
    """Address, routes, rules and neighbours of one netdev of a host, as lines of `ip -batch`."""
    lines = [
        f"address add 10.9.{number}.1/24 dev {netdev}",
        *(f"neighbour add {address} lladdr {mac} dev {netdev} nud permanent" for address, mac in _neighbours(number)),
        *(f"route add {to} via {via} dev {netdev}" for to, via in _routes(number)),
        *(f"rule add priority {it} from {source} to {to} table {table}" for it, source, to, table in _rules(number)),
    ]
    return "\n".join(lines)


def inherited_settings(number: int) -> tuple[str, ...]:
    """What such a netdev has in a pod beside others, as words of moves.c: its routes in a table of its own, too, a rule
    that leads there, and three sysctls."""
    table = 30000 + number
    return (
        *(f"sysctl:{name}={value}" for name, value in (("rp_filter", 2), ("arp_ignore", 1), ("arp_announce", 2))),
        *_objects(number),
        f"route:10.9.{number}.0/24,0.0.0.0,{table}",
        *(f"route:{to},{via},{table}" for to, via in _routes(number)),
        f"rule:32765,10.9.{number}.1/32,0.0.0.0/0,{table}",
    )


def _objects(number: int) -> tuple[str, ...]:
    return (
        *(f"neighbour:{address},{mac}" for address, mac in _neighbours(number)),
        *(f"route:{to},{via},254" for to, via in _routes(number)),
        *(f"rule:{priority},{source},{to},{table}" for priority, source, to, table in _rules(number)),
    )


def _request(numbers: range, mtu: int, name: str) -> str:
    sysctls = ", ".join(f"{key}: {value}" for key, (_, value) in SYSCTLS.items())
    features = ", ".join(f"{feature}: false" for feature in FEATURES)
    addresses = ", ".join(f"[10.9.{number}.1/24]" if len(numbers) > 1 else f"10.9.{number}.1/24" for number in numbers)
    lines = [
        f"- name: {name}",
        f"  count: {len(numbers)}",
        f"  interface: {{mtu: {mtu}, addresses: [{addresses}], {sysctls}}}",
        f"  ethtool: {{features: {{{features}}}}}",
        "  routes:",
        *(f"    - {{destination: {to}, gateway: {via}}}" for number in numbers for to, via in _routes(number)),
        "  rules:",
        *(
            f"    - {{priority: {priority}, source: {source}, destination: {to}, table: {table}}}"
            for number in numbers
            for priority, source, to, table in _rules(number)
        ),
        "  neighbors:",
        *(
            f'    - {{destination: {address}, hardwareAddr: "{mac}"}}'
            for number in numbers
            for address, mac in _neighbours(number)
        ),
    ]
    return "\n".join(lines) + "\n"


def _routes(number: int) -> list[tuple[str, str]]:
    return [(f"10.{100 + number}.{at}.0/24", f"10.9.{number}.{2 + at % NEIGHBOURS}") for at in range(ROUTES)]


def _rules(number: int) -> list[tuple[int, str, str, int]]:
    return [(1000 + at, f"10.9.{number}.1/32", f"10.{200 + at}.0.0/16", 1000 + number) for at in range(RULES)]


def _neighbours(number: int) -> list[tuple[str, str]]:
    return [(f"10.9.{number}.{2 + at}", f"02:00:5e:00:{number:02x}:{at:02x}") for at in range(NEIGHBOURS)]

"""Requests of the whole grammar of a netdev's network, made of choices: each is valid, and fits devices of any kind.

A device has the networks of its number (10.9.NUMBER.0/24, fd09:NUMBER::/64), if it has addresses of its own at all.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from nri_rdma.model.request import DeviceRequest
from nri_rdma.text.annotations import PREFIX, parse_pod_request

T = TypeVar("T")
SCHEMA = Path(__file__).parents[3] / "api/request.schema.json"
NOT_OF_THE_NETDEV = frozenset(
    {
        "name",
        "pool",
        "match",
        "count",
        "perGPU",
        "containers",
        "align",
        "gpus",
        "mode",
        "isolation",
        "use",
        "userspace",
        "roceVersion",
        "prove",
        "devices",
        "memlock",
        "limits",
        "adminAccess",
    }
)
"""Keys that choose devices, or that concern what a container has of them."""
_CHOICES = 400
"""More than any request needs."""
_VRF_TABLE = 100
_TOO_SMALL_FOR_IPV6 = 600


class Choices:
    """Choices from a list of bytes."""

    def __init__(self, choices: bytes) -> None:
        self._choices = iter(choices)

    def one(self, options: Sequence[T]) -> T:
        """One of them."""
        return options[next(self._choices) % len(options)]

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """Up to so many different ones."""
        chosen = [next(self._choices) % len(options) for _ in range(self.one(range(most + 1)) if options else 0)]
        return [options[number] for number in dict.fromkeys(chosen)]

    def fields(self, options: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """About half of these keys, with one of the values of each."""
        return {key: self.one(values) for key, values in options.items() if self.one((False, True))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What the devices and the kernel can do."""

    features: tuple[str, ...]
    private_flags: tuple[str, ...] = ()
    vrf: bool = True
    sizes: tuple[str, ...] = ("gsoMaxSize", "groMaxSize", "gsoIPv4MaxSize", "groIPv4MaxSize")


def generated(choices: Choices, devices: int, can: Abilities) -> dict[str, Any]:
    """A request for so many devices, as its author writes it."""
    interface = choices.fields(
        {
            "name": ["nic%d"] if devices > 1 else ["nic0", "nic%d"],
            "inherit": [True, False],
            "hardwareAddr": [_macs(devices)],
            **dict.fromkeys(can.sizes, (60000, 30000)),
            "disableEbpfPrograms": [True],
            "forwarding": [True, False],
            "arpIgnore": [0, 1, 8],
            "arpAnnounce": [0, 2],
            "enableIPv6": [True, False],
            **({"vrf": [{"name": "red"}, {"name": "red", "table": _VRF_TABLE}]} if can.vrf else {}),
        }
    )
    interface |= choices.fields({"mtu": [1280, 1400, _TOO_SMALL_FOR_IPV6]})
    has_ipv6 = interface.get("enableIPv6", True) and interface.get("mtu") != _TOO_SMALL_FOR_IPV6
    has_addresses = choices.one((True, True, False))
    if has_addresses:
        every = [_addresses(choices, number, has_ipv6) for number in range(devices)]
        interface["addresses"] = every if devices > 1 else every[0]
    asked: dict[str, Any] = {"name": "all", "count": devices, "mode": "exclusive", "interface": interface}
    versions = (4, 6) if has_ipv6 else (4,)
    tables: tuple[int, ...] = (0, 100, 70000) if "vrf" not in interface else ()
    lists = {
        "routes": list(_routes(choices, devices, versions, tables, has_addresses)),
        "rules": [_rule(choices, number, versions) for number in range(choices.one((0, 1, 3)))] if tables else [],
        "neighbors": list(_neighbours(choices, devices, versions)) if has_addresses or devices == 1 else [],
    }
    asked |= {key: items for key, items in lists.items() if items}
    ethtool = {
        key: {name: choices.one((True, False)) for name in choices.some(names, 2)}
        for key, names in (("features", can.features), ("privateFlags", can.private_flags))
    }
    if any(ethtool.values()):
        asked["ethtool"] = {key: flags for key, flags in ethtool.items() if flags}
    return asked


def covering(devices: int, can: Abilities) -> list[dict[str, Any]]:
    """Requests that have every key and every type of route between them, the same ones each time."""
    needed = {it for seed in range(400) for it in keys_of(_seeded(seed, devices, can))}
    found: list[dict[str, Any]] = []
    for seed in count():
        asked = _seeded(seed, devices, can)
        if keys_of(asked) & needed:
            found.append(asked)
            needed -= keys_of(asked)
        if not needed:
            return found
    raise AssertionError


def read(asked: Mapping[str, Any]) -> DeviceRequest:
    """The request as the daemon reads it."""
    pod = parse_pod_request({PREFIX: json.dumps([asked])})
    assert pod is not None
    return pod.requests[0]


def keys_of(asked: Any, at: str = "") -> set[str]:
    """The keys of a request, in lists, too: `routes.multipath.weight`. A type of route counts as a key."""
    if isinstance(asked, list):
        return {key for item in asked for key in keys_of(item, at)}
    if not isinstance(asked, dict):
        return set()
    found: set[str] = set()
    for key, value in asked.items():
        name = f"{at}.{key}" if at else key
        is_flag = at in {"ethtool.features", "ethtool.privateFlags"}
        found |= set() if is_flag else {name, *keys_of(value, name)}
        found |= {f"routes.type={value}"} if name == "routes.type" else set()
    return found


def keys_of_schema() -> set[str]:
    """The keys that the schema of requests has for a netdev's network, and any that nobody has sorted yet."""
    request = json.loads(SCHEMA.read_text())["$defs"]["request"]
    properties = {key: it for key, it in request["properties"].items() if key not in NOT_OF_THE_NETDEV}
    return set(_keys_below({"properties": properties}, ""))


def _keys_below(schema: Mapping[str, Any], at: str) -> Iterator[str]:
    for key, value in schema.get("properties", {}).items():
        name = f"{at}.{key}" if at else key
        yield name
        yield from _keys_below(value, name)
    for part in (schema.get("items"), *schema.get("anyOf", ())):
        if isinstance(part, dict):
            yield from _keys_below(part, at)


def _seeded(seed: int, devices: int, can: Abilities) -> dict[str, Any]:
    return generated(Choices(Random(seed).randbytes(_CHOICES)), devices, can)


def _macs(devices: int) -> str | list[str]:
    macs = [f"02:5e:10:00:00:{number:02x}" for number in range(devices)]
    return macs if devices > 1 else macs[0]


def _addresses(choices: Choices, number: int, has_ipv6: bool) -> list[str]:
    more = [f"10.9.{number}.3/24", f"10.10.{number}.1/32"]
    more += [f"fd09:{number}::2/64", f"fd09:{number}::3/128"] if has_ipv6 else []
    return [f"10.9.{number}.2/24", *choices.some(more, 3)]


def _routes(
    choices: Choices, devices: int, versions: Sequence[int], tables: Sequence[int], has_addresses: bool
) -> Iterator[dict[str, Any]]:
    """Each to a network of its own. Several devices are told apart by the source, or by the gateway."""
    for number in range(choices.one((0, 2, 4, 6))):
        device, version = choices.one(range(devices)), choices.one(versions)
        v4 = version == 4
        route: dict[str, Any] = {"destination": f"10.{20 + number}.0.0/16" if v4 else f"fd60:{number}::/48"}
        options: dict[str, Sequence[Any]] = {"metric": [5, 70]} | ({"table": tables} if tables else {})
        kind = choices.one(("gateway", "multipath", "link", "onlink", "blackhole", "unreachable", "prohibit"))
        route |= choices.fields(options)
        if kind in {"blackhole", "unreachable", "prohibit"}:
            yield route | {"type": kind}
            continue
        if not has_addresses and (devices > 1 or kind in {"gateway", "multipath"}):
            continue
        route |= choices.fields({"mtu": [1300, 1400], "advmss": [1200], "type": ["unicast"]})
        source = {"source": f"10.9.{device}.2"} if v4 and has_addresses else {}
        if kind == "link" and (source or devices == 1):
            yield route | {"scope": 253} | (source if devices > 1 else choices.one(({}, source)))
        elif kind == "onlink" and (source or devices == 1):
            route |= {"gateway": f"172.16.{number}.1" if v4 else "fd99::1", "onlink": True}
            yield route | (source if devices > 1 else choices.one(({}, source)))
        elif v4 and has_addresses and kind == "gateway":
            yield route | {"gateway": f"10.9.{device}.9"} | choices.one(({}, source, {"scope": 0}))
        elif v4 and has_addresses and kind == "multipath":
            hops = [{"gateway": f"10.9.{device}.{9 + hop}"} for hop in range(choices.one((2, 3)))]
            yield route | {"multipath": [it | choices.fields({"weight": [1, 7]}) for it in hops]}


def _rule(choices: Choices, number: int, versions: Sequence[int]) -> dict[str, Any]:
    v4 = choices.one(versions) == 4
    rule: dict[str, Any] = choices.fields(
        {
            "source": ["10.9.0.2/32", "10.9.0.0/16"] if v4 else ["fd09::/32"],
            "destination": ["10.20.0.0/16"] if v4 else ["fd60::/32"],
            "fwmark": [1, 7],
            "iif": ["lo", "eth0"],
            "oif": ["eth0"],
            "suppressPrefixLength": [0, 8],
        }
    )
    if "fwmark" in rule:
        rule |= choices.fields({"fwmask": [7, 255]})
    if rule.keys() - {"suppressPrefixLength"}:
        rule |= choices.fields({"invert": [True]})
    return rule | {"priority": 100 + number, "table": choices.one((100, 254, 70000))}


def _neighbours(choices: Choices, devices: int, versions: Sequence[int]) -> Iterator[dict[str, Any]]:
    """With several devices in a network that one of them certainly has."""
    for number in range(choices.one((0, 1, 3))):
        of = choices.one(range(devices))
        address = f"10.9.{of}.{9 + number}"
        if devices == 1 and 6 in versions:
            address = choices.one((address, f"fd09::{9 + number}"))
        yield {"destination": address, "hardwareAddr": f"02:00:5e:10:01:{number:02x}"}

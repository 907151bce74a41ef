"""What the host's network looks like, and what differs between two looks.

Compared are links, addresses, permanent neighbours, routes of all tables and rules, IPv4 and IPv6, with every field
that `ip -j -d` shows except the volatile ones below; what `bridge fdb` shows; the qdiscs, classes and filters that `tc`
shows; what `ethtool` shows of features, channels, rings, coalescing and private flags, where the driver answers; and
the sysctls of each link, with those of its neighbour tables. A link is known by its interface number, so a renamed one
is the same link with another name.

Left out, and only these: the runtime's own veths. Such a link is a veth whose name is `veth` and eight hexadecimal
digits (CNI's ptp plugin) and whose IPv4 addresses all are in 198.18.0.0/15 (the rig's pod network), at least one; what
names it goes with it.
"""

import ipaddress
import json
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

POD_NETWORK = ipaddress.ip_network("198.18.0.0/15")
_CNI_VETH = re.compile(r"veth[0-9a-f]{8}")

# Fields of `ip` that change by themselves.
_LINK_VOLATILE = frozenset({"stats", "stats64", "promiscuity"})  # counters; packet sockets come and go
_ADDRESS_VOLATILE = frozenset(
    {
        "valid_life_time",  # counts down
        "preferred_life_time",  # counts down
        "tentative",  # duplicate address detection of IPv6 is under way
        "dadfailed",
        "temporary",  # IPv6 privacy addresses
        "deprecated",  # follows from the lifetime
    }
)
_ROUTE_VOLATILE = frozenset({"expires", "users", "age", "used", "lastuse"})  # lifetimes and counters
_NEIGHBOUR_VOLATILE = frozenset({"used", "confirmed", "updated", "probes", "refcnt"})
_BRIDGE_TIMER = re.compile(r".*_timer$")
_TUNING = ("-l", "-g", "-c", "--show-priv-flags")
READ_SYSCTLS = (
    f"grep -rs '' {' '.join(f'/proc/sys/net/ipv{it}' for it in ('4/conf', '4/neigh', '6/conf', '6/neigh'))} || true"
)
"""Every value with its file's name. grep says 2 when there is a file that nobody can read."""
_COMMANDS = {
    "links": "ip -j -d address show",
    **{f"routes {family}": f"ip -j -{family} -d route show table all" for family in (4, 6)},
    **{f"rules {family}": f"ip -j -{family} -d rule show" for family in (4, 6)},
    "neighbours": "ip -j neighbour show nud permanent",
    "forwarding": "bridge -j fdb show",
    "qdiscs": "tc -j qdisc show",
    **{f"ethtool {option}": f"ethtool {option} '*'" for option in ("-k", *_TUNING)},
    "sysctls": READ_SYSCTLS,
}
_SEPARATOR = "\x1e"
# CNI's ptp plugin turns forwarding on for the whole host at its first pod; `all` and `default` are no link's.
_SYSCTL_VOLATILE = frozenset({"ipv4/conf/forwarding"})
_QUEUE_COUNTERS = frozenset({"direct_packets_stat"})
_KERNELS_HANDLE = "0:"
_ETHTOOL_HEADING = re.compile(
    r"(?:Features|Channel parameters|Ring parameters|Coalesce parameters|Private flags) for (.+)"
)
_NO_LINKS = frozenset({"all", "default"})

_Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostState:
    """One look at the host; each entry is known by a name a reader understands."""

    links: Mapping[int, _Fields]
    addresses: Mapping[str, _Fields]
    neighbours: Mapping[str, _Fields]
    routes: Mapping[str, _Fields]
    rules: Mapping[str, _Fields]
    forwarding: Mapping[str, _Fields] = field(default_factory=dict)
    queues: Mapping[str, _Fields] = field(default_factory=dict)
    features: Mapping[str, _Fields] = field(default_factory=dict)
    tuning: Mapping[str, _Fields] = field(default_factory=dict)
    sysctls: Mapping[str, _Fields] = field(default_factory=dict)


def take(netns: Path | None = None) -> HostState:
    """The state of the host now, or of another network namespace."""
    texts = shown(netns, _COMMANDS)
    raw_links = _read(texts["links"])
    ignored = {link["ifname"] for link in raw_links if _is_cni_veth(link)}
    links = [link for link in raw_links if link["ifname"] not in ignored]
    routes = [
        route | {"family": family}
        for family in (4, 6)
        for route in _read(texts[f"routes {family}"])
        if route.get("dev") not in ignored
    ]
    rules = [rule | {"family": family} for family in (4, 6) for rule in _read(texts[f"rules {family}"])]
    neighbours = [it for it in _read(texts["neighbours"]) if it.get("dev") not in ignored]
    return HostState(
        links={link["ifindex"]: _link(link) for link in links},
        addresses=_keyed(
            [_without(it, _ADDRESS_VOLATILE) | {"dev": link["ifname"]} for link in links for it in link["addr_info"]],
            lambda it: f"{it['local']}/{it['prefixlen']} of {it['dev']}",
        ),
        neighbours=_keyed(
            [_without(it, _NEIGHBOUR_VOLATILE) for it in neighbours], lambda it: f"{it['dst']} of {it.get('dev')}"
        ),
        routes=_keyed([_without(it, _ROUTE_VOLATILE) for it in routes], _route_name),
        rules=_keyed(rules, lambda it: f"{it['priority']} (IPv{it['family']}) from {it.get('src')}"),
        forwarding=_keyed(
            [it for it in _read(texts["forwarding"]) if it.get("ifname") not in ignored],
            lambda it: f"{it['mac']} of {it['ifname']}",
        ),
        queues=_queues(netns, [it for it in _read(texts["qdiscs"]) if it["dev"] not in ignored]),
        features=_ethtool(texts["ethtool -k"], ignored),
        tuning=_tuning(texts, ignored),
        sysctls=_sysctls(texts["sysctls"], ignored),
    )


def shown(netns: Path | None, commands: Mapping[str, str]) -> Mapping[str, str]:
    """What commands print, by name; RuntimeError at the first that fails. One shell runs them all: to start a process
    from one of pytest's size takes longer than most of them."""
    inside = ["nsenter", f"--net={netns}"] if netns else []
    script = f"\nprintf '{_SEPARATOR}'\n".join(commands.values())
    done = subprocess.run([*inside, "sh", "-ec", script], capture_output=True, text=True, check=False)
    texts = done.stdout.split(_SEPARATOR)
    if done.returncode != 0:
        raise RuntimeError(f"{list(commands.values())[len(texts) - 1]}: {done.stderr.strip()}")
    return dict(zip(commands, texts, strict=True))


def difference(before: HostState, after: HostState) -> list[str]:
    """What is not as it was, one sentence each; empty when the host is equal."""
    found = []
    for index in sorted(before.links.keys() | after.links.keys()):
        old, new = before.links.get(index), after.links.get(index)
        shown = (old or new or {})["ifname"]
        found += _compare(f"link {shown} (index {index})", old, new)
    found += _compare_all("address", before.addresses, after.addresses)
    found += _compare_all("neighbour", before.neighbours, after.neighbours)
    found += _compare_all("route", before.routes, after.routes)
    found += _compare_all("rule", before.rules, after.rules)
    found += _compare_all("forwarding entry", before.forwarding, after.forwarding)
    found += _compare_all("queue", before.queues, after.queues)
    found += _compare_all("features of", before.features, after.features)
    found += _compare_all("driver's settings of", before.tuning, after.tuning)
    found += _compare_all("sysctls of", before.sysctls, after.sysctls)
    return found


def _compare_all(kind: str, before: Mapping[str, _Fields], after: Mapping[str, _Fields]) -> list[str]:
    found = []
    for name in sorted(before.keys() | after.keys()):
        found += _compare(f"{kind} {name}", before.get(name), after.get(name))
    return found


def _compare(name: str, before: _Fields | None, after: _Fields | None) -> list[str]:
    if before is None:
        return [f"{name} is new: {_words(after or {})}"]
    if after is None:
        return [f"{name} is gone: {_words(before)}"]
    keys = sorted(before.keys() | after.keys())
    return [
        f"{name}: {key} was {_value(before, key)}, is {_value(after, key)}"
        for key in keys
        if before.get(key) != after.get(key)
    ]


def _value(fields: _Fields, key: str) -> str:
    return json.dumps(fields[key]) if key in fields else "absent"


def _words(fields: _Fields) -> str:
    return " ".join(f"{key}={value}" for key, value in fields.items() if not isinstance(value, dict | list))


def _link(link: _Fields) -> _Fields:
    fields = dict(_without(link, _LINK_VOLATILE | {"addr_info"}))
    if "linkinfo" in fields:
        fields["linkinfo"] = {
            key: _without_timers(value) if isinstance(value, dict) else value
            for key, value in fields["linkinfo"].items()
        }
    return fields


def _without_timers(data: _Fields) -> _Fields:
    return {key: value for key, value in data.items() if not _BRIDGE_TIMER.match(key)}


def _without(fields: _Fields, names: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in names}


def _keyed(entries: list[dict[str, Any]], name: Callable[[_Fields], str]) -> Mapping[str, _Fields]:
    """Entries by name; entries of one name are counted, so that a second one of it is a difference."""
    found: dict[str, _Fields] = {}
    for entry in sorted(entries, key=lambda it: json.dumps(it, sort_keys=True)):
        key = name(entry)
        number = 2
        while key in found:
            key = f"{name(entry)} (number {number})"
            number += 1
        found[key] = entry
    return found


def _route_name(route: _Fields) -> str:
    through = f" via {route['gateway']}" if "gateway" in route else ""
    on = f" dev {route['dev']}" if "dev" in route else ""
    kind = f"{route['type']} " if route.get("type", "unicast") != "unicast" else ""
    metric = f" metric {route['metric']}" if "metric" in route else ""
    return f"{kind}{route['dst']}{through}{on}{metric} of table {route.get('table', 'main')} (IPv{route['family']})"


def _is_cni_veth(link: _Fields) -> bool:
    if link.get("linkinfo", {}).get("info_kind") != "veth" or not _CNI_VETH.fullmatch(link["ifname"]):
        return False
    own = [ipaddress.ip_address(it["local"]) for it in link["addr_info"] if it["family"] == "inet"]
    return bool(own) and all(address in POD_NETWORK for address in own)


def _queues(netns: Path | None, qdiscs: list[dict[str, Any]]) -> Mapping[str, _Fields]:
    """These, and of links that have a qdisc which somebody has made the classes and filters, as `tc` shows them."""
    found = [it | {"what": "qdisc", "options": _options(it)} for it in qdiscs]
    for link in sorted({it["dev"] for it in qdiscs if it["handle"] != _KERNELS_HANDLE}):
        dev = shlex.quote(link)  # the kernel allows names such as `a;b`
        filters = {side: f"tc -j filter show dev {dev} {side}" for side in ("", "ingress", "egress")}
        texts = shown(netns, {"class": f"tc class show dev {dev}", **filters})
        found += [
            {"dev": link, "what": "class", "kind": line.split()[1], "handle": line.split()[2], "line": line}
            for line in texts["class"].splitlines()
        ]
        for side in filters:
            found += [it | {"dev": link, "what": "filter", "side": side} for it in _read(texts[side])]
    return _keyed(found, lambda it: f"{it['what']} {it['kind']} {it.get('handle', '')} of {it['dev']}")


def _options(qdisc: _Fields) -> _Fields:
    """What a qdisc is told. Of the kernel's own the quantum is left out: it is the MTU at the moment when the link came
    up, and networkd may raise a netdev that returns before its MTU is what it was."""
    of_the_kernel = frozenset({"quantum"}) if qdisc["handle"] == _KERNELS_HANDLE else frozenset()
    return _without(qdisc["options"], _QUEUE_COUNTERS | of_the_kernel)


def _tuning(texts: Mapping[str, str], ignored: set[str]) -> Mapping[str, _Fields]:
    found: dict[str, dict[str, str]] = {}
    for option in _TUNING:
        for link, fields in _ethtool(texts[f"ethtool {option}"], ignored).items():
            found.setdefault(link, {}).update({f"{option} {name}": value for name, value in fields.items()})
    return found


def _ethtool(text: str, ignored: set[str]) -> Mapping[str, dict[str, str]]:
    """What `ethtool` says of all links; a second value of one name (a limit, and what is set) has a number."""
    found: dict[str, dict[str, str]] = {}
    name = ""
    for line in text.splitlines():
        setting, _, value = line.partition(":")
        if headed := _ETHTOOL_HEADING.match(setting):
            name = headed[1]
        elif setting.strip() and name not in ignored:
            fields = found.setdefault(name, {})
            key = setting.strip()
            while key in fields:
                key += "+"
            fields[key] = value.strip()
    return found


def _sysctls(text: str, ignored: set[str]) -> Mapping[str, _Fields]:
    """By link. What the kernel lets nobody read (a secret that is not set) is left out."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        path, _, value = line.removeprefix("/proc/sys/net/").partition(":")
        family, table, link, key = path.split("/")
        name = f"{family}/{table}/{key}"
        if link not in ignored | _NO_LINKS and name not in _SYSCTL_VOLATILE:
            found.setdefault(link, {})[name] = value
    return found


def _read(text: str) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(text or "[]")
    return entries

"""Two machines for one suite: the fake kernel's world, and this machine's kernel in namespaces of the test's own.

What a test sees of the second comes from `ip -j`, never from the code under test. Its "host" is a namespace, too, so
that nothing of this machine's network is touched.
"""

import json
import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any, Protocol

from nri_rdma.attach.port import Kernel
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.model.usage import HostUse
from tests.fakes.kernel import Address, FakeKernel, Forwarding, Link, Neighbour, Netns, Queue, Route, World

HOST, POD = "host", "pod"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A link as a person sees it. Routes are words: ``10.5.0.0/16 via 10.0.0.9 metric 5 table 100 onlink``."""

    name: str
    mac: str
    mtu: int
    txqlen: int
    alias: str
    alt_names: frozenset[str]
    up: bool
    addresses: frozenset[str]
    routes: frozenset[str]
    neighbours: frozenset[str]


class HostKernel(Kernel, Protocol):
    """The port, and what only the reading of the node asks the kernel (host/host_node.py)."""

    def host_use(self, netdevs: Collection[str] = ()) -> HostUse: ...


class Machine(Protocol):
    """What the suite needs besides the kernel: to arrange things, and to look."""

    kernel: HostKernel
    pod_path: str

    def add_link(self, name: str, mac: str, place: str = HOST) -> int: ...

    def set(self, name: str, *, up: bool | None = None, alias: str = "", alt_name: str = "") -> None: ...

    def add_address(self, name: str, address: str) -> None: ...

    def add_route(self, name: str, route: str) -> None: ...

    def add_neighbour(self, name: str, address: str, mac: str) -> None: ...

    def see(self, place: str = HOST) -> dict[int, Seen]: ...

    def set_sysctl(self, name: str, sysctl: str, value: str) -> None: ...

    def sysctl(self, name: str, sysctl: str, place: str = HOST) -> str: ...

    def set_feature(self, name: str, feature: str, value: str) -> None: ...

    def feature(self, name: str, feature: str, place: str = HOST) -> str: ...

    def rules(self, place: str = POD) -> frozenset[str]: ...

    def rejects(self, place: str = POD) -> frozenset[str]: ...

    def add_queue(self, name: str, kind: str, handle: str, parent: str = "root", options: str = "") -> None: ...

    def queues(self, name: str, place: str = HOST) -> frozenset[str]: ...

    def listen(self, name: str, mac: str) -> None: ...

    def listens(self, name: str, place: str = HOST) -> frozenset[str]: ...

    def replace_in_pod(self, name: str) -> None: ...

    def remove_pod(self) -> None: ...

    def bus_device(self) -> str: ...


class FakeMachine:
    """The fake kernel's world."""

    def __init__(self) -> None:
        self._world = World()
        self.pod_path = "/run/netns/pod-1"
        self._world.add_namespace(self.pod_path)
        self._world.add_link(self._world.host, "lo", ifindex=1, kind="")
        self.kernel: HostKernel = FakeKernel(self._world)

    def bus_device(self) -> str:
        self._world.add_rdma("mlx5_0", parent="0000:17:00.0")
        return "pci/0000:17:00.0"

    def add_link(self, name: str, mac: str, place: str = HOST) -> int:
        netns = self._world.host if place == HOST else self._world.namespace(self.pod_path)
        assert netns is not None
        return self._world.add_link(netns, name, mac=mac).ifindex

    def set(self, name: str, *, up: bool | None = None, alias: str = "", alt_name: str = "") -> None:
        link = self._link(name)
        link.alias = alias or link.alias
        link.alt_names += [alt_name] if alt_name else []
        if up is not None:
            (link.raise_up if up else link.take_down)()

    def add_address(self, name: str, address: str) -> None:
        self._link(name).add_address(Address(interface=ip_interface(address)))

    def add_route(self, name: str, route: str) -> None:
        to, *words = route.split()
        pairs = dict(zip(words[::2], words[1::2], strict=False))
        self._link(name).add_route(
            Route(
                to=ip_network(to),
                via=ip_address(pairs["via"]) if "via" in pairs else None,
                src=ip_address(pairs["src"]) if "src" in pairs else None,
                metric=int(pairs.get("metric", 0)),
                table=int(pairs.get("table", 254)),
                onlink="onlink" in words,
            )
        )

    def add_neighbour(self, name: str, address: str, mac: str) -> None:
        self._link(name).neighbours.append(Neighbour(address=ip_address(address), mac=mac))

    def see(self, place: str = HOST) -> dict[int, Seen]:
        netns = self._world.host if place == HOST else self._world.namespace(self.pod_path)
        assert netns is not None
        return {link.ifindex: _seen_in_fake(link) for link in netns.links.values()}

    def set_sysctl(self, name: str, sysctl: str, value: str) -> None:
        self._link(name).sysctls[sysctl] = value

    def sysctl(self, name: str, sysctl: str, place: str = HOST) -> str:
        netns = self._world.host if place == HOST else self._world.namespace(self.pod_path)
        assert netns is not None
        return next(link.sysctls.get(sysctl, "") for link in netns.links.values() if link.name == name)

    def set_feature(self, name: str, feature: str, value: str) -> None:
        self._link(name).features[feature] = value == "on"

    def feature(self, name: str, feature: str, place: str = HOST) -> str:
        netns = self._world.host if place == HOST else self._world.namespace(self.pod_path)
        assert netns is not None
        return next("on" if link.features[feature] else "off" for link in netns.links.values() if link.name == name)

    def rules(self, place: str = POD) -> frozenset[str]:
        """Of both versions, without those of priorities that the kernel's own have: ``4 100: from all lookup 100``."""
        return frozenset(f"{it.version} {it}" for it in self._netns(place).rules if it.priority)

    def rejects(self, place: str = POD) -> frozenset[str]:
        """Routes that lead nowhere: ``blackhole 10.0.0.0/8 metric 5 table 100``."""
        return frozenset(str(it) for it in self._netns(place).rejects)

    def _netns(self, place: str) -> Netns:
        netns = self._world.host if place == HOST else self._world.namespace(self.pod_path)
        assert netns is not None
        return netns

    def add_queue(self, name: str, kind: str, handle: str, parent: str = "root", options: str = "") -> None:
        self._link(name).add_queue(Queue(kind=kind, handle=handle, parent=parent, options=options))

    def queues(self, name: str, place: str = HOST) -> frozenset[str]:
        return frozenset(f"{it.kind} {it.handle} {it.parent}" for it in self._anywhere(name, place).queues)

    def listen(self, name: str, mac: str) -> None:
        self._link(name).forwarding.append(Forwarding(mac=mac))

    def listens(self, name: str, place: str = HOST) -> frozenset[str]:
        return frozenset(it.mac for it in self._anywhere(name, place).forwarding)

    def _anywhere(self, name: str, place: str) -> Link:
        netns = self._world.host if place == HOST else self._world.namespace(self.pod_path)
        assert netns is not None
        return next(link for link in netns.links.values() if link.name == name)

    def replace_in_pod(self, name: str) -> None:
        netns = self._world.namespace(self.pod_path)
        assert netns is not None
        old = next(link for link in netns.links.values() if link.name == name)
        del netns.links[old.ifindex]
        self._world.add_link(netns, name, ifindex=old.ifindex, mac=old.mac)

    def remove_pod(self) -> None:
        self._world.remove_namespace(self.pod_path)

    def _link(self, name: str) -> Link:
        return next(link for link in self._world.host.links.values() if link.name == name)


class LinuxMachine:
    """This machine's kernel."""

    def __init__(self, run: Path) -> None:
        self._paths = {place: run / place for place in (HOST, POD, "peers")}
        self._links = 0
        for path in self._paths.values():
            path.touch()
            _run("unshare", f"--net={path}", "sh", "-c", _PREPARE)
        self.pod_path = str(self._paths[POD])
        self.kernel: HostKernel = LinuxKernel(str(self._paths[HOST]))

    def close(self) -> None:
        """Let everything go; again is no error."""
        self.kernel.host.close()
        for path in self._paths.values():
            if path.exists():
                subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)
                path.unlink()

    def ip(self, place: str, command: str) -> str:
        """`ip COMMAND` in a namespace."""
        return _run("nsenter", f"--net={self._paths[place]}", "ip", *command.split())

    def run(self, place: str, *command: str) -> str:
        """A command in a namespace; what it printed."""
        return _run("nsenter", f"--net={self._paths[place]}", *command)

    def path(self, place: str) -> Path:
        """The file of a namespace."""
        return self._paths[place]

    def bus_device(self) -> str:
        assert Path("/sys/bus/cpu/devices/cpu0").is_symlink()
        return "cpu/cpu0"

    def add_link(self, name: str, mac: str, place: str = HOST) -> int:
        """A veth whose other end is up in a namespace of its own."""
        self._links += 1
        peer = f"p{self._links}"
        self.ip(place, f"link add {name} address {mac} type veth peer name {peer} netns {self._paths['peers']}")
        self.ip("peers", f"link set {peer} up")
        return int(json.loads(self.ip(place, f"-j link show {name}"))[0]["ifindex"])

    def set(self, name: str, *, up: bool | None = None, alias: str = "", alt_name: str = "") -> None:
        if alias:
            self.ip(HOST, f"link set {name} alias {alias}")
        if alt_name:
            self.ip(HOST, f"link property add dev {name} altname {alt_name}")
        if up is not None:
            self.ip(HOST, f"link set {name} {'up' if up else 'down'}")

    def add_address(self, name: str, address: str) -> None:
        self.ip(HOST, f"address add {address} dev {name}")

    def add_route(self, name: str, route: str) -> None:
        self.ip(HOST, f"route add {route} dev {name}")

    def add_neighbour(self, name: str, address: str, mac: str) -> None:
        self.ip(HOST, f"neighbour add {address} lladdr {mac} nud permanent dev {name}")

    def add_queue(self, name: str, kind: str, handle: str, parent: str = "root", options: str = "") -> None:
        place = _tc_parent(f"{handle.partition(':')[0]}:" if _tc_is_class(handle) and parent == "root" else parent)
        where = ["clsact"] if kind == "clsact" else [*place, *_tc_handle(handle), kind, *options.split()]
        self.run(HOST, "tc", "class" if _tc_is_class(handle) else "qdisc", "add", "dev", name, *where)

    def queues(self, name: str, place: str = HOST) -> frozenset[str]:
        """What somebody has made: the kernel's own qdiscs have the handle 0."""
        found = {
            f"{it['kind']} {it['handle']} {'root' if it.get('root') else it['parent']}"
            for it in json.loads(self.run(place, "tc", "-j", "qdisc", "show", "dev", name))
            if it["handle"] != "0:"
        }
        classes = (line.split() for line in self.run(place, "tc", "class", "show", "dev", name).splitlines())
        found |= {f"{it[1]} {it[2]} {it[4] if it[3] == 'parent' else 'root'}" for it in classes if it[1] == "htb"}
        return frozenset(it.replace("ffff:fff1", "ingress") for it in found)

    def listen(self, name: str, mac: str) -> None:
        self.run(HOST, "bridge", "fdb", "add", mac, "dev", name, "self", "permanent")

    def listens(self, name: str, place: str = HOST) -> frozenset[str]:
        """The addresses in 02: and in 01:1b:, which IP has none of."""
        entries = json.loads(self.run(place, "bridge", "-j", "fdb", "show", "dev", name))
        return frozenset(it["mac"] for it in entries if it["mac"].startswith(("02:", "01:1b:")))

    def replace_in_pod(self, name: str) -> None:
        """The pod deletes its veth and makes another one, of the same number, name, address and peer's number."""
        old = json.loads(self.ip(POD, f"-j link show {name}"))[0]
        peer = old.get("link_index") or json.loads(self.ip(POD, f"-j link show {old['link']}"))[0]["ifindex"]
        self.ip(POD, f"link delete {name}")
        self.ip(
            POD,
            f"link add {name} index {old['ifindex']} address {old['address']} type veth peer name evil index {peer}",
        )

    def see(self, place: str = HOST) -> dict[int, Seen]:
        links = json.loads(self.ip(place, "-j -d address show"))
        routes = [
            route | ({"dst": everything} if route["dst"] == "default" else {})
            for family, everything in (("-4", "0.0.0.0/0"), ("-6", "::/0"))
            for route in json.loads(self.ip(place, f"-j -d {family} route show table all") or "[]")
        ]
        neighbours = json.loads(self.ip(place, "-j neighbour show nud permanent") or "[]")
        return {link["ifindex"]: _seen_by_ip(link, routes, neighbours) for link in links}

    def set_sysctl(self, name: str, sysctl: str, value: str) -> None:
        """Of a link, by the name that it has in both kernels: ``ipv4/conf/rp_filter``."""
        self._at_sysctl(HOST, name, sysctl, f"echo {value} > $0")

    def sysctl(self, name: str, sysctl: str, place: str = HOST) -> str:
        return self._at_sysctl(place, name, sysctl, "cat $0").strip()

    def set_feature(self, name: str, feature: str, value: str) -> None:
        """Of a link, by the name that `ethtool -k` shows."""
        self.run(HOST, "ethtool", "-K", name, feature, value)

    def feature(self, name: str, feature: str, place: str = HOST) -> str:
        shown = json.loads(self.run(place, "ethtool", "--json", "-k", name))
        return "on" if shown[0][feature]["active"] else "off"

    def _at_sysctl(self, place: str, name: str, sysctl: str, command: str) -> str:
        family, table, key = sysctl.split("/")
        path = f"/proc/sys/net/{family}/{table}/{name}/{key}"
        return _run("nsenter", f"--net={self._paths[place]}", "sh", "-c", command, path)

    def rules(self, place: str = POD) -> frozenset[str]:
        return frozenset(
            f"{version} {_rule_words(rule)}"
            for version in (4, 6)
            for rule in json.loads(self.ip(place, f"-j -{version} rule show"))
            if rule["priority"] not in {0, 1000, 32766, 32767}
        )

    def rejects(self, place: str = POD) -> frozenset[str]:
        routes = [it for way in ("-4", "-6") for it in json.loads(self.ip(place, f"-j {way} route show table all"))]
        return frozenset(
            f"{it['type']} {_route_words(it['dst'], None, None, it.get('metric', 0), it.get('table', 'main'), False)}"
            for it in routes
            if it.get("type") in {"blackhole", "unreachable", "prohibit"}
        )

    def remove_pod(self) -> None:
        _run("umount", "--lazy", self.pod_path)  # as runtimes do: somebody may hold it open
        self._paths[POD].unlink()


@contextmanager
def linux_machine(run: Path) -> Iterator[LinuxMachine]:
    """One that is gone afterwards."""
    with ExitStack() as stack:
        machine = LinuxMachine(run)
        stack.callback(machine.close)
        yield machine


# No duplicate address detection: its seconds of "tentative" would only make tests slow.
_PREPARE = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; ip link set lo up"


def _seen_in_fake(link: Link) -> Seen:
    return Seen(
        name=link.name,
        mac=link.mac,
        mtu=link.mtu,
        txqlen=link.txqlen,
        alias=link.alias,
        alt_names=frozenset(link.alt_names),
        up=link.up,
        addresses=frozenset(f"{it.interface}{' secondary' if it.secondary else ''}" for it in link.addresses),
        routes=frozenset(
            " ".join(filter(None, [_route_words(str(it.to), it.via, it.src, it.metric, it.table, it.onlink), it.more]))
            for it in link.routes
        ),
        neighbours=frozenset(f"{it.address} {it.mac}" for it in link.neighbours),
    )


def _seen_by_ip(link: dict[str, Any], routes: list[dict[str, Any]], neighbours: list[dict[str, Any]]) -> Seen:
    own = [it for it in routes if link["ifname"] in _devices(it) and it.get("table") != "local"]
    return Seen(
        name=link["ifname"],
        mac=link["address"],
        mtu=link["mtu"],
        txqlen=link.get("txqlen", 0),
        alias=link.get("ifalias", ""),
        alt_names=frozenset(link.get("altnames", ())),
        up="UP" in link["flags"],
        addresses=frozenset(
            f"{it['local']}/{it['prefixlen']}{' secondary' if it.get('secondary') else ''}" for it in link["addr_info"]
        ),
        routes=frozenset(
            _route_words(
                it["dst"],
                it.get("gateway"),
                it.get("prefsrc"),
                it.get("metric", 0),
                it.get("table", "main"),
                "onlink" in it["flags"] or any("onlink" in hop["flags"] for hop in it.get("nexthops", ())),
            )
            + _more_words(it)
            for it in own
        ),
        neighbours=frozenset(f"{it['dst']} {it['lladdr']}" for it in neighbours if it["dev"] == link["ifname"]),
    )


def _route_words(to: str, via: object, src: object, metric: int, table: object, onlink: bool) -> str:
    words = [str(ip_network(to))]
    words += [f"via {via}"] if via else []
    words += [f"src {src}"] if src else []
    words += [f"metric {metric}"] if metric else []
    words += [f"table {table}"] if table not in {"main", 254} else []
    return " ".join([*words, *(["onlink"] if onlink else [])])


def _devices(route: dict[str, Any]) -> set[str]:
    return {route.get("dev", "")} | {hop["dev"] for hop in route.get("nexthops", ())}


def _more_words(route: dict[str, Any]) -> str:
    words = [f"{name} {it[name]}" for name in ("mtu", "advmss") for it in route.get("metrics", ()) if name in it]
    words += [f"nexthop {hop['gateway']} weight {hop['weight']}" for hop in route.get("nexthops", ())]
    return "".join(f" {word}" for word in words)


def _rule_words(rule: dict[str, Any]) -> str:
    source = (
        "all" if rule["src"] == "all" else str(ip_network(f"{rule['src']}/{rule.get('srclen', _whole(rule['src']))}"))
    )
    words = [f"{rule['priority']}:", "not" if "not" in rule else "", f"from {source}"]
    words += [f"to {rule['dst']}/{rule.get('dstlen', _whole(rule['dst']))}"] if "dst" in rule else []
    mask = f"/{rule['fwmask']}" if "fwmask" in rule else ""
    words += [f"fwmark {rule['fwmark']}{mask}"] if "fwmark" in rule else []
    words += [f"{key} {rule[key]}" for key in ("iif", "oif") if key in rule]
    words += [f"lookup {254 if rule['table'] == 'main' else rule['table']}"]
    words += [f"suppress_prefixlength {rule['suppress_prefixlen']}"] if "suppress_prefixlen" in rule else []
    return " ".join(filter(None, words))


def _whole(address: str) -> int:
    return ip_address(address).max_prefixlen


def _tc_is_class(handle: str) -> bool:
    return not handle.endswith(":")


def _tc_parent(parent: str) -> list[str]:
    return ["root"] if parent == "root" else ["parent", parent]


def _tc_handle(handle: str) -> list[str]:
    return ["classid" if _tc_is_class(handle) else "handle", handle]


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout

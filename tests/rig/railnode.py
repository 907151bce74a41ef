"""A node on a rail fabric: eight netdevs with a /31 and a route to what is behind their leaf each, four in one subnet.

The leaves and the peers are in the namespace of the fabric's other ends. There an echo answers UDP on every address,
and a packet socket sees what arrives, on which link and from which hardware address.
"""

import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.kernel.inside import in_namespace
from tests.rig.fabric import Fabric, batch
from tests.rig.node import Netdev, Node, load

T = TypeVar("T")
RAILS, PEERS = 8, 4
PORT = 7
_ANY_PROTOCOL = socket.htons(0x0003)  # ETH_P_ALL
_IPV4 = 0x0800
_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """A datagram as it arrived at the other end."""

    link: str
    mac: str
    source: str
    target: str


def leaf_addresses(number: int) -> tuple[str, str]:
    """What a leaf has on its rail."""
    return f"198.51.100.{2 * number}", f"2001:db8:0:{number + 1}::1"


def rail_addresses(number: int) -> tuple[str, str]:
    """What a netdev of the node has."""
    if number < RAILS:
        return f"198.51.100.{2 * number + 1}", f"2001:db8:0:{number + 1}::2"
    return f"198.51.100.{123 + number}", f"2001:db8:2::{number + 1:x}"


def behind(number: int) -> tuple[str, str]:
    """What is behind a leaf."""
    return f"203.0.113.{16 * number + 1}", f"2001:db8:1:{number + 1}::1"


def peer_addresses(number: int) -> tuple[str, str]:
    """What is in the subnet of the last four netdevs."""
    return f"198.51.100.{141 + number}", f"2001:db8:2::10{number}"


def rail_node() -> Node:
    """The node, of which the first twelve adapters are left."""
    whole = load("sixteen")
    many = RAILS + PEERS
    netdevs = tuple(_with_addresses(number, netdev) for number, netdev in enumerate(whole.netdevs[:many]))
    return replace(whole, name="rails", rdma=whole.rdma[:many], netdevs=netdevs)


def _with_addresses(number: int, netdev: Netdev) -> Netdev:
    v4, v6 = rail_addresses(number)
    if number >= RAILS:
        return replace(netdev, addresses=(f"{v4}/25", f"{v6}/64"))
    (leaf4, leaf6), (behind4, behind6) = leaf_addresses(number), behind(number)
    net4, net6 = behind4.removesuffix(str(16 * number + 1)) + f"{16 * number}/28", behind6.removesuffix("1") + "/64"
    return replace(
        netdev,
        addresses=(f"{v4}/31", f"{v6}/64"),
        routes=(f"{net4} via {leaf4} metric {50 + number}", f"{net6} via {leaf6} metric {50 + number}"),
    )


class RailNode(Fabric):
    """The node on this host, with its leaves and peers."""

    def __init__(self) -> None:
        super().__init__(rail_node())
        try:
            batch(list(_far_side()), "set up leaves and peers", self.netns)
        except BaseException:
            self.close()
            raise


def _far_side() -> Iterator[str]:
    yield "link set lo up"
    for number in range(RAILS):
        yield f"link set p{number} nomaster"
        yield f"address add {leaf_addresses(number)[0]}/31 dev p{number}"
        yield f"address add {leaf_addresses(number)[1]}/64 dev p{number} nodad"
        for address in behind(number):
            yield f"address add {address} dev lo"
    for number in range(PEERS):
        yield f"address add {peer_addresses(number)[0]}/25 dev br0"
        yield f"address add {peer_addresses(number)[1]}/64 dev br0 nodad"


class Wire:
    """The other ends: an echo on all addresses, and what arrives there. Also a context manager."""

    def __init__(self, netns: Path) -> None:
        targets = [it for number in range(RAILS) for it in (*leaf_addresses(number), *behind(number))]
        targets += [it for number in range(PEERS) for it in peer_addresses(number)]
        self._ends = [_bound(netns, target, PORT) for target in targets]
        self._netns = netns
        self._is_over, self._ending = os.pipe()
        self._echo = threading.Thread(target=_answer, args=(self._ends, self._is_over), name="echo", daemon=True)
        self._echo.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._ending)
        self._echo.join()
        os.close(self._is_over)
        for end in self._ends:
            end.close()

    def send(self, pod: Path, target: str, source: str = "") -> Arrived:
        """Send a datagram from a pod, bound to an address or not, and return how it arrived. The echo has come back."""
        word = os.urandom(8)
        with self._capture() as capture, _bound(pod, source or ("::" if ":" in target else "0.0.0.0"), 0) as sender:
            sender.settimeout(_PATIENCE_S)
            sender.sendto(word, (target, PORT))
            answer, answerer = sender.recvfrom(64)
            assert (answer, ip_address(answerer[0])) == (word, ip_address(target))
            return _arrived(capture, word)

    def _capture(self) -> socket.socket:
        made = in_netns(self._netns, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, _ANY_PROTOCOL))
        made.settimeout(_PATIENCE_S)
        return made


def _arrived(capture: socket.socket, word: bytes) -> Arrived:
    """A port of the bridge sees it before the bridge does."""
    while True:
        frame, (link, _, kind, _, mac) = capture.recvfrom(2048)
        if kind != socket.PACKET_OUTGOING and link.startswith("p") and frame.endswith(word):
            source, target = _addresses(frame)
            return Arrived(link=link, mac=mac.hex(":"), source=source, target=target)


def in_netns(netns: Path, work: Callable[[], T]) -> T:
    """What `work` returns inside a namespace."""
    with netns.open() as file:
        return in_namespace(file.fileno(), work)


def _bound(netns: Path, address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = in_netns(netns, lambda: socket.socket(family, socket.SOCK_DGRAM))
    made.bind((address, port))
    return made


def _answer(ends: Sequence[socket.socket], is_over: int) -> None:
    while True:
        ready = set(select.select([*(end.fileno() for end in ends), is_over], [], [])[0])
        if is_over in ready:
            return
        for end in (end for end in ends if end.fileno() in ready):
            word, sender = end.recvfrom(64)
            end.sendto(word, sender)


def _addresses(frame: bytes) -> tuple[str, str]:
    (protocol,) = struct.unpack_from("!H", frame, 12)
    if protocol == _IPV4:
        return str(ip_address(frame[26:30])), str(ip_address(frame[30:34]))
    return str(ip_address(frame[22:38])), str(ip_address(frame[38:54]))

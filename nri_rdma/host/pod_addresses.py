"""Read the IP addresses of a process's network namespace from procfs, without entering the namespace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from itertools import islice
from pathlib import Path

MOST = 256
"""The largest number of addresses to report. A namespace may have thousands, but its RDMA netdevs have only a few."""
_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
"""Matches an address of the namespace itself in the kernel's file fib_trie, which lists routes as well."""
_LINK = re.compile(r"\|-- (\S+)(?:\n\s+/\d+ .*)*?\n\s+/(\d+) link UNICAST")
"""Matches the network of a netdev in the kernel's file fib_trie."""
_SINGLE = "80"
"""The prefix length 128 in hexadecimal, as if_inet6 writes it: the prefix holds one address only."""


def addresses_of(pid: int, proc: Path = Path("/proc")) -> tuple[IPv4Address | IPv6Address, ...]:
    """Return the addresses at which a process can be reached, at most MOST. Loopback and link-local addresses are left
    out. () if the process cannot be seen.

    Addresses that lie in a netdev's network come first, because kube-proxy in IPVS mode adds the address of every
    service to the node, without a network.
    """
    found = sorted(_all(proc / str(pid) / "net"), key=lambda it: it[1])  # stable: the order stays otherwise
    reached = dict.fromkeys(it for it, _ in found if not (it.is_loopback or it.is_link_local))
    return tuple(islice(reached, MOST))


def _all(folder: Path) -> Iterator[tuple[IPv4Address | IPv6Address, bool]]:
    """Yield each address of the namespace, and True if the address lies in no netdev's network."""
    trie = _text(folder / "fib_trie")
    networks = [IPv4Network(f"{base}/{length}") for base, length in dict.fromkeys(_LINK.findall(trie))]
    for text in _LOCAL.findall(trie):
        address = IPv4Address(text)
        yield address, not any(address in network for network in networks)
    for line in _text(folder / "if_inet6").splitlines():
        digits, _, length, *_ = line.split()
        yield IPv6Address(bytes.fromhex(digits)), length == _SINGLE


def _text(file: Path) -> str:
    """Return the text of a file; "" if it cannot be read, for example if_inet6 of a kernel without IPv6."""
    try:
        return file.read_text()
    except OSError:
        return ""

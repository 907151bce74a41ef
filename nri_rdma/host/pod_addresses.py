"""The IP addresses of a process's network namespace, from procfs: nobody has to enter it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from itertools import islice
from pathlib import Path

MOST = 256
"""Addresses that are told: a namespace may have thousands, and its RDMA netdevs have a few."""
_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
"""An address of the namespace itself in fib_trie, which has routes besides."""
_LINK = re.compile(r"\|-- (\S+)(?:\n\s+/\d+ .*)*?\n\s+/(\d+) link UNICAST")
"""The network of a netdev there."""
_SINGLE = "80"
"""The length of an IPv6 prefix that is one address, in if_inet6."""


def addresses_of(pid: int, proc: Path = Path("/proc")) -> tuple[IPv4Address | IPv6Address, ...]:
    """Return those by which a process is reached, without loopback and link-local ones; none where the process cannot
    be seen. Of more than MOST, first those of a netdev's network: kube-proxy (IPVS) gives a node each service's address
    without one."""
    found = sorted(_all(proc / str(pid) / "net"), key=lambda it: it[1])  # in their order otherwise
    reached = dict.fromkeys(it for it, _ in found if not (it.is_loopback or it.is_link_local))
    return tuple(islice(reached, MOST))


def _all(folder: Path) -> Iterator[tuple[IPv4Address | IPv6Address, bool]]:
    """Yield each address, with whether it has no network."""
    trie = _text(folder / "fib_trie")
    networks = [IPv4Network(f"{base}/{length}") for base, length in dict.fromkeys(_LINK.findall(trie))]
    for text in _LOCAL.findall(trie):
        address = IPv4Address(text)
        yield address, not any(address in network for network in networks)
    for line in _text(folder / "if_inet6").splitlines():
        digits, _, length, *_ = line.split()
        yield IPv6Address(bytes.fromhex(digits)), length == _SINGLE


def _text(file: Path) -> str:
    """Return the text of a file; a kernel without IPv6 has none."""
    try:
        return file.read_text()
    except OSError:
        return ""

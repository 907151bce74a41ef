"""The IP addresses of a process's network namespace, from procfs: nobody has to enter it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

_LOCAL = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
"""An address of the namespace itself in fib_trie, which has routes besides."""


def addresses_of(pid: int, proc: Path = Path("/proc")) -> tuple[IPv4Address | IPv6Address, ...]:
    """Return those by which a process is reached, without loopback and link-local ones; none where the process cannot
    be seen."""
    return tuple(dict.fromkeys(it for it in _all(proc / str(pid) / "net") if not (it.is_loopback or it.is_link_local)))


def _all(folder: Path) -> Iterator[IPv4Address | IPv6Address]:
    yield from map(IPv4Address, _LOCAL.findall(_text(folder / "fib_trie")))
    for line in _text(folder / "if_inet6").splitlines():
        yield IPv6Address(bytes.fromhex(line.split()[0]))


def _text(file: Path) -> str:
    """Return the text of a file; a kernel without IPv6 has none."""
    try:
        return file.read_text()
    except OSError:
        return ""

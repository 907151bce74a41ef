"""An address and a port where the daemon listens for TCP connections."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

_WRITTEN = re.compile(r"(?:\[([^]]+)\]|([^:\[\]]+)):([0-9]{1,5})")
_LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """An address to listen on, such as ``127.0.0.1:9178`` or ``[::]:9178``. 0.0.0.0 and :: mean all addresses of the
    host."""

    address: IPv4Address | IPv6Address
    port: int

    def __str__(self) -> str:
        host = f"[{self.address}]" if isinstance(self.address, IPv6Address) else str(self.address)
        return f"{host}:{self.port}"


def parse_listen_address(text: str) -> ListenAddress | None:
    """Parse an address and a port. Return None for anything else: a name, an address without a port, port 0, or an IPv6
    address with a zone."""
    found = _WRITTEN.fullmatch(text)
    if found is None or not 0 < int(found[3]) <= _LAST_PORT:
        return None
    try:
        address = ip_address(found[1] or found[2])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) != (found[1] is not None) or getattr(address, "scope_id", None) is not None:
        return None
    return ListenAddress(address, int(found[3]))

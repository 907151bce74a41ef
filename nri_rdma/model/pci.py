"""The address of a PCI function, and its parser."""

from __future__ import annotations

import re
from dataclasses import dataclass

PCI_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
"""The text of a PCI address, with or without the domain. Use `fullmatch`; the device number must also be at most 1f."""


@dataclass(frozen=True, slots=True, order=True)
class PciAddress:
    """The address of a PCI function, written as the kernel writes it: ``0000:1b:00.0``."""

    domain: int
    bus: int
    device: int
    function: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.device:02x}.{self.function}"


def parse_pci_address(text: str) -> PciAddress | None:
    """Parse a PCI address, with or without the domain. Return None for any other text."""
    match = PCI_ADDRESS.fullmatch(text)
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    if int(device, 16) > 0x1F:
        return None
    return PciAddress(int(domain or "0", 16), int(bus, 16), int(device, 16), int(function))


def below_root(root: str, path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of a PCI function below its root complex: root port, bridges and function. `path` may begin with
    the root complex itself."""
    return path[1:] if path[:1] == (root,) else path

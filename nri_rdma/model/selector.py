"""Conditions on devices, as pools write them.

A field with several values is met by a device that has any of them. A selector is met by a device that meets all of its
fields. The words are those of a request's `match`, of sysfs, and of the SR-IOV tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nri_rdma.model.device import LinkLayer, Protocol, RdmaDevice
from nri_rdma.model.pci import PciAddress

_PKEY_BASE = 0x7FFF
"""The bits of a P_Key that identify the partition; the top bit says whether the member is full or limited (IBTA vol. 1,
10.9.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionsOf:
    """A physical function with all its virtual functions or, if `numbers` has ranges (first and last), only the virtual
    functions in them.

    `function` is the PCI address or the netdev of the physical function.
    """

    function: str
    numbers: tuple[tuple[int, int], ...] = ()

    def has_number(self, number: int) -> bool:
        """Return whether the virtual function with this number is included."""
        return not self.numbers or any(first <= number <= last for first, last in self.numbers)

    def __str__(self) -> str:
        ranges = (str(first) if first == last else f"{first}-{last}" for first, last in self.numbers)
        return f"{self.function}#{','.join(ranges)}" if self.numbers else self.function


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """Conditions on a device, all of which it must meet. Every device meets an empty condition, or None."""

    device: tuple[str, ...] = ()
    netdev: tuple[str, ...] = ()
    pci: tuple[PciAddress, ...] = ()
    vendor: tuple[str, ...] = ()
    """Four hexadecimal digits, lower case."""
    device_id: tuple[str, ...] = ()
    """Four hexadecimal digits each, lower case."""
    driver: tuple[str, ...] = ()
    pf_name: tuple[FunctionsOf, ...] = ()
    root_device: tuple[FunctionsOf, ...] = ()
    link_layer: tuple[LinkLayer, ...] = ()
    protocol: tuple[Protocol, ...] = ()
    pkey: tuple[int, ...] = ()
    numa_node: tuple[int, ...] = ()
    speed_gbps: tuple[int, ...] = ()
    min_speed_gbps: int | None = None

    def selects(self, device: RdmaDevice) -> bool:
        """Return whether the device meets all conditions."""
        return all(holds(self, device) for _, _, holds in self._conditions())

    def may_select(self, device: RdmaDevice) -> bool:
        """Return whether the device may meet all conditions. A condition on a name that is unknown now counts as met,
        such as the name of a netdev that is in a pod. Used to exclude devices."""
        return all(holds(self, device) or _is_unknown(word, device) for word, _, holds in self._conditions())

    def __str__(self) -> str:
        return " and ".join(f"{word} {_any_of(values)}" for word, values, _ in self._conditions()) or "anything"

    def _conditions(self) -> Iterator[_Condition]:
        """Yield the conditions that are set: the word, the values, and the function that tests a device."""
        for word, values, holds in _CONDITIONS:
            wanted = values(self)
            if wanted:
                yield word, wanted, holds


_Values = tuple[object, ...]
_Holds = Callable[[Selector, RdmaDevice], bool]
_Condition = tuple[str, _Values, _Holds]


def _any_of(values: _Values) -> str:
    return " or ".join(map(str, values))


def _is_unknown(word: str, device: RdmaDevice) -> bool:
    if word == "pfName" and device.virtual is not None:
        return not device.virtual.pf_netdevs
    return word in {"netdev", "pfName"} and device.lacks_netdev


def _is_function_of_netdev(selector: Selector, device: RdmaDevice) -> bool:
    names = {netdev.name for netdev in device.netdevs}
    return any(
        _is_virtual_of(wanted, device, device.virtual.pf_netdevs if device.virtual is not None else ())
        or (not wanted.numbers and wanted.function in names)
        for wanted in selector.pf_name
    )


def _is_below_root(selector: Selector, device: RdmaDevice) -> bool:
    """Return whether the device is below a bridge, root port or root complex in the selector's `root_device`, or is a
    PCI function in it."""
    own = {device.pci_root, *device.pci_path, str(device.pci or "")}
    return any(
        _is_virtual_of(wanted, device, (str(device.virtual.pf),) if device.virtual is not None else ())
        or (not wanted.numbers and wanted.function in own)
        for wanted in selector.root_device
    )


def _is_virtual_of(wanted: FunctionsOf, device: RdmaDevice, physical: tuple[str, ...]) -> bool:
    return device.virtual is not None and wanted.function in physical and wanted.has_number(device.virtual.number)


def _is_in_partition(selector: Selector, device: RdmaDevice) -> bool:
    own = {key & _PKEY_BASE for port in device.ports for key in port.pkeys}
    return any(key & _PKEY_BASE in own for key in selector.pkey)


_CONDITIONS: tuple[tuple[str, Callable[[Selector], _Values], _Holds], ...] = (
    ("device", lambda s: s.device, lambda s, it: it.name in s.device),
    ("netdev", lambda s: s.netdev, lambda s, it: any(netdev.name in s.netdev for netdev in it.netdevs)),
    ("pci", lambda s: s.pci, lambda s, it: it.pci in s.pci),
    ("vendor", lambda s: s.vendor, lambda s, it: it.vendor in s.vendor),
    ("deviceID", lambda s: s.device_id, lambda s, it: it.device_id in s.device_id),
    ("driver", lambda s: s.driver, lambda s, it: it.driver in s.driver),
    ("pfName", lambda s: s.pf_name, _is_function_of_netdev),
    ("rootDevice", lambda s: s.root_device, _is_below_root),
    ("linkLayer", lambda s: s.link_layer, lambda s, it: it.link_layer in s.link_layer),
    ("protocol", lambda s: s.protocol, lambda s, it: it.protocol in s.protocol),
    ("pkey", lambda s: tuple(f"{key:#06x}" for key in s.pkey), _is_in_partition),
    ("numaNode", lambda s: s.numa_node, lambda s, it: it.numa_node in s.numa_node),
    ("speedGbps", lambda s: s.speed_gbps, lambda s, it: it.speed_gbps in s.speed_gbps),
    (
        "minSpeedGbps",
        lambda s: () if s.min_speed_gbps is None else (s.min_speed_gbps,),
        lambda s, it: it.speed_gbps >= (s.min_speed_gbps or 0),
    ),
)

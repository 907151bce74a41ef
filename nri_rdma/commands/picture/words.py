"""The words in a picture's boxes, and how they are made to fit.

The type is monospaced: what a text needs is known without the font of whoever looks at it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from nri_rdma.commands.picture.view import Adapter, View
from nri_rdma.decide.placement import Holding
from nri_rdma.model.device import Gpu, RdmaDevice
from nri_rdma.model.request import Mode

CELL = 0.62
"""Width of a character as part of the type's size; DejaVu Sans Mono and Menlo have 0.602, Courier 0.6."""
MAX_LINES = 4
"""Holders that the box of an adapter names."""
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel", "1da3": "Habana"}
_UNREMARKABLE = ("ACTIVE", "")


def shown(text: str) -> str:
    """On one line and without what XML forbids: names come from hardware and pods."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def width_of(text: str, size: int) -> float:
    """The width of a text in type of that size, at most."""
    return _cells(text) * CELL * size


def fitted(text: str, width: float, size: int) -> str:
    """The text if it fits, else its beginning and its end: pods of one job often differ in their last characters."""
    text = shown(text)
    room = int(width / (CELL * size))
    if _cells(text) <= room:
        return text
    keep = len(text)
    while True:
        keep -= 1
        end = keep // 2
        cut = text[: keep - end] + _ELLIPSIS + text[len(text) - end :]
        if _cells(cut) <= room or keep <= 0:
            return cut


def wrapped(text: str, width: float, size: int) -> Iterator[str]:
    """Lines of whole words; a word that is too long is cut."""
    line = ""
    for word in shown(text).split():
        longer = f"{line} {word}" if line else word
        if line and width_of(longer, size) > width:
            yield fitted(line, width, size)
            line = word
        else:
            line = longer
    if line:
        yield fitted(line, width, size)


def count_of(number: int, noun: str) -> str:
    """`no GPU`, `1 GPU`, `2 GPUs`."""
    if not number:
        return f"no {noun}"
    return f"{number} {noun}{'' if number == 1 else 's'}"


def gpu_facts(gpu: Gpu) -> str:
    """Address and make."""
    return f"{gpu.pci} {_VENDORS.get(gpu.vendor, gpu.vendor)}".rstrip()


def gpu_title(name: str, gpu: Gpu, owners: tuple[str, ...]) -> str:
    """Everything that is known of it."""
    lines = [f"{name}: {gpu_facts(gpu)}", _place(gpu), gpu.uuid, ", ".join(gpu.node_names)]
    lines.append(f"pods: {', '.join(owners)}" if owners else "no pod is known to have it")
    return "\n".join(shown(line) for line in lines if line)


def adapter_facts(adapter: Adapter) -> str:
    """Address, speed and what it speaks; its state where that is no good."""
    head = adapter.head
    address = head.virtual.pf if head.virtual is not None else head.pci
    state = head.ports[0].state if head.ports else "no port"
    words = (
        str(address) if address is not None else "soft" if head.is_soft else "no PCI device",
        f"{head.speed_gbps}G" if head.speed_gbps else "",
        _PROTOCOLS.get(str(head.protocol or ""), ""),
        "" if state in _UNREMARKABLE else state,
    )
    return " ".join(word for word in words if word)


_PROTOCOLS = {"ib": "IB", "roce": "RoCE", "iwarp": "iWARP"}


def adapter_lines(view: View, adapter: Adapter) -> tuple[str, ...]:
    """Return the lines of an adapter's box that say who has it. Of several devices: how many there are, then who has
    which."""
    if len(adapter.devices) == 1:
        return tuple(_some(list(_holders(view, adapter.head))))
    virtual = sum(device.virtual is not None for device in adapter.devices)
    own = len(adapter.devices) - virtual
    parts = [count_of(own, "device")] if own > 1 or not virtual else []
    parts += [count_of(virtual, "virtual function")] if virtual else []
    held = sum(device.id in view.holdings for device in adapter.devices)
    free = sum(map(view.is_free, adapter.devices))
    split = sum(map(view.is_split, adapter.devices))
    used = len(adapter.devices) - held - free - split
    words = ((held, "held"), (free, _free(view)), (split, "physical"), (used, "used by host"))
    states = [f"{number} {word}" for number, word in words if number]
    named = [
        f"{device.name}: {line}"
        for device in adapter.devices
        if device.id in view.holdings
        for line in _holders(view, device)
    ]
    return (f"{'' if own > 1 else '+ '}{', '.join(parts)}", ", ".join(states), *_some(named))


def adapter_title(view: View, adapter: Adapter) -> str:
    """Everything that is known of it, a line for each device."""
    lines = [f"{adapter.head.name}: {adapter_facts(adapter)}", _place(adapter.head)]
    for device in adapter.devices:
        netdevs = "".join(f" {netdev.name}" for netdev in device.netdevs)
        lines.append(f"{device.name}{f' {device.pci}' if device.pci else ''}{netdevs}:")
        lines += [f"  {line}" for line in _holders(view, device)]
    return "\n".join(shown(line) for line in lines if line)


def device_words(view: View, device: RdmaDevice) -> str:
    """Say who has one device."""
    return ", ".join(_holders(view, device))


def holding_words(holding: Holding) -> str:
    """The pod; that it shares, or only looks on, is said."""
    if holding.looks_on:
        return f"{holding.owner} (looks on)"
    return f"{holding.owner} (shared)" if holding.mode is Mode.SHARED else holding.owner


def _holders(view: View, device: RdmaDevice) -> Iterator[str]:
    held = view.holdings.get(device.id, ())
    yield from map(holding_words, held)
    uses = device.in_use if held else device.uses
    yield from (f"host: {use}" for use in uses)
    if not held and not uses:
        shared = "free to be shared" if view.holders_are_known else "holders not known; can only be shared"
        yield from (f"{shared}: {tie}" for tie in device.ties)
        if not device.ties:
            yield _free(view)


def _free(view: View) -> str:
    """Return the word for a device without a known holder."""
    return "free" if view.holders_are_known else "holders not known"


def _some(lines: list[str]) -> Iterable[str]:
    if len(lines) <= MAX_LINES:
        return lines
    return [*lines[: MAX_LINES - 1], f"and {len(lines) - MAX_LINES + 1} more"]


def _place(device: Gpu | RdmaDevice) -> str:
    numa = "NUMA node not known" if device.numa_node is None else f"NUMA node {device.numa_node}"
    return " > ".join(dict.fromkeys((numa, *((device.pci_root,) if device.pci_root else ()), *device.pci_path)))


def _cells(text: str) -> int:
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)

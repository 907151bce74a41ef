"""The texts in the picture's boxes, and how they are shortened to fit.

The font is monospaced, so the width of a text is known whichever monospaced font the viewer has.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from nri_rdma.commands.picture.view import Adapter, View
from nri_rdma.decide.placement import Holding
from nri_rdma.model.device import Gpu, RdmaDevice
from nri_rdma.model.request import Mode

CELL = 0.62
"""The width of a character relative to the font size. DejaVu Sans Mono and Menlo have 0.602, Courier 0.6."""
MAX_LINES = 4
"""The maximum number of lines about holders in an adapter's box."""
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel", "1da3": "Habana"}
_UNREMARKABLE = ("ACTIVE", "")


def shown(text: str) -> str:
    """Return the text on one line. Characters that are not printable are escaped, because XML forbids them. Names come
    from hardware and pods, so they may contain any character."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def width_of(text: str, size: int) -> float:
    """Return the largest width in pixels that the text can have at this font size."""
    return _cells(text) * CELL * size


def fitted(text: str, width: float, size: int) -> str:
    """Return the text, shortened in the middle if it is wider than `width`. The end is kept, because the names of one
    job's pods often differ only at the end."""
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
    """Yield the text in lines of whole words. A word that is wider than a line is shortened."""
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
    """Return a number with its noun, such as "no GPU", "1 GPU" or "2 GPUs"."""
    if not number:
        return f"no {noun}"
    return f"{number} {noun}{'' if number == 1 else 's'}"


def gpu_facts(gpu: Gpu) -> str:
    """Return the GPU's PCI address and vendor."""
    return f"{gpu.pci} {_VENDORS.get(gpu.vendor, gpu.vendor)}".rstrip()


def gpu_title(name: str, gpu: Gpu, owners: tuple[str, ...]) -> str:
    """Return the GPU's tooltip: everything that is known about the GPU, line by line."""
    lines = [f"{name}: {gpu_facts(gpu)}", _place(gpu), gpu.uuid, ", ".join(gpu.node_names)]
    lines.append(f"pods: {', '.join(owners)}" if owners else "no pod is known to have it")
    return "\n".join(shown(line) for line in lines if line)


def adapter_facts(adapter: Adapter) -> str:
    """Return the adapter's address, speed and protocol, and the state of its port unless that is ACTIVE."""
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
    """Return the lines of an adapter's box that say which pods have its devices. For an adapter with several devices,
    the number of devices and their uses come first."""
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
    """Return the adapter's tooltip: everything that is known about the adapter, with lines for each device."""
    lines = [f"{adapter.head.name}: {adapter_facts(adapter)}", _place(adapter.head)]
    for device in adapter.devices:
        netdevs = "".join(f" {netdev.name}" for netdev in device.netdevs)
        lines.append(f"{device.name}{f' {device.pci}' if device.pci else ''}{netdevs}:")
        lines += [f"  {line}" for line in _holders(view, device)]
    return "\n".join(shown(line) for line in lines if line)


def device_words(view: View, device: RdmaDevice) -> str:
    """Return words that say who uses the device."""
    return ", ".join(_holders(view, device))


def holding_words(holding: Holding) -> str:
    """Return the pod's name with a remark if the pod shares the device, or if it only observes it (a claim with admin
    access)."""
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
    """Return the words for a device that no pod is known to have."""
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

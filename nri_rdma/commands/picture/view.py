"""What a picture of a node's topology shows: adapters, GPUs, who has them, and the pairs worth a line.

An adapter is a physical function with all RDMA devices on it: its own, those of its virtual functions, scalable
functions. They are equally far from everything, so that they are one row of a matrix and one box of a picture.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from nri_rdma.decide.placement import Holding, Taken
from nri_rdma.decide.topology import Distance, distance, rails
from nri_rdma.model.device import DeviceId, Gpu, Node, RdmaDevice
from nri_rdma.model.pci import PciAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The RDMA devices of one function, in the node's order but the function's own first. `rail` is None off PCI."""

    devices: tuple[RdmaDevice, ...]
    rail: int | None

    @property
    def head(self) -> RdmaDevice:
        """The one that stands for all."""
        return self.devices[0]

    @property
    def id(self) -> DeviceId:
        """Return what tells this adapter from others."""
        return self.head.id


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturePair:
    """A GPU and a device of an adapter. `pods` have both; without one it is the nearest of a GPU that no pod is known
    to have."""

    gpu: Gpu
    adapter: Adapter
    device: RdmaDevice
    distance: Distance
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A node with its holders. GPUs are numbered as they stand, which is the order of their addresses."""

    adapters: tuple[Adapter, ...]
    gpus: tuple[Gpu, ...]
    pairs: tuple[PicturePair, ...]
    holdings: Mapping[DeviceId, tuple[Holding, ...]]
    """Of each device that is held, by owner."""
    owners: Mapping[PciAddress, tuple[str, ...]]
    """The pods that hold devices and are known to have a GPU, by its address."""
    holders_are_known: bool = True
    """Whether a device without a holder is free; a snapshot, or a machine without a daemon, has no holders at all."""

    def is_split(self, device: RdmaDevice) -> bool:
        """Tell whether nothing but its virtual functions keeps pods from the device."""
        return device.id not in self.holdings and device.vf_count > 0 and len(device.uses) == 1

    def is_free(self, device: RdmaDevice) -> bool:
        """Tell whether neither a pod nor the host has the device."""
        return device.id not in self.holdings and not device.uses


def view_of(node: Node, taken: Taken, *, holders_are_known: bool = True) -> View:
    """Return what there is to show of a node and its holders."""
    known = {device.id for device in node.devices}
    holdings = {
        device_id: tuple(sorted(held, key=lambda it: it.owner))
        for device_id, held in taken.items()
        if held and device_id in known
    }
    owners: dict[PciAddress, set[str]] = {}
    for holding in (it for held in holdings.values() for it in held):
        for address in holding.gpus:
            owners.setdefault(address, set()).add(holding.owner)
    unpaired = View(
        adapters=_adapters(node),
        gpus=node.gpus,
        pairs=(),
        holdings=holdings,
        owners={address: tuple(sorted(names)) for address, names in owners.items()},
        holders_are_known=holders_are_known,
    )
    return replace(unpaired, pairs=_pairs(unpaired))


def gpu_name(number: int) -> str:
    """As nvidia-smi has it."""
    return f"GPU{number}"


def _adapters(node: Node) -> tuple[Adapter, ...]:
    groups: dict[PciAddress | DeviceId, list[RdmaDevice]] = {}
    for device in node.devices:
        groups.setdefault(_function(device), []).append(device)
    ranks = rails(node.devices)
    ordered = (tuple(sorted(group, key=lambda it: (it.virtual is not None, it.index))) for group in groups.values())
    return tuple(Adapter(devices=group, rail=ranks.get(group[0].id)) for group in ordered)


def _function(device: RdmaDevice) -> PciAddress | DeviceId:
    if device.virtual is not None:
        return device.virtual.pf
    return device.id if device.pci is None else device.pci


def _pairs(view: View) -> tuple[PicturePair, ...]:
    """Return the pairs of pods, then the nearest adapter of each GPU that is in none of these. By GPU, then adapter."""
    found: dict[tuple[PciAddress, DeviceId], PicturePair] = {}
    for pod, devices, gpus in _pods(view):
        for pair in _pairs_of(pod, devices, gpus):
            before = found.get((pair.gpu.pci, pair.adapter.id))
            found[pair.gpu.pci, pair.adapter.id] = pair if before is None else _both(before, pair)
    paired, lines = {gpu for gpu, _adapter in found}, Counter(adapter for _gpu, adapter in found)
    for gpu in view.gpus:
        nearest = _nearest(view, gpu, lines) if gpu.pci not in paired else None
        if nearest is not None:
            found[gpu.pci, nearest.adapter.id] = nearest
            lines[nearest.adapter.id] += 1
    places = {adapter.id: place for place, adapter in enumerate(view.adapters)}
    return tuple(found[key] for key in sorted(found, key=lambda key: (key[0], places[key[1]])))


def _pods(view: View) -> Iterator[tuple[str, tuple[tuple[Adapter, RdmaDevice], ...], tuple[Gpu, ...]]]:
    """Each pod that holds devices and is known to have GPUs of this node, with both."""
    for pod in sorted({owner for owners in view.owners.values() for owner in owners}):
        held = tuple(
            (adapter, device)
            for adapter in view.adapters
            for device in adapter.devices
            if any(it.owner == pod for it in view.holdings.get(device.id, ()))
        )
        gpus = tuple(gpu for gpu in view.gpus if pod in view.owners.get(gpu.pci, ()))
        if gpus:
            yield pod, held, gpus


def _pairs_of(pod: str, held: Iterable[tuple[Adapter, RdmaDevice]], gpus: tuple[Gpu, ...]) -> Iterator[PicturePair]:
    """Each device with the nearest of the GPUs, and each GPU that is left with the nearest of the devices."""
    lines: Counter[PciAddress] = Counter()
    held = tuple(held)
    for adapter, device in held:
        gpu = min(gpus, key=lambda it: (distance(device, it), lines[it.pci], it.pci))
        lines[gpu.pci] += 1
        yield _pair(gpu, adapter, device, pod)
    for gpu in gpus:
        if not lines[gpu.pci]:
            adapter, device = min(held, key=lambda it: (distance(it[1], gpu), it[1].index))
            yield _pair(gpu, adapter, device, pod)


def _pair(gpu: Gpu, adapter: Adapter, device: RdmaDevice, *pods: str) -> PicturePair:
    return PicturePair(gpu=gpu, adapter=adapter, device=device, distance=distance(device, gpu), pods=pods)


def _both(one: PicturePair, other: PicturePair) -> PicturePair:
    nearer = min(one, other, key=lambda it: it.distance)
    pods = tuple(sorted({*one.pods, *other.pods}))
    return PicturePair(gpu=one.gpu, adapter=one.adapter, device=nearer.device, distance=nearer.distance, pods=pods)


def _nearest(view: View, gpu: Gpu, lines: Mapping[DeviceId, int]) -> PicturePair | None:
    """Of adapters equally near one with something free, then one with few lines. None where nothing has a place."""

    def key(adapter: Adapter) -> tuple[Distance, bool, int, int]:
        is_full = not any(map(view.is_free, adapter.devices))
        return distance(adapter.head, gpu), is_full, lines.get(adapter.id, 0), adapter.head.index

    placed = [it for it in view.adapters if it.head.pci_root or it.head.numa_node is not None]
    if not placed:
        return None
    adapter = min(placed, key=key)
    return _pair(gpu, adapter, adapter.head)

"""The content of the topology picture: adapters, GPUs, the pods that have them, and the pairs that get a line.

An adapter is a PCI physical function with all RDMA devices on it: its own, and those of its virtual functions and
scalable functions. They have equal distances to everything else, so they share one row of the matrix and one box of the
picture.
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
    """The RDMA devices of one physical function. The function's own device comes first, then the others in the node's
    order.

    `rail` is the rank of the adapter's port among the node's ports in PCI order; None if the adapter is not on PCI.
    """

    devices: tuple[RdmaDevice, ...]
    rail: int | None

    @property
    def head(self) -> RdmaDevice:
        """The first device, which represents the adapter."""
        return self.devices[0]

    @property
    def id(self) -> DeviceId:
        """The id of the first device, which identifies the adapter."""
        return self.head.id


@dataclass(frozen=True, slots=True, kw_only=True)
class PicturePair:
    """A GPU and a device of an adapter that the picture connects by a line.

    `pods` are the pods that have both. It is empty if no pod is known to have the GPU; the device is then the nearest
    to it.
    """

    gpu: Gpu
    adapter: Adapter
    device: RdmaDevice
    distance: Distance
    pods: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The node as the picture shows it. GPUs are numbered in the order of their PCI addresses."""

    adapters: tuple[Adapter, ...]
    gpus: tuple[Gpu, ...]
    pairs: tuple[PicturePair, ...]
    holdings: Mapping[DeviceId, tuple[Holding, ...]]
    """For each device that pods hold, what each pod holds of it, sorted by pod."""
    owners: Mapping[PciAddress, tuple[str, ...]]
    """For the PCI address of a GPU, the pods that hold RDMA devices and are known to have this GPU."""
    holders_are_known: bool = True
    """Whether a device without a pod in `holdings` is really free. False for a snapshot, and if no daemon runs that
    knows who has devices."""

    def is_split(self, device: RdmaDevice) -> bool:
        """Return whether the host uses the device only because it has virtual functions. Pods can have these, but not
        the device itself."""
        return device.id not in self.holdings and device.vf_count > 0 and len(device.uses) == 1

    def is_free(self, device: RdmaDevice) -> bool:
        """Return whether neither a pod nor the host uses the device."""
        return device.id not in self.holdings and not device.uses


def view_of(node: Node, taken: Taken, *, holders_are_known: bool = True) -> View:
    """Return the content of the picture for a node. `taken` says which pods hold which devices."""
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
    """Return the name of a GPU, such as GPU0. GPUs are numbered like those of nvidia-smi."""
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
    """Return the pairs whose GPU and adapter one pod holds. For each GPU in no such pair, add the pair with the nearest
    adapter. Sorted by GPU, then adapter."""
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
    """Yield each pod that has RDMA devices and GPUs of this node, with its devices and GPUs."""
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
    """Yield the pairs of one pod: each of its devices with the nearest of its GPUs, then each remaining GPU with the
    nearest of its devices."""
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
    """Return the pair of the GPU with its nearest adapter; None if no adapter's position is known. Of equally near
    adapters, one with a free device is preferred, then one with few lines."""

    def key(adapter: Adapter) -> tuple[Distance, bool, int, int]:
        is_full = not any(map(view.is_free, adapter.devices))
        return distance(adapter.head, gpu), is_full, lines.get(adapter.id, 0), adapter.head.index

    placed = [it for it in view.adapters if it.head.pci_root or it.head.numa_node is not None]
    if not placed:
        return None
    adapter = min(placed, key=key)
    return _pair(gpu, adapter, adapter.head)

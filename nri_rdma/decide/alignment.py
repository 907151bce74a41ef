"""The distances of a container's devices to its GPUs, as known when the container is created. Pure.

The devices of a pod are chosen for the GPUs that were reported before its sandbox ran; only the created container has
device nodes that show its real GPUs. If both agree, distances are taken to the GPUs for which each device was chosen,
otherwise to the container's real GPUs. A container with a strict request must not start if a device is too far away.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from nri_rdma.decide.gpus import GpuNames, KnownGpus, gpus_of, is_next_to_gpus, source_words
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.decide.topology import FARTHEST_ALIGNED, Distance, distance
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.device import Gpu, RdmaDevice
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import AlignTo, DeviceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A device and the nearest of the container's GPUs, with the distance between both."""

    device: str
    gpu: PciAddress
    far: Distance

    def __str__(self) -> str:
        return f"{self.device} is {self.far.name} from GPU {self.gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The distances of a container's devices to its GPUs.

    `gpus` are the container's GPUs, and `source` says how they are known. `contradiction` says how they differ from the
    GPUs for which the devices were chosen; "" if they do not differ. `problem` says why some GPUs are unknown; "" if
    all are known. `refused` are the pairs that are too far apart for a strict request.
    """

    gpus: tuple[PciAddress, ...]
    source: str
    pairs: tuple[Pair, ...]
    contradiction: str = ""
    problem: str = ""
    refused: tuple[Pair, ...] = ()
    is_strict: bool = False
    """Whether a request of the container is strict. A GPU that cannot be identified then keeps the container from
    starting."""

    @property
    def worst(self) -> Distance | None:
        """The distance of the farthest pair."""
        return max((pair.far for pair in self.pairs), default=None)

    @property
    def is_far(self) -> bool:
        """Whether a device of a pair is not next to its GPU, that is, farther than FARTHEST_ALIGNED."""
        return self.worst is not None and self.worst > FARTHEST_ALIGNED

    @property
    def words(self) -> str:
        """A text: ``aligned: PIX`` (the farthest distance) if each device is next to its GPU, or else the pairs that
        are not."""
        if self.worst is None:
            return ""
        far = [str(pair) for pair in self.pairs if pair.far > FARTHEST_ALIGNED]
        return "; ".join(far) if far else f"aligned: {self.worst.name}"


def alignment_of(
    attached: Iterable[AttachedRequest], container: str, shown: KnownGpus, names: GpuNames
) -> Alignment | None:
    """Return how far a container's devices are from its GPUs. `shown` are the GPUs that the created container really
    has. None if none of its devices has to be near GPUs, or if no GPU is known."""
    covering = [
        item
        for item in attached
        if item.admitted.request.scope.covers(container) and is_next_to_gpus(item.admitted.request)
    ]
    requests = [item.admitted.request for item in covering]
    placed_for = frozenset(gpus_of(requests))
    if shown.is_default and placed_for:
        shown = KnownGpus()  # a variable that the image sets by default says nothing about the allocation
    is_other = bool(placed_for) and not placed_for.issuperset(shown.gpus)
    pairs, refused = [], []
    for item in covering:
        own = list(_pairs(item, _judged_by(item.admitted.request, shown, is_other=is_other), names))
        pairs += own
        if is_other and _is_strict(item.admitted.request):
            refused += [pair for pair in own if pair.far > FARTHEST_ALIGNED]
    if is_other:
        strict = [item for item in covering if _is_strict(item.admitted.request)]
        lonely = filter(None, (_far_from_all(strict, (gpu,), names) for gpu in sorted({*shown.gpus} - placed_for)))
        far = [pair for pair in lonely if pair not in refused]
        pairs, refused = [*pairs, *far], [*refused, *far]
    if not pairs:
        return None
    apart = _far_from_all(covering, shown.gpus, names) if placed_for.issuperset(shown.gpus) else None
    if apart is not None:
        pairs = [apart]  # the devices are next to GPUs of the pod's other containers only
        refused = [apart] if any(_is_strict(request) for request in requests) else []
    told = ", ".join(dict.fromkeys(filter(None, map(source_words, requests))))
    return Alignment(
        gpus=shown.gpus or tuple(gpus_of(requests)),
        source=shown.source if shown.gpus else told,
        pairs=tuple(pairs),
        contradiction=f"{shown.source} show GPU {_listed(shown.gpus)}, and {told} reported {_listed(placed_for)}"
        if is_other
        else "",
        problem=shown.problem,
        refused=tuple(refused),
        is_strict=any(map(_is_strict, requests)),
    )


def is_strict(attached: Iterable[AttachedRequest], container: str) -> bool:
    """Return whether a request of the container is strict: the container must not start if its devices are far from its
    GPUs."""
    for item in attached:
        align = item.admitted.request.align
        if align is not None and _is_strict(item.admitted.request) and item.admitted.request.scope.covers(container):
            return True
    return False


def _far_from_all(covering: Iterable[AttachedRequest], gpus: Collection[PciAddress], names: GpuNames) -> Pair | None:
    """Return the nearest pair of a device of these requests and one of these GPUs if even this pair is too far apart;
    otherwise None."""
    pairs = [pair for item in covering for pair in _pairs(item, gpus, names)]
    nearest = min(pairs, key=lambda pair: pair.far, default=None)
    return nearest if nearest is not None and nearest.far > FARTHEST_ALIGNED else None


def refuse_far(alignment: Alignment, where: str) -> None:
    """Raise PlacementError if the container has a strict request and a device is too far from its GPU, or a GPU is
    unknown. `where` names the container."""
    why = [*map(str, alignment.refused), *([alignment.problem] if alignment.is_strict and alignment.problem else [])]
    if why:
        told = "; ".join(filter(None, (*why, alignment.contradiction)))
        raise PlacementError(
            ErrorCode.NOT_ALIGNED,
            f"not aligned to gpu: {told}",
            where=where,
            hint="delete the pod so that it is placed again, or leave strict out",
        )


def _judged_by(request: DeviceRequest, shown: KnownGpus, *, is_other: bool) -> tuple[PciAddress, ...]:
    """Return the GPUs to which the distances of a request's devices are taken: normally the GPUs in the request. A
    request for several containers has the GPUs of all of them, and each container (`shown`) only a part. `is_other`:
    the container has GPUs for which its devices were not chosen; then only the container's own GPUs count."""
    return shown.gpus if is_other or not request.gpus else request.gpus


def _pairs(item: AttachedRequest, gpus: Collection[PciAddress], names: GpuNames) -> Iterator[Pair]:
    known = [names.by_pci[pci] for pci in gpus if pci in names.by_pci]
    for attached in item.devices if known else ():
        yield _nearest(attached.device, known)


def _nearest(device: RdmaDevice, gpus: Iterable[Gpu]) -> Pair:
    far, nearest = Distance.SYS, None
    for gpu in gpus:  # a loop is half the cost of min() with a key
        own = distance(device, gpu)
        if nearest is None or own < far:
            far, nearest = own, gpu
            if far is Distance.PIX:
                break
    assert nearest is not None  # callers pass at least one GPU
    return Pair(device=device.name, gpu=nearest.pci, far=far)


def _is_strict(request: DeviceRequest) -> bool:
    return request.align is not None and request.align.to is AlignTo.GPU and request.align.strict


def _listed(gpus: Iterable[PciAddress]) -> str:
    return ", ".join(map(str, sorted(gpus)))

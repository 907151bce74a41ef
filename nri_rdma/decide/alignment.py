"""The distances of a container's devices to its GPUs, as known when the container is created. Pure.

A pod is placed by the GPUs that were reported before its sandbox ran; the created container shows which GPUs it really
has. If both agree, each device is measured against the GPUs that it was placed for, otherwise against those that the
container shows. A container with a strict request must not start if its devices turn out to be too far away.
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
    """A device and the nearest of the GPUs that it is measured against."""

    device: str
    gpu: PciAddress
    far: Distance

    def __str__(self) -> str:
        return f"{self.device} is {self.far.name} from GPU {self.gpu}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """The distances of a container's devices to its GPUs.

    `contradiction` says how these GPUs differ from those that the pod was placed for; "" if they are the same.
    `problem` says why some GPUs are unknown; "" if all are known. `refused` are the pairs that are too far apart for a
    strict request.
    """

    gpus: tuple[PciAddress, ...]
    source: str
    pairs: tuple[Pair, ...]
    contradiction: str = ""
    problem: str = ""
    refused: tuple[Pair, ...] = ()
    is_strict: bool = False
    """Whether a request of the container is strict; if so, a GPU that cannot be identified leads to a refusal, too."""

    @property
    def worst(self) -> Distance | None:
        """The distance of the farthest pair."""
        return max((pair.far for pair in self.pairs), default=None)

    @property
    def is_far(self) -> bool:
        """Whether any device is not next to a GPU."""
        return self.worst is not None and self.worst > FARTHEST_ALIGNED

    @property
    def words(self) -> str:
        """The distance as a text: ``aligned: PIX``, or else the pairs that are not aligned."""
        if self.worst is None:
            return ""
        far = [str(pair) for pair in self.pairs if pair.far > FARTHEST_ALIGNED]
        return "; ".join(far) if far else f"aligned: {self.worst.name}"


def alignment_of(
    attached: Iterable[AttachedRequest], container: str, shown: KnownGpus, names: GpuNames
) -> Alignment | None:
    """Return the alignment of a container. None if no device of it is to be near GPUs, or if no GPU is known."""
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
    if not pairs:
        return None
    if shown.gpus and placed_for.issuperset(shown.gpus) and (apart := _all_far(covering, shown, names)) is not None:
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
    """Return whether a container must not start if its devices are far from its GPUs."""
    for item in attached:
        align = item.admitted.request.align
        if align is not None and _is_strict(item.admitted.request) and item.admitted.request.scope.covers(container):
            return True
    return False


def _all_far(covering: Iterable[AttachedRequest], shown: KnownGpus, names: GpuNames) -> Pair | None:
    """Return the nearest pair of a device and a GPU of the container, if no device is next to any of its GPUs;
    otherwise None."""
    pairs = [pair for item in covering for pair in _pairs(item, shown.gpus, names)]
    nearest = min(pairs, key=lambda pair: pair.far, default=None)
    return nearest if nearest is not None and nearest.far > FARTHEST_ALIGNED else None


def refuse_far(alignment: Alignment, where: str) -> None:
    """Raise PlacementError if a strict request of the container does not allow this alignment."""
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
    """Return the GPUs against which a request's devices are measured. These are normally the request's own GPUs: a
    request for several containers is placed near the GPUs of all of them, and each container shows only a part.
    `is_other`: the container shows GPUs that it was not placed for, and these count."""
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

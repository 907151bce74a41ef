"""Finds a container's GPUs among those of the node, by the names that other programs report. Pure.

Every program has its own names for a GPU. These are understood:

| Reported by | Form | Meaning |
|---|---|---|
| NVIDIA's device plugin | ``GPU-UUID``; ``GPU-UUID::3``, ``GPU-UUID-3`` and other shares | the GPU with that UUID |
| | ``0``, ``0:1`` (a part of it) | the GPU at this place among NVIDIA's GPUs in PCI order, as NVML counts |
| | ``MIG-GPU-UUID/1/0`` | the GPU of which it is a part |
| | ``MIG-UUID`` | none: it names no GPU |
| GKE's device plugin | ``nvidia0``, ``nvidia0/gi3``, ``nvidia0/vgpu1`` | the GPU with that device file |
| AMD's device plugin | ``0000:0c:00.0`` | the GPU at that PCI address |
| | ``card1``, ``renderD128`` | the GPU with that device file |
| | ``amdgpu_xcp_1`` (a partition) | none: it names no GPU |
| Intel's device plugin | ``card0-1`` (a share) | the GPU with that device file |
| any other device plugin | a UUID or a PCI address of a GPU of this node | that GPU; other ids mean no GPU |
| a claim | its CDI devices: their device nodes, by path or number | the GPUs with these nodes |
| CDI | ``nvidia.com/gpu=`` and an id of NVIDIA's, or ``all`` | the GPU with that id; all NVIDIA GPUs |
| a container | its device nodes, by number | the GPUs with these nodes |
| NVIDIA_VISIBLE_DEVICES | ids of NVIDIA's, also a UUID's beginning; or ``all`` | the GPUs with those ids; all |

If an id of a GPU resource names no GPU, the pod has a GPU that cannot be identified; the result says so in `problem`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from nri_rdma.cdi.names import parse_qualified
from nri_rdma.cdi.registry import ResolvedDevice
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.allocation import ContainerAllocation, PodAllocation
from nri_rdma.model.device import DeviceNumbers, Gpu
from nri_rdma.model.pci import PciAddress, parse_pci_address
from nri_rdma.model.request import AlignTo, DeviceRequest
from nri_rdma.text.refusals import bounded

KUBELET = "the kubelet"
"""The name of the kubelet in error texts, reasons and trace spans about the source of GPUs."""
CDI_DEVICES = "its CDI devices"
DEVICE_NODES = "its device nodes"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"

_NVIDIA = "10de"
_GPU_RESOURCES = re.compile(r"nvidia\.com/(gpu([-._].*)?|mig-.*)|amd\.com/gpu([-._].*)?|gpu\.intel\.com/(i915|xe)")
"""Not HAMi's gpumem and gpucores, which count megabytes and percents of a GPU, and whose ids name nothing."""
_GPU_DRIVERS = frozenset({"gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com"})
_NVIDIA_CLASS = re.compile(r"([a-z0-9-]+\.)*nvidia\.com/gpu=(?P<id>.+)")
_UUID = r"GPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_SHARE_OF_UUID = re.compile(rf"(?:MIG-)?(?P<uuid>{_UUID})(?![0-9a-fA-F]).*")
_PART_OF_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}[0-9a-fA-F-]*")
_PLACE = re.compile(r"(?P<place>[0-9]{1,4})(?::[0-9]{1,4})?")
_NODE = re.compile(r"(?P<node>nvidia[0-9]+)(?:/.*)?|(?P<card>(?:card|renderD|accel)[0-9]+)(?:-[0-9]+)?")
_NODE_FOLDERS = ("/dev", "/dev/dri", "/dev/accel")
_NOBODY = frozenset({"", "none", "void"})
_EVERY = "all"
_MOST_TEXT = 4096
"""The longest NVIDIA_VISIBLE_DEVICES that is read, in characters: a hundred UUIDs fit. Anybody may write this variable,
and reading one of a megabyte took more than a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNames:
    """The GPUs of a node by all their names. Built once for each scan of the hardware, so that finding a GPU is a
    look-up."""

    gpus: tuple[Gpu, ...] = ()
    nvidia: tuple[Gpu, ...] = ()
    """The GPUs that NVIDIA's driver serves, in PCI order; all NVIDIA GPUs if the driver reports none."""
    by_uuid: Mapping[str, Gpu] = field(default_factory=dict)
    by_node: Mapping[str, Gpu] = field(default_factory=dict)
    by_number: Mapping[DeviceNumbers, Gpu] = field(default_factory=dict)
    by_pci: Mapping[PciAddress, Gpu] = field(default_factory=dict)

    @classmethod
    def of(cls, gpus: Iterable[Gpu]) -> GpuNames:
        """Return the index of a node's GPUs by their names."""
        every = tuple(sorted(gpus, key=lambda gpu: gpu.pci))
        vendors = tuple(gpu for gpu in every if gpu.vendor == _NVIDIA)
        served = tuple(gpu for gpu in vendors if any(name.startswith("nvidia") for name in gpu.node_names))
        return cls(
            gpus=every,
            nvidia=served or vendors,
            by_uuid={gpu.uuid.lower(): gpu for gpu in every if gpu.uuid},
            by_node={name: gpu for gpu in every for name in gpu.node_names},
            by_number={number: gpu for gpu in every for number in gpu.nodes},
            by_pci={gpu.pci: gpu for gpu in every},
        )

    def named(self, text: str) -> Gpu | None:
        """Return the GPU that an id of a device plugin or of NVIDIA's tools names; None if the id names no GPU of this
        node."""
        share, place, node = _SHARE_OF_UUID.fullmatch(text), _PLACE.fullmatch(text), _NODE.fullmatch(text)
        if share is not None:
            return self.by_uuid.get(share["uuid"].lower())
        if place is not None:
            number = int(place["place"])
            return self.nvidia[number] if number < len(self.nvidia) else None
        if node is not None:
            return self.by_node.get(node["node"] or node["card"])
        address = parse_pci_address(text)
        return self.by_pci.get(address) if address is not None else None

    def abbreviated(self, text: str) -> Gpu | None:
        """Return the GPU that a text names; None if it names none. Every form that `named` understands is accepted, and
        also the beginning of a UUID if only one GPU's UUID begins so."""
        if not _PART_OF_UUID.fullmatch(text):
            return self.named(text)
        found = [gpu for uuid, gpu in self.by_uuid.items() if uuid.startswith(text.lower())]
        return found[0] if len(found) == 1 else self.named(text)

    def surely_named(self, text: str) -> Gpu | None:
        """Return the GPU whose UUID or PCI address the text is; None for any other text. Used for ids of resources that
        may not be GPUs: an id such as ``0`` could belong to a device of another kind."""
        return self.named(text) if _SHARE_OF_UUID.fullmatch(text) or parse_pci_address(text) is not None else None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownGpus:
    """The known GPUs of a container, each once, in the order reported. `problem` says why some GPUs are unknown; "" if
    all are known. `is_default`: the GPUs may come from a variable that the image sets, and not from an allocation."""

    gpus: tuple[PciAddress, ...] = ()
    source: str = ""
    problem: str = ""
    is_default: bool = False

    def __bool__(self) -> bool:
        """Return whether any GPU or problem was reported."""
        return bool(self.gpus or self.problem)


NOBODY_TOLD = KnownGpus()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGpus:
    """The kubelet's report of a pod's GPUs, by container. `unanswered` says why there is no report; "" if there is one.
    `is_unknown_pod`: there is no report because the kubelet does not know the pod."""

    by_container: Mapping[str, KnownGpus] = field(default_factory=dict)
    unanswered: str = ""
    is_unknown_pod: bool = False


# What the kubelet gave


def pod_gpus(allocation: PodAllocation, names: GpuNames, specs: Mapping[str, ResolvedDevice]) -> PodGpus:
    """Return the GPUs that the kubelet allocated to each container of a pod. `specs` are the CDI devices of the
    node."""
    told = {container.name: _of_allocation(container, names, specs) for container in allocation.containers}
    return PodGpus(by_container={name: known for name, known in told.items() if known})


def is_gpu_resource(resource: str) -> bool:
    """Return whether device plugins offer GPUs, or parts of GPUs, under this resource name."""
    return _GPU_RESOURCES.fullmatch(resource) is not None


def is_mig_resource(resource: str) -> bool:
    """Return whether NVIDIA's device plugin offers MIG devices, which are parts of GPUs, under this resource name."""
    return resource.startswith("nvidia.com/mig-")


def _of_allocation(container: ContainerAllocation, names: GpuNames, specs: Mapping[str, ResolvedDevice]) -> KnownGpus:
    found: list[Gpu] = []
    unknown: list[str] = []
    for item in container.resources:
        is_gpus = is_gpu_resource(item.resource)
        for device_id in item.ids:
            gpu = names.named(device_id) if is_gpus else names.surely_named(device_id)
            if gpu is not None:
                found.append(gpu)
            elif is_gpus:
                unknown.append(f"{item.resource} {bounded(device_id)}")
    for claim in container.claims:
        own = [gpu for name in claim.cdi_devices for gpu in of_cdi_device(name, names, specs)]
        found += own
        if not own and claim.driver in _GPU_DRIVERS:
            unknown.append(f"{claim.driver} {bounded(claim.device)}")
    found.sort(key=lambda gpu: gpu.pci)  # the kubelet's order has no meaning
    return _known(found, KUBELET, _unresolved(unknown, container.name))


def _unresolved(unknown: list[str], container: str) -> str:
    if not unknown:
        return ""
    more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
    return f"{unknown[0]}{more} of container {container} is no GPU that this node is known to have"


def _known(gpus: Iterable[Gpu], source: str, problem: str = "", *, is_default: bool = False) -> KnownGpus:
    addresses = tuple(dict.fromkeys(gpu.pci for gpu in gpus))
    return KnownGpus(gpus=addresses, source=source, problem=problem, is_default=is_default)


# CDI


def of_cdi_device(name: str, names: GpuNames, specs: Mapping[str, ResolvedDevice]) -> tuple[Gpu, ...]:
    """Return the GPUs of a CDI device: those of its spec's device nodes, or else the GPU that its name names."""
    spec = specs.get(name)
    nodes = (
        (_of_node(node.host_path or node.path, node.major, node.minor, names) for node in spec.nodes) if spec else ()
    )
    found = tuple(dict.fromkeys(gpu for gpu in nodes if gpu is not None))
    if found or parse_qualified(name) is None:
        return found
    own = _NVIDIA_CLASS.fullmatch(name)
    if own is None:
        return ()
    if own["id"] == _EVERY:
        return names.nvidia
    gpu = names.named(own["id"])
    return (gpu,) if gpu is not None else ()


def _of_node(path: str, major: int | None, minor: int | None, names: GpuNames) -> Gpu | None:
    if major is not None and minor is not None and (major, minor) in names.by_number:
        return names.by_number[major, minor]
    folder, _, name = path.rpartition("/")
    return names.by_node.get(name) if folder in _NODE_FOLDERS else None


# What a created container shows


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvidence:
    """The evidence in a created container about its GPUs: the numbers of its device nodes, the CDI devices that the
    runtime reports, and NVIDIA_VISIBLE_DEVICES (None: not set). The nodes of a privileged container are no evidence,
    because it has all nodes of the host."""

    nodes: Collection[DeviceNumbers] = ()
    cdi_devices: tuple[str, ...] = ()
    visible: str | None = None
    is_privileged: bool = False


def of_shown(shown: GpuEvidence, names: GpuNames, specs: Mapping[str, ResolvedDevice]) -> KnownGpus:
    """Return the GPUs of a created container. The GPUs of its CDI devices count; if there are none, those of its device
    nodes; if there are none, those in NVIDIA_VISIBLE_DEVICES."""
    named = [gpu for name in shown.cdi_devices for gpu in of_cdi_device(name, names, specs)]
    if named:
        return _known(named, CDI_DEVICES)
    if not shown.is_privileged:
        found = {gpu.pci: gpu for node in shown.nodes if (gpu := names.by_number.get(node)) is not None}
        if found:
            return _known((found[pci] for pci in sorted(found)), DEVICE_NODES)
    return _of_visible(shown.visible, names)


def _of_visible(text: str | None, names: GpuNames) -> KnownGpus:
    """Return the GPUs that the value of NVIDIA_VISIBLE_DEVICES names. The result for ``all`` has `is_default`, because
    CUDA images set this value themselves. The result for a path is empty, because the container then gets its GPUs by
    mounts."""
    if text is None or text in _NOBODY or text.startswith("/"):
        return NOBODY_TOLD
    if len(text) > _MOST_TEXT:
        return _known((), VISIBLE_DEVICES, f"{VISIBLE_DEVICES} has {len(text)} characters")
    if text == _EVERY:
        return _known(names.nvidia, VISIBLE_DEVICES, is_default=True)
    parts = [part.strip() for part in text.split(",") if part.strip()]
    found = [(part, names.abbreviated(part)) for part in parts]
    unknown = [part for part, gpu in found if gpu is None]
    problem = (
        f"{VISIBLE_DEVICES} names {bounded(unknown[0])}, no GPU that this node is known to have" if unknown else ""
    )
    return _known((gpu for _, gpu in found if gpu is not None), VISIBLE_DEVICES, problem)


# What the GPUs mean for a request


def may_use_gpus(request: DeviceRequest) -> bool:
    """Return whether the pod's GPUs matter for a request, because its devices must be next to the GPUs or on their NUMA
    nodes."""
    return request.align is None or request.align.to is not AlignTo.NONE


def is_next_to_gpus(request: DeviceRequest) -> bool:
    """Return whether the request's devices should be next to the pod's GPUs."""
    return request.align is None or request.align.to is AlignTo.GPU


def counted(request: DeviceRequest) -> DeviceRequest:
    """Return the request with its number of devices computed from `perGPU`, if it has that key and all GPUs are
    known."""
    if request.per_gpu is None or not request.gpus or request.gpus_problem:
        return request
    return replace(request, count=request.per_gpu * len(request.gpus))


def refuse_uncounted(requests: Iterable[DeviceRequest]) -> None:
    """Raise PlacementError for a request with `perGPU` whose GPUs are unknown."""
    for it in requests:
        if it.per_gpu is not None and it.count is None:
            raise PlacementError(
                ErrorCode.NOT_ALIGNED,
                f"perGPU counts the GPUs of the containers: {it.gpus_problem or 'no GPU is known'}",
                where=f"{it.where}.perGPU",
                hint="write count instead, or name the right GPUs in gpus"
                if it.gpus_problem
                else "give the containers GPUs, name the GPUs in gpus, or write count instead",
            )


def is_near_numa(request: DeviceRequest) -> bool:
    """Return whether the request's devices should be on the NUMA nodes of the pod's GPUs or CPUs."""
    return request.align is not None and request.align.to is AlignTo.NUMA


def informed(request: DeviceRequest, told: PodGpus | None) -> DeviceRequest:
    """Return the request with the GPUs of its containers. `told` is the kubelet's report, which overrides GPUs that the
    request names; None: there is no kubelet to ask. If GPUs are unknown or contradict the request, the result says so
    in `gpus_problem`."""
    if told is None or not may_use_gpus(request):
        return request
    if told.unanswered:
        is_asked_for = request.align is not None and is_next_to_gpus(request) and not request.gpus
        matters = is_asked_for if told.is_unknown_pod else True
        return replace(request, gpus_problem=told.unanswered) if matters else request
    known = [item for name, item in told.by_container.items() if request.scope.covers(name)]
    gpus = tuple(dict.fromkeys(pci for item in known for pci in item.gpus))
    source = next((item.source for item in known if item.gpus), "")
    problem = next((item.problem for item in known if item.problem), "")
    if not gpus:
        return replace(request, gpus_problem=problem) if problem else request
    if request.gpus and set(request.gpus) <= set(gpus):
        gpus = request.gpus  # the author's order and choice decide which device serves which GPU
    elif request.gpus:
        problem = problem or _contradiction(source, gpus, request.gpus)
    return replace(request, gpus=gpus, gpus_from=source, gpus_problem=problem)


def _contradiction(source: str, told: Iterable[PciAddress], own: Iterable[PciAddress]) -> str:
    return f"{source} says that the pod has GPU {_listed(told)}, the request says {_listed(own)}"


def _listed(gpus: Iterable[PciAddress]) -> str:
    return ", ".join(map(str, gpus))


def source_words(request: DeviceRequest) -> str:
    """Return a text that says who named a request's GPUs: the kubelet or the request itself. "" if the request has no
    GPUs."""
    return request.gpus_from or ("the request" if request.gpus else "")


def gpus_of(requests: Iterable[DeviceRequest]) -> Iterator[PciAddress]:
    """Yield all GPUs of the requests, each once, in the order of the requests."""
    yield from dict.fromkeys(pci for request in requests for pci in request.gpus)

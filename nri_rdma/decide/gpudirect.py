"""Judges whether GPUDirect RDMA is possible, by what the machine shows. Pure.

A NIC can reach a GPU's memory in two ways: by peer memory, which needs a module for the RDMA drivers of DOCA-OFED, or
by the kernel's own dma-buf. GPUDirect RDMA counts as possible if nothing speaks against one of them; only moving data
would prove it.

| way | needs | source |
|---|---|---|
| NVIDIA, peer memory | nvidia_peermem or nv_peer_mem, which need peer memory in ib_core | nvidia-peermem.c, NCCL |
| NVIDIA, dma-buf | the open kernel module, 515 or newer; it does not use CONFIG_PCI_P2PDMA | nv-dmabuf.c |
| AMD, peer memory | amdkfd has registered with ib_core | RCCL |
| AMD, dma-buf | CONFIG_PCI_P2PDMA and DMABUF_MOVE_NOTIFY; without them it gives host memory | amdgpu_dma_buf.c |

Linux 7.1 has no option DMABUF_MOVE_NOTIFY any more: it is always on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nri_rdma.decide.topology import FARTHEST_ALIGNED, distance
from nri_rdma.model.device import Gpu, RdmaDevice
from nri_rdma.model.gpudirect import GpuDirect, GpuDirectFacts, GpuWay, Meeting, Reason, Verdict
from nri_rdma.model.pci import PciAddress, below_root

NVIDIA_PEER_MODULES = frozenset({"nvidia_peermem", "nv_peer_mem"})
DRIVERS = frozenset({"nvidia", "amdgpu"})
OPTIONS = ("DMA_SHARED_BUFFER", "INFINIBAND_USER_MEM", "PCI_P2PDMA", "DMABUF_MOVE_NOTIFY")
"""The options of the kernel's configuration that are read."""

_NVIDIA_PEER_CLIENTS = frozenset({"nv_mem", "nv_mem_nc"})
_AMD_PEER_CLIENTS = frozenset({"amdkfd"})
_OLDEST_WITH_DMABUF = 515
_NVIDIA = "NVIDIA"
_MAKERS = {"10de": _NVIDIA, "1002": "AMD"}
_PEER_MEMORY, _DMABUF = "peer memory", "dma-buf"


def gpudirect(gpus: Iterable[Gpu], devices: Iterable[RdmaDevice], facts: GpuDirectFacts) -> tuple[GpuDirect, ...]:
    """Return for each maker of the node's GPUs whether GPUDirect RDMA (a NIC reads and writes GPU memory) is possible,
    and why. Empty if the node has no GPU of a known maker, or no NIC on PCI."""
    nics = [device for device in devices if device.pci is not None]
    every = tuple(gpus)
    by_maker = {maker: [gpu for gpu in every if gpu.vendor == vendor] for vendor, maker in _MAKERS.items()}
    return tuple(_of_maker(maker, own, nics, facts) for maker, own in by_maker.items() if own and nics)


def _of_maker(maker: str, gpus: Sequence[Gpu], nics: Sequence[RdmaDevice], facts: GpuDirectFacts) -> GpuDirect:
    functions = [gpu.pci for gpu in gpus] + [nic.pci for nic in nics if nic.pci is not None]
    ways = (_nvidia_ways if maker == _NVIDIA else _amd_ways)(functions, facts)
    verdicts = {way.verdict for way in ways}
    return GpuDirect(
        maker=maker,
        verdict=next(it for it in (Verdict.POSSIBLE, Verdict.UNKNOWN, Verdict.NOT_POSSIBLE) if it in verdicts),
        ways=ways,
        meetings=tuple(meeting for gpu in gpus for meeting in _meetings(gpu, nics, facts)),
        alone=tuple(gpu.pci for gpu in gpus if not any(distance(gpu, nic) <= FARTHEST_ALIGNED for nic in nics)),
        lacks_gdrcopy=maker == _NVIDIA and not facts.has_gdrdrv,
    )


# The ways


def _nvidia_ways(functions: Sequence[PciAddress], facts: GpuDirectFacts) -> tuple[GpuWay, ...]:
    driver = tuple(_nvidia_driver(facts))
    has_peers = facts.modules & NVIDIA_PEER_MODULES or facts.peer_clients & _NVIDIA_PEER_CLIENTS
    no_peers = Reason(
        text="the module nvidia_peermem is not loaded",
        fix="`modprobe nvidia_peermem`, which needs the RDMA drivers of DOCA-OFED (MLNX_OFED)",
    )
    return (
        _peer_memory(driver or (() if has_peers else (no_peers,)), functions, facts),
        GpuWay(
            name=_DMABUF,
            lacks=driver or (*_nvidia_without_dmabuf(facts), *_kernel_without_dmabuf(facts)),
            doubts=(*_unread_driver(facts), *_unread_options(facts), *_unasked_paths(facts)),
        ),
    )


def _nvidia_driver(facts: GpuDirectFacts) -> Iterator[Reason]:
    if "nvidia" not in facts.modules:
        yield Reason(text="NVIDIA's driver is not loaded", fix="install the driver, then `modprobe nvidia`")
    elif facts.nvidia_denies:
        yield Reason(
            text="NVIDIA's driver denies it (GrdmaPciTopoCheckOverride is 2)",
            fix="load nvidia with NVreg_GrdmaPciTopoCheckOverride=0",
        )


def _nvidia_without_dmabuf(facts: GpuDirectFacts) -> Iterator[Reason]:
    driver = facts.nvidia
    if driver is not None and (not driver.is_open or 0 < driver.release < _OLDEST_WITH_DMABUF):
        kind = "open" if driver.is_open else "proprietary"
        yield Reason(
            text=f"NVIDIA's driver is the {kind} module{f' {driver.release}' if driver.release else ''}",
            fix=f"install the open kernel module of the driver, {_OLDEST_WITH_DMABUF} or newer",
        )


def _unread_driver(facts: GpuDirectFacts) -> Iterator[Reason]:
    if facts.nvidia is None:
        yield Reason(
            text="NVIDIA's driver does not say here whether it is the open module",
            fix="read /proc/driver/nvidia/version on the host",
        )


def _amd_ways(functions: Sequence[PciAddress], facts: GpuDirectFacts) -> tuple[GpuWay, ...]:
    absent = Reason(text="AMD's driver is not loaded", fix="`modprobe amdgpu`")
    driver = () if "amdgpu" in facts.modules else (absent,)
    no_peers = Reason(
        text="amdkfd has not registered with ib_core's peer memory",
        fix="install ROCm's amdgpu-dkms beside the RDMA drivers of DOCA-OFED (MLNX_OFED)",
    )
    has_peers = facts.peer_clients & _AMD_PEER_CLIENTS
    return (
        _peer_memory(driver or (() if has_peers else (no_peers,)), functions, facts),
        GpuWay(
            name=_DMABUF,
            lacks=driver or (*_kernel_without_dmabuf(facts), *_amd_without_dmabuf(facts)),
            doubts=tuple(_unread_options(facts)),
        ),
    )


def _peer_memory(lacks: tuple[Reason, ...], functions: Sequence[PciAddress], facts: GpuDirectFacts) -> GpuWay:
    return GpuWay(name=_PEER_MEMORY, lacks=lacks, doubts=tuple(_translated(functions, facts)))


def _kernel_without_dmabuf(facts: GpuDirectFacts) -> Iterator[Reason]:
    for option in ("DMA_SHARED_BUFFER", "INFINIBAND_USER_MEM"):
        if facts.options is not None and not facts.options.get(option):
            yield _off(option)


def _amd_without_dmabuf(facts: GpuDirectFacts) -> Iterator[Reason]:
    if facts.options is not None:
        if not facts.options.get("PCI_P2PDMA"):
            yield _off("PCI_P2PDMA")
        if facts.options.get("DMABUF_MOVE_NOTIFY") is False:
            yield _off("DMABUF_MOVE_NOTIFY")


def _off(option: str) -> Reason:
    return Reason(text=f"the kernel was built without CONFIG_{option}", fix=f"boot a kernel with CONFIG_{option}")


def _unread_options(facts: GpuDirectFacts) -> Iterator[Reason]:
    if facts.options is None:
        yield Reason(
            text="the kernel's configuration cannot be read here",
            fix="look for CONFIG_PCI_P2PDMA in /boot/config-$(uname -r) on the host",
        )


def _unasked_paths(facts: GpuDirectFacts) -> Iterator[Reason]:
    """Yield a reason for doubt if the kernel was built without CONFIG_PCI_P2PDMA: it then does not know which PCIe
    paths carry traffic between devices. GPUDirect RDMA may work nevertheless, because NVIDIA's open module never asks
    the kernel about the path."""
    if facts.options is not None and not facts.options.get("PCI_P2PDMA"):
        yield Reason(
            text="the kernel, built without CONFIG_PCI_P2PDMA, does not know which PCIe paths carry peer traffic",
            fix="measure it: `ib_write_bw --use_cuda=0 --use_cuda_dmabuf`, or GDRDMA in the lines of NCCL_DEBUG=INFO",
        )


def _translated(functions: Sequence[PciAddress], facts: GpuDirectFacts) -> Iterator[Reason]:
    """Yield a reason for doubt if the IOMMU translates addresses, so that a device reaches a part of the memory under
    another address than the part really has. `functions` are the PCI functions of GPUs and NICs."""
    known = [(address, facts.iommu[address]) for address in functions if address in facts.iommu]
    translated = [(address, kind) for address, kind in known if kind.startswith("DMA")]
    if translated:
        address, kind = translated[0]
        more = f" and of {len(translated) - 1} more" if len(translated) > 1 else ""
        yield Reason(
            text=f"the IOMMU translates the addresses of {address}{more} (type {kind})",
            fix="boot with iommu=pt; peer memory needs the same addresses for both devices",
        )


# Where they meet


def _meetings(gpu: Gpu, nics: Sequence[RdmaDevice], facts: GpuDirectFacts) -> Iterator[Meeting]:
    """Yield a Meeting for each NIC that is next to the GPU and has the least distance from it. A Meeting is the
    position at which the paths of a GPU and a NIC join in the PCI tree."""
    nearest = min(distance(gpu, nic) for nic in nics)
    for nic in nics:
        if distance(gpu, nic) == nearest <= FARTHEST_ALIGNED:
            bridge, between = _path(gpu, nic)
            redirects = {it: facts.acs_redirects.get(it, False) for it in between}
            yield Meeting(
                gpu=gpu.pci,
                device=nic.name,
                distance=nearest.name,
                root=gpu.pci_root,
                bridge=bridge,
                redirecting=tuple(it for it, does in redirects.items() if does),
                unread=tuple(it for it, does in redirects.items() if does is None),
            )


def bridges_between(gpus: Iterable[Gpu], devices: Iterable[RdmaDevice]) -> frozenset[str]:
    """Return the PCI bridges whose ACS settings decide how a GPU and a NIC below a common bridge reach each other."""
    nics = list(devices)
    return frozenset(it for gpu in gpus for nic in nics for it in _path(gpu, nic)[1])


def _path(gpu: Gpu, nic: RdmaDevice) -> tuple[str, tuple[str, ...]]:
    """Return the nearest bridge above both the GPU and the NIC, and all bridges between it and each of them. ("", ())
    if their paths join only at the root complex, where ACS makes no difference."""
    if not gpu.pci_root or gpu.pci_root != nic.pci_root:
        return "", ()
    a, b = below_root(gpu.pci_root, gpu.pci_path), below_root(nic.pci_root, nic.pci_path)
    shared = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return (a[shared - 1], (*a[shared:-1], *b[shared:-1])) if shared else ("", ())


# In words


def sentence(found: GpuDirect) -> str:
    """Return a text on whether GPUDirect RDMA is possible for the GPUs of one maker, why, and where in the PCI tree
    GPUs and NICs meet. It has no full stop at its end."""
    parts = [f"{found.verdict} for the GPUs of {found.maker}{_ways_words(found)}"]
    if found.meetings:
        parts.append(f"nearest: {', '.join(_places_words(found.meetings))}")
    if found.alone:
        parts.append(f"no NIC is below the root complex of {', '.join(map(str, found.alone))}")
    if found.redirecting:
        parts.append(f"ACS of {', '.join(found.redirecting)} sends what passes there up to the root complex")
    if found.unread:
        parts.append(f"only root may read the ACS of {', '.join(found.unread)}")
    if found.lacks_gdrcopy and found.verdict is Verdict.POSSIBLE:
        parts.append("without /dev/gdrdrv (GDRCopy) UCX and NVSHMEM are slower with small messages")
    return "; ".join(parts)


def fix(found: GpuDirect) -> str:
    """Return the steps that would make GPUDirect RDMA possible; "" if there is nothing to do. Peer memory and dma-buf
    need different steps, which are joined by "or"."""
    parts = []
    if found.verdict is not Verdict.POSSIBLE:
        ways = (way.lacks or way.doubts for way in found.ways if way.verdict is found.verdict)
        parts.append("; or ".join(dict.fromkeys(", and ".join(reason.fix for reason in reasons) for reasons in ways)))
    if found.redirecting:
        bridges = ";".join(found.redirecting)
        parts.append(f"switch ACS off in the firmware's set-up, or boot with 'pci=disable_acs_redir={bridges}'")
    return "; then ".join(parts)


def _ways_words(found: GpuDirect) -> str:
    if found.verdict is Verdict.POSSIBLE:
        names = [way.name for way in found.ways if way.verdict is Verdict.POSSIBLE]
        return f" by {' and by '.join(names)}, as far as the machine shows"
    reasons = {way.name: " and ".join(it.text for it in (way.lacks or way.doubts)) for way in found.ways}
    if len(set(reasons.values())) == 1:
        return f" ({next(iter(reasons.values()))})"
    return f" ({'; '.join(f'{name}: {text}' for name, text in reasons.items())})"


def _places_words(meetings: Iterable[Meeting]) -> Iterator[str]:
    """Yield a text for each position in the PCI tree where GPUs and NICs meet, with the names of the GPUs and the
    NICs."""
    places: dict[tuple[str, str], list[Meeting]] = {}
    for it in meetings:
        place = f"below {it.bridge}" if it.bridge else f"at {it.root}"
        places.setdefault((place, it.distance), []).append(it)
    for (place, far), here in places.items():
        gpus = " and ".join(dict.fromkeys(str(it.gpu) for it in here))
        yield f"{gpus} with {' and '.join(dict.fromkeys(it.device for it in here))} {place} ({far})"

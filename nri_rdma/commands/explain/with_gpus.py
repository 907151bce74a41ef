"""Reads the flag `--gpu` of `explain`, which names the GPUs of a container. A manifest says only how many; the kubelet
chooses which."""

from __future__ import annotations

from dataclasses import replace

from nri_rdma.commands.explain.gather import FactsSource
from nri_rdma.decide.gpus import GpuNames, KnownGpus
from nri_rdma.errors import ErrorCode, SettingError
from nri_rdma.model.pci import PciAddress
from nri_rdma.text.manifest import PodManifest
from nri_rdma.text.refusals import bounded, listed

FLAG = "--gpu"
"""The name by which `explain` calls the source of GPUs from this flag. Normally the source is the kubelet."""


def with_gpus(source: FactsSource, told: tuple[str, ...], pods: tuple[PodManifest, ...]) -> FactsSource:
    """Return the input of `explain` with the GPUs that the flags name, as if the kubelet had reported them. `told` are
    the values of --gpu (``CONTAINER=ID[,ID]``).

    Raises SettingError if a value has another form, or names a GPU or container that does not exist.
    """
    names = GpuNames.of(source.facts.node.gpus)
    containers = {container.name for pod in pods for container in pod.containers}
    found: dict[str, list[PciAddress]] = {}
    for text in told:
        container, separator, ids = text.partition("=")
        if not (separator and ids):
            raise _refused(text, "it is not CONTAINER=ID[,ID]", "write trainer=0, or trainer=GPU-UUID,0000:3e:00.0")
        if container not in containers:
            raise _refused(
                text, f"no pod has a container {bounded(container)}", f"there are {listed(sorted(containers))}"
            )
        found.setdefault(container, []).extend(_address(text, item.strip(), names) for item in ids.split(","))
    by_container = {name: KnownGpus(gpus=tuple(sorted(set(own))), source=FLAG) for name, own in found.items()}
    return replace(source, facts=replace(source.facts, gpus=by_container))


def _address(text: str, item: str, names: GpuNames) -> PciAddress:
    gpu = names.abbreviated(item)
    if gpu is None:
        have = listed(f"{gpu.pci}{f' {gpu.uuid}' if gpu.uuid else ''}" for gpu in names.gpus)
        raise _refused(
            text, f"the node has no GPU {bounded(item)}", f"its GPUs are {have}" if names.gpus else "it has none"
        )
    return gpu.pci


def _refused(text: str, what: str, hint: str) -> SettingError:
    return SettingError(ErrorCode.SETTING, what, where=f"--gpu {bounded(text)}", hint=hint)

"""Finds settings in a pod's manifest that work against its request for devices. Pure.

Kubernetes accepts all of them, and they can be found without a node. Each becomes a warning; it has the form of an
error, but is never raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any  # Any: a manifest before it is read

from nri_rdma.decide.gpus import is_gpu_resource
from nri_rdma.decide.inject import HINT_VARIABLES, SOCKET_VARIABLES
from nri_rdma.decide.port_gids import GID_VARIABLES
from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.model.edits import DEVICES, NETDEVS
from nri_rdma.model.request import DeviceRequest, Mode, PodRequest, Use
from nri_rdma.text.annotations import asks
from nri_rdma.text.manifest import ContainerManifest, PodManifest
from nri_rdma.text.nodes import Path
from nri_rdma.text.refusals import bounded, refused

_POD_NETDEVS = ("eth0", "lo")
"""The netdevs that every pod's namespace has already. Container runtimes name the interface of every CNI plugin
eth0."""
_EXPANDED = re.compile(r"(?<!\$)\$\(([A-Z0-9_]+)\)")
_WITH_SHM = ("RayCluster", "RayJob", "RayService")
"""Kinds of Ray, whose operator (KubeRay) mounts memory at /dev/shm."""
_FOLDERS = ("/dev", "/dev/infiniband")
_MOST_DIGITS = 9
_SEGMENTS_GPUS = 3
"""From this number of GPUs on, NCCL's shared memory (9.6 MB for each neighbour of a GPU) may exceed the 64 MiB that
runtimes give to /dev/shm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """A warning. `path` leads to its cause in the pod; it is empty if the error itself names a place in an
    annotation."""

    path: Path
    error: RequestError


def remarks(pod: PodManifest, request: PodRequest | None, prefix: str) -> Iterator[Remark]:
    """Yield a warning for each setting of the pod that is valid, but probably a mistake. `request` is the request in
    the pod's annotations, and `prefix` begins our annotation keys."""
    requests = request.requests if request is not None else ()
    for key, _ in pod.labels:
        if asks({key: ""}, prefix):
            yield _of(("metadata", "labels", key), "nri-rdma reads annotations, and no labels", _move(key, prefix))
    for item in requests:
        yield from _names(item)
        yield from _replaced(pod, item, prefix)
        yield from _uncounted(pod, item)
    for container in pod.containers:
        yield from _expansions(container, _variables(container, requests))
        if not requests:
            yield from _resources(container, prefix)
        if any(item.scope.covers(container.name) for item in requests) or _asks_by_resource(container):
            yield from _beside(pod, container)
    if requests or any(map(_asks_by_resource, pod.containers)):
        yield from _volumes(pod)
        yield from _host_network(pod, requests)


def _of(path: Path, what: str, hint: str) -> Remark:
    return Remark(path=path, error=RequestError(ErrorCode.MANIFEST_VALUE, what, hint=hint))


def _move(key: str, prefix: str) -> str:
    if key == f"{prefix}/pod" or key.startswith(f"{prefix}/container."):
        return f"move {bounded(key)} to the annotations of the pod"
    return f"write {prefix}/pod into the annotations of the pod, with the devices that it asks for"


def _asks_by_resource(container: ContainerManifest) -> bool:
    return any("rdma" in name for name, _ in container.resources)


# In the annotation


def _names(item: DeviceRequest) -> Iterator[Remark]:
    name, where = item.interface.name or "", f"{item.where}.interface.name"
    if name in _POD_NETDEVS:
        what = f"the pod has a netdev {name} of its own, so that every node refuses it (NAME-CONFLICT)"
        yield Remark(path=(), error=refused(where, what, "write another name, such as rdma%d"))


def _replaced(pod: PodManifest, item: DeviceRequest, prefix: str) -> Iterator[Remark]:
    """Yield a warning if a request of the pod's list names a container that has a list of its own, or if every
    container has one: they get nothing of the request."""
    if item.where.startswith(f"{prefix}/container."):
        return
    every = [it.name for it in pod.containers]
    meant = [name for name in every if item.scope.only is None or name in item.scope.only]
    own = [name for name in meant if f"{prefix}/container.{name}" in pod.annotations]
    if not own or (item.scope.only is None and own != meant):
        return
    what = f"a list of their own replaces this request for {bounded(', '.join(own))}"
    if own != meant:
        hint = "take them out of containers"
    else:
        what += ", so that no container has its devices" + ", and no other pod" * (item.mode is not Mode.SHARED)
        hint = (
            f"write the request into {bounded(', '.join(f'{prefix}/container.{name}' for name in own))}, or remove it"
        )
    yield Remark(path=(), error=refused(item.where, what, hint))


def _uncounted(pod: PodManifest, item: DeviceRequest) -> Iterator[Remark]:
    """Yield a warning if the request has a number of devices for each GPU, but none of its containers asks for a
    GPU."""
    covered = [it for it in pod.containers if item.scope.covers(it.name)]
    if item.per_gpu is not None and not item.gpus and not any(map(_may_have_gpus, covered)):
        what = "none of the request's containers asks for a GPU, so that every node refuses it (NOT-ALIGNED)"
        hint = "give a container GPUs by its resources or a claim, name them in gpus, or write count instead"
        yield Remark(path=(), error=refused(f"{item.where}.perGPU", what, hint))


def _may_have_gpus(container: ContainerManifest) -> bool:
    return bool(container.claims) or any(is_gpu_resource(name) or "gpu" in name for name, _ in container.resources)


# In a container


def _variables(container: ContainerManifest, requests: Iterable[DeviceRequest]) -> tuple[str, ...]:
    """Return the beginnings of the names of the variables that nri-rdma may set in the container. Empty if the
    container requests no devices.

    Resources and claims in the manifest do not show how the devices are used, so a container with them may get all
    variables.
    """
    own = [it for it in requests if it.scope.covers(container.name)]
    has_others = bool(container.claims) or _asks_by_resource(container)
    if not own and not has_others:
        return ()
    is_for_storage = not has_others and all(it.use is Use.STORAGE for it in own)
    is_shared = not has_others and all(it.mode is Mode.SHARED for it in requests)
    hints = () if is_for_storage else (*HINT_VARIABLES, *GID_VARIABLES)
    return (DEVICES, *hints, *(() if is_shared else (NETDEVS, *SOCKET_VARIABLES)))


def _expansions(container: ContainerManifest, beginnings: tuple[str, ...]) -> Iterator[Remark]:
    """Yield a warning for each $(NAME) of a variable that nri-rdma sets. The kubelet expands it earlier, so the program
    would get the text "$(NAME)"."""
    if container.written.get("envFrom"):
        return  # the manifest does not show which variables envFrom brings
    for below, text in _texts(container.written):
        for name in dict.fromkeys(_EXPANDED.findall(text)):
            if name.startswith(beginnings) and name not in container.env:
                what = f"the kubelet expands $({name}) before nri-rdma sets the variable: the program gets it literally"
                hint = f"let a shell expand it, as in command [sh, -c] with args ['exec PROGRAM --device ${name}']"
                yield _of((*container.way, *below), what, hint)


def _texts(written: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    for key in ("command", "args"):
        values = written.get(key)
        for number, text in enumerate(values if isinstance(values, list) else ()):
            yield (key, number), str(text)
    for number, variable in enumerate(written.get("env") or ()):
        yield ("env", number, "value"), str((variable or {}).get("value") or "")


def _resources(container: ContainerManifest, prefix: str) -> Iterator[Remark]:
    """Yield a warning for each resource of our domain, because it gives the container nothing by itself. Called only
    for pods without a request in annotations."""
    domain = prefix.partition("/")[0]
    for name, count in container.resources:
        if name.startswith(f"{domain}/") and not name.endswith("/guard"):
            what = f"{bounded(name)} is counted by the scheduler, and alone gives the container nothing"
            hint = (
                f'ask for the NICs in the pod\'s annotations, too: {prefix}/pod: "{bounded(count)}"; leave it so if'
                " a pool of the nodes has this resource"
            )
            yield _of((*container.way, "resources"), what, hint)


def _beside(pod: PodManifest, container: ContainerManifest) -> Iterator[Remark]:
    """Yield warnings about a container that gets devices: it is privileged, or its /dev/shm is too small."""
    if container.privileged:
        what = (
            f"container {bounded(container.name)} is privileged: it sees every device of the host, whatever it is given"
        )
        hint = "remove privileged: nri-rdma gives it its device nodes and its memlock limit without that"
        yield _of((*container.way, "securityContext", "privileged"), what, hint)
    counts = [count for name, count in container.resources if is_gpu_resource(name)]
    gpus = sum(int(count) for count in counts if count.isdecimal() and len(count) <= _MOST_DIGITS)
    if gpus >= _SEGMENTS_GPUS and pod.kind not in _WITH_SHM and not _has_shm(pod, container.written):
        what = (
            f"/dev/shm of container {bounded(container.name)} has 64 MiB, which is too small for NCCL with {gpus} GPUs"
        )
        hint = "mount a volume {emptyDir: {medium: Memory}} at /dev/shm"
        yield _of(container.way, what, hint)


def _has_shm(pod: PodManifest, written: Mapping[str, Any]) -> bool:
    mounts = written.get("volumeMounts")
    paths = [it.get("mountPath") for it in mounts if isinstance(it, dict)] if isinstance(mounts, list) else []
    return "/dev/shm" in [str(it).rstrip("/") for it in paths] or pod.spec.get("hostIPC") is True


# Around the containers


def _volumes(pod: PodManifest) -> Iterator[Remark]:
    volumes = pod.spec.get("volumes")
    for number, volume in enumerate(volumes if isinstance(volumes, list) else ()):
        source = volume.get("hostPath") if isinstance(volume, dict) else None
        folder = str(source.get("path")) if isinstance(source, dict) else ""
        if folder.rstrip("/") in _FOLDERS or folder.startswith("/dev/infiniband/"):
            what = (
                f"the volume {bounded(str(volume.get('name')))} shows the host's {bounded(folder)} beside the request"
            )
            hint = "remove the volume and its mounts: nri-rdma gives the containers the nodes of their devices"
            yield _of(("spec", "volumes", number), what, hint)


def _host_network(pod: PodManifest, requests: Iterable[DeviceRequest]) -> Iterator[Remark]:
    """Yield a warning if the pod uses the host's network. For mode exclusive this is an error, which is reported
    elsewhere."""
    if pod.host_network and all(it.mode is not Mode.EXCLUSIVE for it in requests):
        what = (
            "the pod is on the host's network, so that its ports and addresses are the node's: RDMA rarely needs that"
        )
        hint = (
            "remove hostNetwork: true, unless programs of the pod use librdmacm and share a NIC; mode: exclusive serves"
            " these, too"
        )
        yield _of(("spec", "hostNetwork"), what, hint)


def sentence(warning: RequestError) -> str:
    """Return the warning as one sentence, for users who do not see the lines of the manifest."""
    where = f" ({warning.where})" if warning.where else ""
    is_name = warning.what.startswith("nri-rdma ")
    what = warning.what if is_name else f"{warning.what[:1].upper()}{warning.what[1:]}"
    return f"{what}{where}: {warning.hint}."

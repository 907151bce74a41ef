"""Parses the kubelet's PodResources answers about the devices of pods.

Law: any bytes become a PodAllocation, None or KubeletError in bounded time: a list of 250 pods takes 0.3 ms, the worst
16 MiB take 0.6 s (seen on a slow machine). An answer that does not say clearly which devices a pod got is refused. A
name that is not a CDI device name is dropped, because the runtime itself refuses a container with such a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any  # Any: generated messages

from google.protobuf.message import DecodeError

from nri_rdma.cdi.names import parse_qualified
from nri_rdma.errors import ErrorCode, KubeletError
from nri_rdma.model.allocation import ClaimDevice, ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.request import LABEL
from nri_rdma.pb import podresources_pb2 as pb
from nri_rdma.text.refusals import bounded

MAX_PODS = 8192
"""The largest number of pods in one answer; a longer answer is refused. Kubernetes is tested with 110 pods per node,
and large nodes have some hundreds."""
MAX_POD_BYTES = 1 << 20
"""The largest answer about one pod in bytes; a larger one is refused. A pod with 8 claims of 32 devices each, the most
that a claim may have, needs 150 KiB, because the kubelet repeats CDI devices (see _claims)."""
MAX_ENTRIES = 16384
"""The largest number of names in the answer about one pod: containers, device ids, claimed devices and CDI names are
counted together."""
MAX_CPUS = 8192
"""The largest number of CPUs of one container: as many as Linux can have (NR_CPUS)."""
MAX_TEXT = 1024
"""The longest name in characters. The kubelet sets no limit for device ids and CDI names; no known name is this
long."""


def get_request(namespace: str, name: str) -> bytes:
    """Return the encoded Get request for one pod."""
    request: bytes = pb.GetPodResourcesRequest(pod_name=name, pod_namespace=namespace).SerializeToString()
    return request


def list_request() -> bytes:
    """Return the encoded List request for all pods."""
    request: bytes = pb.ListPodResourcesRequest().SerializeToString()
    return request


def allocation_of(data: bytes, namespace: str, name: str) -> PodAllocation:
    """Return the devices allocated to one pod, from the answer `data` to a Get request for that pod. Raises
    KubeletError if the answer is invalid, too large or about another pod."""
    if len(data) > MAX_POD_BYTES:
        raise refused(f"it has {len(data)} bytes", namespace, name)
    message = _decoded(pb.GetPodResourcesResponse, data).pod_resources
    if (message.namespace, message.name) != (namespace, name):
        raise refused(f"it is about {bounded(f'{message.namespace}/{message.name}')}", namespace, name)
    return _pod(message, namespace, name)


def listed_allocation(data: bytes, namespace: str, name: str) -> PodAllocation | None:
    """Return the devices allocated to one pod, from the answer `data` to a List request; None if the pod is not in it.

    Raises KubeletError if the answer is invalid, or lists the pod twice with different devices: the pod was then
    deleted and created again, and nothing says which entry is the old one.
    """
    pods = _decoded(pb.ListPodResourcesResponse, data).pod_resources
    if len(pods) > MAX_PODS:
        raise refused(f"there are more than {MAX_PODS} pods in it", namespace, name)
    found = {_pod(pod, namespace, name) for pod in pods if pod.name == name and pod.namespace == namespace}
    if len(found) > 1:
        raise refused("there are several pods of that name in it", namespace, name)
    return next(iter(found), None)


def refused(what: str, namespace: str, name: str) -> KubeletError:
    """Return the error for an answer of the kubelet about a pod that cannot be used. `what` is the reason, as a text
    that follows "the kubelet's answer cannot be used:"."""
    return KubeletError(
        ErrorCode.KUBELET_ANSWER,
        f"the kubelet's answer cannot be used: {what}",
        where=f"pod {bounded(f'{namespace}/{name}')}",
        hint="the next attempt asks again; docs/operations.md has the reasons",
    )


def _decoded(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        what = "the kubelet's answer cannot be used: it is not a PodResources message"
        hint = "check that the socket is the kubelet's PodResources, not another of its sockets"
        raise KubeletError(ErrorCode.KUBELET_ANSWER, what, hint=hint, detail=str(error)) from error


def _pod(message: Any, namespace: str, name: str) -> PodAllocation:
    if sum(1 for _ in zip(_entries(message), range(MAX_ENTRIES + 1), strict=False)) > MAX_ENTRIES:
        raise refused(f"it names more than {MAX_ENTRIES} containers and devices", namespace, name)
    if any(len(text) > MAX_TEXT for text in _entries(message)):
        raise refused(f"a name in it has more than {MAX_TEXT} characters", namespace, name)
    containers = tuple(map(_container, message.containers))
    names = [container.name for container in containers]
    for container in names:
        if not LABEL.fullmatch(container):
            raise refused(f"'{bounded(container)}' is no container's name", namespace, name)
        if names.count(container) > 1:
            raise refused(f"the container {container} is in it twice", namespace, name)
    for item in containers:
        if len(item.cpus) > MAX_CPUS:
            raise refused(f"the container {item.name} has more than {MAX_CPUS} CPUs", namespace, name)
    return PodAllocation(containers=containers)


def _entries(message: Any) -> Iterator[str]:
    """Yield every name in the answer about a pod."""
    for container in message.containers:
        yield container.name
        for devices in container.devices:
            yield devices.resource_name
            yield from devices.device_ids
        for claim in container.dynamic_resources:
            yield claim.claim_namespace
            yield claim.claim_name
            for device in claim.claim_resources:
                yield from (device.driver_name, device.pool_name, device.device_name)
                yield from (cdi.name for cdi in device.cdi_devices)


def _container(message: Any) -> ContainerAllocation:
    return ContainerAllocation(
        name=message.name,
        resources=tuple(_resources(message.devices)),
        claims=tuple(_claims(message.dynamic_resources)),
        cpus=tuple(sorted(set(message.cpu_ids))),
    )


def _resources(messages: Iterable[Any]) -> Iterator[DeviceIds]:
    """Return one entry for each extended resource, with all device ids of that resource. The kubelet sends one entry
    for each id, in no order."""
    ids: dict[str, set[str]] = {}
    for message in messages:
        ids.setdefault(message.resource_name, set()).update(message.device_ids)
    return (DeviceIds(resource=resource, ids=tuple(sorted(ids[resource]))) for resource in sorted(ids) if ids[resource])


def _claims(messages: Iterable[Any]) -> Iterator[ClaimDevice]:
    """Yield the devices of a container's resource claims, each with its own CDI devices only.

    The kubelet repeats, for each device, the CDI devices of earlier devices of its driver (seen with 1.34.4 and
    1.37.2).
    """
    for claim in messages:
        told: dict[str, set[str]] = {}
        for device in claim.claim_resources:
            before = told.setdefault(device.driver_name, set())
            names = tuple(cdi.name for cdi in device.cdi_devices if cdi.name not in before)
            before.update(names)
            yield ClaimDevice(
                namespace=claim.claim_namespace,
                claim=claim.claim_name,
                driver=device.driver_name,
                pool=device.pool_name,
                device=device.device_name,
                cdi_devices=tuple(name for name in names if parse_qualified(name) is not None),
            )

"""Converts recorded spans to the attribute names of OpenTelemetry's semantic conventions, which exporters and
dashboards expect.

The conversion is done when a span is exported, because the code that serves pods must be fast and records plain texts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from nri_rdma.observe.spans import AttributeValue, Span

Exported: TypeAlias = AttributeValue | Sequence[str]

EVENTS: Final = frozenset(
    {"RunPodSandbox", "CreateContainer", "StartContainer", "StopPodSandbox", "RemovePodSandbox", "Synchronize"}
)
"""Names of the spans for the runtime's calls. They have kind SERVER and the attributes of an RPC."""
KUBELET_CALLS: Final[Mapping[str, str]] = {
    "NodePrepareResources": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "NodeUnprepareResources": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "Allocate": "v1beta1.DevicePlugin",
}
"""Names of the spans for the kubelet's calls, with their gRPC service. They have kind SERVER."""
_RPC: Final[Mapping[str, str]] = {"rpc.system.name": "ttrpc", "rpc.service": "nri.pkg.api.v1alpha1.Plugin"}
_LISTS = frozenset(
    {"rdma.devices", "rdma.shares", "rdma.cdi_devices", "rdma.cdi_source", "rdma.gpus", "rdma.kubelet.containers"}
)
_CODE = re.compile(r"nri-rdma: ([A-Z][A-Z0-9-]+):")
_OTHER = "_OTHER"  # defined by the conventions, for an error without a code


def attributes_of(span: Span) -> dict[str, Exported]:
    """Return a span's attributes by their conventional names.

    The pod's name and namespace become two attributes, and lists become arrays. A key without a dot gets the prefix
    `rdma.`, and the code of an error goes into `error.type`.
    """
    found: dict[str, Exported] = {}
    for key, value in span.attributes.items():
        if key == "k8s.pod.name":
            found |= pod_names(str(value))
        elif key in _LISTS:
            found[key] = tuple(it.strip() for it in str(value).split(",") if it.strip())
        else:
            found[key if "." in key else f"rdma.{key}"] = value
    if span.name in EVENTS:
        found |= {**_RPC, "rpc.method": span.name}
    if span.name in KUBELET_CALLS:
        service = KUBELET_CALLS[span.name]
        found |= {"rpc.system.name": "grpc", "rpc.service": service, "rpc.method": span.name}
    if span.error:
        code = _CODE.search(span.error)
        found["error.type"] = code[1] if code else _OTHER
    return found


def pod_names(pod: str) -> dict[str, str]:
    """Return the attributes for a pod, from NAMESPACE/NAME or its name alone."""
    namespace, slash, name = pod.partition("/")
    return {"k8s.namespace.name": namespace, "k8s.pod.name": name} if slash else {"k8s.pod.name": namespace}


def is_server(span: Span) -> bool:
    """Return whether the span is a call of the runtime or the kubelet."""
    return span.name in EVENTS or span.name in KUBELET_CALLS

"""CDI specs as DRA drivers write them, and what the product makes of their text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any  # Any: JSON

from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.registry import Registry, ResolvedDevice, SpecFile, resolve

KEY = "rdma.noderesource.dev"
FILE = "/var/run/cdi/net.example-vf_claim.json"
RDMA_CM = "/dev/infiniband/rdma_cm"


def uverbs_path(number: int) -> str:
    """The node that the made-up NIC of that number has."""
    return f"/dev/infiniband/uverbs{number}"


def edits(
    *paths: str, netdevs: Mapping[str, str] | None = None, nodes: Sequence[Mapping[str, object]] = ()
) -> dict[str, Any]:
    """containerEdits with device nodes at these paths, and netdevs by name on the host with their names in the pod."""
    made: dict[str, Any] = {"env": ["CLAIM=1"], "deviceNodes": [*({"path": path} for path in paths), *nodes]}
    made["netDevices"] = [{"hostInterfaceName": host, "name": name} for host, name in (netdevs or {}).items()]
    return {key: value for key, value in made.items() if value}


def spec_text(
    devices: Mapping[str, Mapping[str, Any]],
    annotations: Mapping[str, Mapping[str, str]] | None = None,
    *,
    kind: str = "net.example/vf",
    common: Mapping[str, Any] | None = None,
    common_annotations: Mapping[str, str] | None = None,
) -> str:
    """A spec: containerEdits and annotations by device, and those of the whole spec."""
    spec: dict[str, Any] = {"cdiVersion": "1.1.0", "kind": kind, "devices": []}
    for name, device_edits in devices.items():
        device: dict[str, Any] = {"name": name, "containerEdits": device_edits}
        if annotations and name in annotations:
            device["annotations"] = annotations[name]
        spec["devices"].append(device)
    if common is not None:
        spec["containerEdits"] = common
    if common_annotations is not None:
        spec["annotations"] = common_annotations
    return json.dumps(spec)


def one(*paths: str, key: str | None = None, netdevs: Mapping[str, str] | None = None, name: str = "vf0") -> str:
    """A spec with one device, and our key on it."""
    return spec_text({name: edits(*paths, netdevs=netdevs)}, {name: {KEY: key}} if key is not None else None)


def registry(*texts: str) -> Registry:
    """The devices of files with these texts, as if each were in a directory of its own, in rising priority."""
    files = [SpecFile(file=FILE, priority=at, spec=parse(text.encode(), FILE)) for at, text in enumerate(texts)]
    return resolve(files)


def device_in(text: str) -> ResolvedDevice:
    """The one device of a spec."""
    (device,) = registry(text).devices.values()
    return device

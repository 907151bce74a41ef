"""The node's ResourceSlices: built from its devices, and compared with the slices at the API server. Pure.

All slices of a node form one pool with the node's name. If one slice changes, all slices get a new generation number,
because the scheduler ignores a pool whose newest generation is incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any  # Any: JSON

from nri_rdma.decide.advertised import DRIVER, MAX_DEVICES, Advertised

API_VERSION = "resource.k8s.io/v1"
PATH = f"/apis/{API_VERSION}/resourceslices"


def selector(node: str, driver: str = DRIVER) -> dict[str, str]:
    """Return the query parameters for the slices that a driver publishes for this node. With driver "" they select the
    slices of all drivers."""
    return {"fieldSelector": f"spec.nodeName={node}" + (f",spec.driver={driver}" if driver else "")}


def rivals(found: Sequence[Mapping[str, Any]], devices: Sequence[Advertised]) -> dict[str, list[str]]:
    """Return the other drivers that publish devices which we publish, too, each with our names of those devices.

    Two devices count as one if they have the same name, or the same PCI address, or, without a PCI address, the same
    RDMA device.
    """
    names = {mark: it.name for it in devices for mark in (it.name, *_marks(it.attributes))}
    told: dict[str, set[str]] = {}
    for spec in (it["spec"] for it in found if it["spec"]["driver"] != DRIVER):
        for device in spec.get("devices") or ():
            values = (value.get("string") for value in (device.get("attributes") or {}).values())
            if same := {names[it] for it in (device["name"], *values) if it in names}:
                told.setdefault(spec["driver"], set()).update(same)
    return {driver: sorted(same) for driver, same in sorted(told.items())}


def _marks(attributes: Mapping[str, Any]) -> Iterator[str]:
    for name in ("pciAddress", "rdmaDevice"):
        if value := attributes.get(f"{DRIVER}/{name}"):
            yield value["string"]
            return


def specs_of(node: str, devices: Sequence[Advertised], generation: int) -> list[dict[str, Any]]:
    """Return the `spec` of each slice. A node without devices has one empty slice."""
    parts = [devices[at : at + MAX_DEVICES] for at in range(0, len(devices), MAX_DEVICES)] or [()]
    pool = {"name": node, "generation": generation, "resourceSliceCount": len(parts)}
    return [
        {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": [_device(it) for it in part]} for part in parts
    ]


def is_published(found: Sequence[Mapping[str, Any]], node: str, devices: Sequence[Advertised]) -> bool:
    """Return whether the slices at the API server (`found`) describe exactly these devices."""
    generations = {it["spec"]["pool"]["generation"] for it in found}
    if len(generations) != 1:
        return False
    wanted = specs_of(node, devices, generations.pop())
    return _comparable([it["spec"] for it in found]) == _comparable(wanted)


def next_generation(found: Sequence[Mapping[str, Any]]) -> int:
    """Return the generation after the newest one of these slices; 1 without slices."""
    return max((it["spec"]["pool"]["generation"] for it in found), default=0) + 1


def new_slice(spec: Mapping[str, Any], node: str, uid: str, number: int) -> dict[str, Any]:
    """Return a new slice that is owned by the Node, so that the API server deletes it together with the node."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid, "controller": True}
    return {
        "apiVersion": API_VERSION,
        "kind": "ResourceSlice",
        "metadata": {"generateName": f"{node}-{DRIVER}-{number}-", "ownerReferences": [owner]},
        "spec": spec,
    }


def _device(it: Advertised) -> dict[str, Any]:
    device: dict[str, Any] = {"name": it.name, "attributes": dict(it.attributes)}
    if it.capacity:
        device["capacity"] = {name: {"value": value} for name, value in it.capacity.items()}
    return device


def _comparable(specs: Sequence[Mapping[str, Any]]) -> list[Any]:
    return sorted(((it["pool"], it.get("devices") or []) for it in specs), key=repr)

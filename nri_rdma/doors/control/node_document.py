"""JSON documents that describe a node and its policy.

The commands `status`, `inventory` and `snapshot` write them; other commands read them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any  # Any: JSON documents and generated messages

import msgspec

from nri_rdma.decide.policy import Policy
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.device import Node
from nri_rdma.model.pci import parse_pci_address

SERVICE = "nri_rdma.control.v1.Control"
DOCUMENT_VERSION = 1


def json_of(text: str | bytes) -> object:
    """Parse a JSON text. Raises ValueError with a readable reason if the text is not JSON."""
    try:
        value: object = json.loads(text)
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise
    except ValueError as error:
        raise ValueError("a number in it has too many digits") from error
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    return value


def policy_document(policy: Policy) -> dict[str, Any]:
    """Return a policy as JSON, from which `policy_from` can rebuild it."""
    document: dict[str, Any] = msgspec.to_builtins({"pools": dict(policy.pools), "rules": policy.rules})
    handlers = list(policy.sandboxed_handlers)
    kinds = sorted(policy.char_kinds)
    return {**document, "char_kinds": kinds, "sandboxed_handlers": handlers, "closed": policy.closed}


def adoption_document(adoption: Adoption) -> dict[str, Any]:
    """Return as JSON the settings for devices that other drivers give to containers."""
    vendors = {vendor: msgspec.to_builtins(item) for vendor, item in adoption.vendors.items()}
    return {"others": msgspec.to_builtins(adoption.others), "vendors": vendors}


def policy_from(document: Mapping[str, Any]) -> Policy:
    """Return the policy under the key `policy` of a document. Raises NotReadyError if the document has no valid
    policy."""
    try:
        policy: Policy = msgspec.convert(document["policy"], Policy)
    except (KeyError, msgspec.ValidationError) as error:
        raise NotReadyError(
            ErrorCode.DAEMON_ABSENT,
            f"the document has no policy: {error}",
            hint="restart the daemon after an upgrade",
        ) from error
    return policy


def node_document(node: Node) -> dict[str, Any]:
    """Return a node as JSON for `status`, `inventory` and `explain`, from which `node_from` can rebuild it.

    The fields `link_layer`, `speed_gbps` and `state` of a device are added for people; `node_from` ignores them.
    """
    document: dict[str, Any] = msgspec.to_builtins(node)
    for told, gpu in zip(document["gpus"], node.gpus, strict=True):
        told["pci"] = str(gpu.pci)
    for told, device in zip(document["devices"], node.devices, strict=True):
        told["pci"] = str(device.pci) if device.pci is not None else None
        if device.virtual is not None:
            told["virtual"]["pf"] = str(device.virtual.pf)
        told["link_layer"] = device.link_layer
        told["speed_gbps"] = device.speed_gbps
        told["state"] = device.port_state or None
    return document


def node_from(document: Mapping[str, Any]) -> Node:
    """Return the node from a document that contains the keys of `node_document`. Raises NotReadyError if these keys are
    missing or have invalid values."""
    try:
        node: Node = msgspec.convert(
            {
                **document,
                "devices": [_device_fields(device) for device in _mappings(document, "devices")],
                "gpus": [{**gpu, "pci": _pci_fields(gpu["pci"])} for gpu in _mappings(document, "gpus")],
            },
            Node,
        )
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise NotReadyError(
            ErrorCode.DAEMON_ABSENT,
            f"the document describes no node: {error}",
            hint="restart the daemon after an upgrade",
        ) from error
    return node


def _mappings(document: Mapping[str, Any], key: str) -> Sequence[dict[str, Any]]:
    items = document[key]
    if not isinstance(items, list | tuple) or not all(isinstance(item, dict) for item in items):
        raise TypeError(f"{key} is no list of mappings")
    return items


def _device_fields(device: Mapping[str, Any]) -> dict[str, Any]:
    virtual = device.get("virtual")  # older documents lack this field
    if virtual is not None:
        virtual = {**virtual, "pf": _pci_fields(virtual["pf"])}
    return {**device, "pci": _pci_fields(device["pci"]), "virtual": virtual}


def _pci_fields(text: str | None) -> dict[str, int] | None:
    address = parse_pci_address(text) if text else None
    return asdict(address) if address is not None else None

"""Prints what the kubelet's PodResources says of a pod, as JSON: `python -m tests.cluster.podresources NAMESPACE NAME`.

Protobuf is read by hand: none of it comes from the product.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import grpc

from tests.rig.kubelet import fields, text

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")


def main() -> None:
    """Ask, and print the containers."""
    namespace, name = sys.argv[1:]
    with grpc.insecure_channel(f"unix:{SOCKET}", options=[("grpc.default_authority", "localhost")]) as channel:
        answer = channel.unary_unary("/v1.PodResourcesLister/Get")(text(1, name) + text(2, namespace), timeout=10)
    (pod,) = _by_number(answer)[1]
    print(json.dumps([_container(it) for it in _by_number(pod)[3]]))


def _container(data: bytes) -> dict[str, Any]:
    found = _by_number(data)
    return {
        "name": _text(found[1]),
        "devices": [_plugins(it) for it in found[2]],
        "claims": [_claim(it) for it in found[5]],
    }


def _plugins(data: bytes) -> dict[str, Any]:
    found = _by_number(data)
    return {"resource": _text(found[1]), "ids": [it.decode() for it in found[2]], "has_topology": bool(found[3])}


def _claim(data: bytes) -> dict[str, Any]:
    found = _by_number(data)
    return {"name": _text(found[2]), "devices": [_device(it) for it in found[4]]}


def _device(data: bytes) -> dict[str, Any]:
    found = _by_number(data)
    return {
        "cdi": [_text(_by_number(it)[1]) for it in found[1]],
        "driver": _text(found[2]),
        "pool": _text(found[3]),
        "device": _text(found[4]),
        "share": _text(found[5]),
    }


def _by_number(data: bytes) -> dict[int, list[bytes]]:
    by: dict[int, list[bytes]] = defaultdict(list)
    for number, value in fields(data):
        by[number].append(value)
    return by


def _text(values: list[bytes]) -> str:
    return values[0].decode() if values else ""


if __name__ == "__main__":
    main()

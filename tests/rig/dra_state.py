"""The kubelet's checkpoint of claims (`dra_manager_state`), as Kubernetes 1.34 to 1.37 write it.

It is written field by field, so that it does not come from what the product reads it with. A file that a real kubelet
wrote is in tests/unit/text/data.
"""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ClaimState:
    """A claim that the kubelet knows: the pods that it has made for it, and the CDI devices that drivers answered."""

    uid: str
    name: str
    namespace: str = "default"
    pods: tuple[str, ...] = ()
    cdi_devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By driver; () before it has answered."""


def checkpoint(claims: Iterable[ClaimState]) -> bytes:
    """Return the content of the file."""
    data = {
        "kind": "DRACheckpoint",
        "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
        "ClaimInfoStateList": [_claim(it) for it in claims] or None,
    }
    text = json.dumps(data, separators=(",", ":"))
    return json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}, separators=(",", ":")).encode()


def write(path: Path, claims: Iterable[ClaimState]) -> None:
    """Replace the file as a whole, as the kubelet does."""
    beside = path.with_name(f".{path.name}")
    beside.write_bytes(checkpoint(claims))
    beside.rename(path)


def _claim(claim: ClaimState) -> dict[str, object]:
    return {
        "ClaimUID": claim.uid,
        "ClaimName": claim.name,
        "Namespace": claim.namespace,
        "PodUIDs": {uid: {} for uid in sorted(claim.pods)},
        "DriverState": {driver: {"Devices": _devices(names)} for driver, names in claim.cdi_devices.items()},
    }


def _devices(names: tuple[str, ...]) -> list[dict[str, object]] | None:
    return [
        {"PoolName": "n1", "DeviceName": f"d{number}", "ShareID": None, "RequestNames": ["nic"], "CDIDeviceIDs": [name]}
        for number, name in enumerate(names)
    ] or None

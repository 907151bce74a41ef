"""Replaces the entries of `status.devices` in a ResourceClaim's protobuf bytes. Pure.

Law: everything else in the claim keeps its bytes. Kubernetes compares the parameters in a claim's allocation byte by
byte, and a round trip through JSON changes them: it drops white space and escapes `<`, `>` and `&`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any  # Any: JSON, and generated messages

from google.protobuf.message import DecodeError

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.doors.dra.statuses import StatusEntry
from nri_rdma.errors import ApiServerError
from nri_rdma.pb import claimstatus_pb2 as pb

_MAGIC = b"k8s\x00"
"""The prefix of every Kubernetes object in protobuf."""


def version_of(data: bytes) -> str:
    """Return the resourceVersion of a claim in protobuf. Raises ApiServerError if the bytes are not a claim."""
    version: str = _read(data)[1].metadata.resourceVersion
    return version


def with_devices(data: bytes, devices: Sequence[StatusEntry]) -> bytes:
    """Return the claim in protobuf with our entries of `status.devices` replaced by `devices`. Entries of other drivers
    stay unchanged.

    Raises ApiServerError if `data` is not a claim.
    """
    outer, claim = _read(data)
    others = [it for it in claim.status.devices if it.driver != DRIVER]
    del claim.status.devices[:]
    claim.status.devices.extend([*others, *(_entry(it) for it in devices if it["driver"] == DRIVER)])
    outer.raw = claim.SerializeToString()
    told: bytes = outer.SerializeToString()
    return _MAGIC + told


def _read(data: bytes) -> tuple[pb.Unknown, pb.ResourceClaim]:
    try:
        if not data.startswith(_MAGIC):
            raise DecodeError(f"it begins with {data[:4]!r}")
        outer = pb.Unknown.FromString(data[len(_MAGIC) :])
        return outer, pb.ResourceClaim.FromString(outer.raw)
    except DecodeError as error:
        what, hint = "the API server's answer is no claim in protobuf", "nothing to do: it is tried again"
        raise ApiServerError(what, where="a claim's status", hint=hint, detail=str(error)) from error


def _entry(told: StatusEntry) -> pb.AllocatedDeviceStatus:
    entry = pb.AllocatedDeviceStatus(
        driver=told["driver"],
        pool=told["pool"],
        device=told["device"],
        conditions=[_condition(it) for it in told["conditions"]],
    )
    if told.get("shareID"):
        entry.shareID = told["shareID"]
    if "data" in told:
        entry.data.raw = json.dumps(told["data"], separators=(",", ":")).encode()
    if "networkData" in told:
        entry.networkData.CopyFrom(pb.NetworkDeviceData(**told["networkData"]))
    return entry


def _condition(told: Any) -> pb.Condition:
    since = datetime.fromisoformat(told["lastTransitionTime"])
    return pb.Condition(
        type=told["type"],
        status=told["status"],
        observedGeneration=told.get("observedGeneration", 0),
        lastTransitionTime=pb.Time(seconds=int(since.timestamp())),
        reason=told["reason"],
        message=told["message"],
    )

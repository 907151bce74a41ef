"""Reads from the daemon's status document which pods hold which devices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any  # Any: the daemon's JSON document

from nri_rdma.decide.placement import Holding, Taken
from nri_rdma.model.device import DeviceId
from nri_rdma.model.pci import PciAddress, parse_pci_address
from nri_rdma.model.request import Mode


def taken_from(document: Mapping[str, Any]) -> Taken:
    """Return the holders of each held device. The document must have been checked by `look_through`."""
    return MappingProxyType(
        {
            DeviceId(device["id"]): frozenset(map(_holding, device["holders"]))
            for device in document["devices"]
            if device["holders"]
        }
    )


def holder_document(holding: Holding) -> dict[str, Any]:
    """Return a holder of a device as JSON, in the form that it has in the status document."""
    told = {"pod": holding.owner, "mode": str(holding.mode), "gpus": sorted(map(str, holding.gpus))}
    return (
        told
        | ({"shares": sorted(holding.shares)} if holding.shares else {})
        | ({"sole": True} if holding.is_sole else {})
        | ({"looksOn": True} if holding.looks_on else {})
    )


def _holding(holder: Mapping[str, Any]) -> Holding:
    shares = frozenset(map(str, holder.get("shares", ())))
    return Holding(
        owner=holder["pod"],
        mode=Mode(holder["mode"]),
        gpus=_gpus(holder),
        shares=shares,
        is_sole=bool(holder.get("sole")),
        looks_on=bool(holder.get("looksOn")),
    )


def _gpus(holder: Mapping[str, Any]) -> frozenset[PciAddress]:
    """Return the GPUs of the holder's pod. The result is empty if an older daemon did not report them."""
    addresses = map(parse_pci_address, holder.get("gpus", ()))
    return frozenset(address for address in addresses if address is not None)

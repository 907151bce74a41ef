"""A ResourceClaim as this driver needs it: the devices that the scheduler allocated to it, and their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: JSON

from nri_rdma.model.request import Mode

Parameters: TypeAlias = Mapping[str, Any]
"""The JSON object in the `opaque.parameters` of a claim or of a device class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimName:
    """The name of a claim, as the kubelet writes it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenProof:
    """The result of the test whether RDMA works in a claim's containers. `code` is "" if RDMA works, otherwise an error
    code; `words` is a sentence for people."""

    code: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDevice:
    """A device that a claim's pod has got. `interface`, `mac` and `addresses` describe its first netdev in the pod;
    they are empty if the netdev stays on the host."""

    device: str
    """The name of the device in the ResourceSlice."""
    rdma_device: str
    nodes: tuple[str, ...]
    mode: Mode
    interface: str = ""
    mac: str = ""
    addresses: tuple[str, ...] = ()
    proof: GivenProof | None = None
    """The result of the RDMA test; None if no test was requested, or if none has ended yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """One request of a claim, with its allocated `devices`, by their names in the ResourceSlice.

    `parameters` are those of the device class merged with those of the claim. `from_claim` are the parameters of the
    claim alone; they need the rights that an annotation with them would need.
    """

    name: str
    devices: tuple[str, ...]
    pool: str
    """The pool in the sense of the ResourceSlice, which is the node's name."""
    parameters: Parameters
    from_claim: Parameters
    is_admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim with allocated devices. `label` is the prefix of its requests' names in the environment variables of
    containers."""

    namespace: str
    name: str
    uid: str
    label: str
    requests: tuple[ClaimRequest, ...]

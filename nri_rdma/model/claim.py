"""A ResourceClaim as far as our driver is concerned: what the scheduler allocated of our devices, and what was said of
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: JSON

from nri_rdma.model.request import Mode

Parameters: TypeAlias = Mapping[str, Any]
"""The object of a claim's `opaque.parameters`, as JSON has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimName:
    """The name of a claim, as the kubelet gives it."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenProof:
    """The outcome of the proof that RDMA works in a claim's containers: the code of the refusal, "" where it works, and
    the rest in words."""

    code: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenDevice:
    """A device that a claim's pod has. `interface`, `mac` and `addresses` are those of its first netdev in the pod;
    they are empty where the netdev stays on the host."""

    device: str
    """The name of the device in the ResourceSlice."""
    rdma_device: str
    nodes: tuple[str, ...]
    mode: Mode
    interface: str = ""
    mac: str = ""
    addresses: tuple[str, ...] = ()
    proof: GivenProof | None = None
    """None: nothing was to be proven, or was yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """One request of a claim, with the devices that it was allocated: their names in the ResourceSlice.

    `parameters` are those of the device class and of the claim, merged; `from_claim` are the claim's alone, which need
    the same rights as a pod's annotation.
    """

    name: str
    devices: tuple[str, ...]
    pool: str
    """The pool of the ResourceSlice: the node's name."""
    parameters: Parameters
    from_claim: Parameters
    is_admin: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim that is allocated. `label` begins the names of its requests in the environment of containers."""

    namespace: str
    name: str
    uid: str
    label: str
    requests: tuple[ClaimRequest, ...]

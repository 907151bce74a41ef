"""A ResourceClaim as far as our driver is concerned: what the scheduler allocated of our devices, and what was said of
them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: JSON

Parameters: TypeAlias = Mapping[str, Any]
"""The object of a claim's `opaque.parameters`, as JSON has it."""


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
    """A claim that is allocated. `label` begins the names of its requests in the environment of containers; `pods` are
    the uids of those that it is reserved for."""

    namespace: str
    name: str
    uid: str
    label: str
    requests: tuple[ClaimRequest, ...]
    pods: tuple[str, ...] = ()

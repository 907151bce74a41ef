"""The entries of a claim's `status.devices`: made from the state of its devices, within the limits of the API. Pure.

Entries of other drivers stay as they are, and so do conditions of other types in ours. An entry has as its key driver,
pool, device and share id, which the API server compares with what is allocated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Interface, ip_interface
from typing import Any, TypeAlias  # Any: JSON

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.doors.dra.specs import cdi_device
from nri_rdma.engine.claim_states import CdiState
from nri_rdma.model.claim import GivenDevice

READY, PROVEN = "Ready", "Proven"
"""The types of our conditions; the second is about devices of which something was to be proven."""
ATTACHED, RETURNED, RETURNING = "Attached", "Returned", "Returning"
ATTACH_FAILED, PREPARE_FAILED = "AttachFailed", "PrepareFailed"

MAX_CONDITIONS = 8
MAX_ADDRESSES = 16
MAX_INTERFACE_NAME, MAX_HARDWARE_ADDRESS = 256, 128
MAX_MESSAGE = 32768
MAX_DATA = 10 * 1024
"""The limits of resource.k8s.io/v1 (types.go, AllocatedDeviceStatus), those of texts in bytes."""

StatusEntry: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The state of a device: the reason and the message of its condition, and what a pod has of it; None: nothing.

    `is_guess`: nobody saw what it is about, so that it replaces an entry that is Ready and makes no new one.
    """

    reason: str
    message: str
    given: GivenDevice | None = None
    is_guess: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimState:
    """All that is known of a claim's devices, by CDI device: the present `states`, and those that a pod has had
    (`was_given`); why the last attach of each failed, and why the claim was not prepared."""

    states: Mapping[str, CdiState]
    was_given: frozenset[str]
    failures: Mapping[str, str]
    refusal: str

    def outcome(self, cdi_device: str, device: str) -> Outcome | None:
        """Return the outcome for one of a CDI device's devices, by its name in slices; None: there is none for it."""
        state = self.states.get(cdi_device, CdiState())
        is_guess = cdi_device not in self.was_given
        if state.given:
            return next((_attached(it) for it in state.given if it.device == device), None)
        if cdi_device in self.failures:
            return Outcome(reason=ATTACH_FAILED, message=self.failures[cdi_device])
        if self.refusal:
            return Outcome(reason=PREPARE_FAILED, message=self.refusal)
        if state.is_returning:
            message = f"the device is being returned to the host. {state.undo_error}".strip()
            return Outcome(reason=RETURNING, message=message, is_guess=is_guess)
        return Outcome(reason=RETURNED, message="the device is on the host, and no pod has it", is_guess=is_guess)


def changed_devices(claim: Mapping[str, Any], state: ClaimState, now: str) -> list[StatusEntry] | None:
    """Return the claim's `status.devices` as they shall be; None when they are so. `now` is the time of a condition
    that changes, as the API writes it."""
    status = claim.get("status") or {}
    present: list[StatusEntry] = list(status.get("devices") or ())
    changed = {_key(it): it for it in present}
    for result in ((status.get("allocation") or {}).get("devices") or {}).get("results") or ():
        if result["driver"] != DRIVER:
            continue
        key = _key(result)
        old = changed.get(key)
        outcome = state.outcome(cdi_device(claim["metadata"]["uid"], result["request"]), result["device"])
        if outcome is not None and (not outcome.is_guess or _is_ready(old)):
            changed[key] = _entry(result, outcome, old or {}, claim["metadata"].get("generation", 0), now)
    wanted = list(changed.values())
    return None if wanted == present else wanted


def _attached(it: GivenDevice) -> Outcome:
    netdev = f", with netdev {it.interface}" if it.interface else ""
    return Outcome(reason=ATTACHED, message=f"{it.rdma_device} is attached in mode {it.mode}{netdev}", given=it)


def _key(it: StatusEntry) -> tuple[str, str, str, str]:
    return it["driver"], it["pool"], it["device"], it.get("shareID") or ""


def _is_ready(entry: StatusEntry | None) -> bool:
    return any(it["type"] == READY and it["status"] == "True" for it in (entry or {}).get("conditions") or ())


def _entry(result: Mapping[str, Any], outcome: Outcome, old: StatusEntry, generation: int, now: str) -> StatusEntry:
    given = outcome.given
    others = [it for it in old.get("conditions") or () if it["type"] not in {READY, PROVEN}]
    told = [(READY, given is not None, outcome.reason, outcome.message)]
    if given is not None and given.proof is not None:
        told += [(PROVEN, not given.proof.code, _reason(given.proof.code) or PROVEN, given.proof.words)]
    own = [_condition(*it, old, generation, now) for it in told]
    return {
        "driver": result["driver"],
        "pool": result["pool"],
        "device": result["device"],
        **({"shareID": result["shareID"]} if result.get("shareID") else {}),
        "conditions": [*own, *others[: MAX_CONDITIONS - len(own)]],
        **({"data": _data(given)} if given is not None else {}),
        **({"networkData": _network(given)} if given is not None and given.interface else {}),
    }


def _condition(
    kind: str, is_true: bool, reason: str, message: str, old: StatusEntry, generation: int, now: str
) -> StatusEntry:
    status = "True" if is_true else "False"
    before: StatusEntry = next((it for it in old.get("conditions") or () if it["type"] == kind), {})
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": _cut(message, MAX_MESSAGE),
        "lastTransitionTime": before["lastTransitionTime"] if before.get("status") == status else now,
        **({"observedGeneration": generation} if generation else {}),
    }


def _reason(code: str) -> str:
    """Return an error's code as a condition's reason, which has no hyphens."""
    return code.title().replace("-", "")


def _data(given: GivenDevice) -> Mapping[str, Any]:
    """Return our own object, without the last nodes where it would be too large."""
    nodes = list(given.nodes)
    while True:
        told = {"rdmaDevice": _cut(given.rdma_device, 256), "mode": str(given.mode), "nodes": nodes}
        if len(json.dumps(told)) <= MAX_DATA:
            return told
        nodes = nodes[: len(nodes) // 2]


def _network(given: GivenDevice) -> Mapping[str, Any]:
    addresses = list(dict.fromkeys(_canonical(given.addresses)))[:MAX_ADDRESSES]
    return {
        "interfaceName": _cut(given.interface, MAX_INTERFACE_NAME),
        **({"ips": addresses} if addresses else {}),
        **({"hardwareAddress": _cut(given.mac, MAX_HARDWARE_ADDRESS)} if given.mac else {}),
    }


def _canonical(addresses: tuple[str, ...]) -> Iterator[str]:
    """Yield the addresses that the API takes: none that is IPv4 within IPv6."""
    for it in map(ip_interface, addresses):
        if not isinstance(it, IPv6Interface) or it.ip.ipv4_mapped is None:
            yield str(it)


def _cut(text: str, most: int) -> str:
    """Return a text of at most so many bytes."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")

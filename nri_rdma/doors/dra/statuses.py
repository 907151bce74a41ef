"""The entries of a claim's `status.devices`, built from the state of its devices within the limits of the API. Pure.

Entries of other drivers stay unchanged, and so do conditions of other types in our entries. An entry is identified by
driver, pool, device and share id. The API server accepts only entries of devices that are allocated to the claim.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv6Interface, ip_interface
from typing import Any, TypeAlias  # Any: JSON

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.doors.dra.claim_specs import cdi_device
from nri_rdma.engine.claim_states import CdiState
from nri_rdma.model.claim import GivenDevice

READY, PROVEN = "Ready", "Proven"
"""The types of our conditions. PROVEN is only for devices that have `prove` in their request: RDMA must be shown to
work in the container."""
ATTACHED, RETURNED, RETURNING = "Attached", "Returned", "Returning"
ATTACH_FAILED, PREPARE_FAILED = "AttachFailed", "PrepareFailed"

MAX_CONDITIONS = 8
MAX_ADDRESSES = 16
MAX_INTERFACE_NAME, MAX_HARDWARE_ADDRESS = 256, 128
MAX_MESSAGE = 32768
MAX_DATA = 10 * 1024
"""The limits that resource.k8s.io/v1 sets (types.go, AllocatedDeviceStatus). Limits of texts are in bytes."""

StatusEntry: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The state of a device: the reason and the message of its condition, and the attached device with its names in the
    pod (`given`; None: no pod has the device).

    `is_guess`: no pod has had the device since this daemon's start, so an earlier daemon may know more. Such a state is
    written only if the present entry says Ready, which is certainly wrong.
    """

    reason: str
    message: str
    given: GivenDevice | None = None
    is_guess: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimState:
    """Everything that is known about a claim's devices. The mappings have the names of CDI devices as keys.

    `states` are the present states. `was_given` are the CDI devices whose devices a pod has had. `failures` has the
    reason why the last attach failed. `refusal` is the reason why the claim was not prepared; "" if it was.
    """

    states: Mapping[str, CdiState]
    was_given: frozenset[str]
    failures: Mapping[str, str]
    refusal: str

    def outcome(self, cdi_device: str, device: str) -> Outcome | None:
        """Return the state of a device; None if nothing is to be reported. `device` is its name in ResourceSlices, and
        `cdi_device` is the CDI device to which it belongs."""
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
    """Return the claim's new `status.devices`; None if it needs no change.

    `now` is the time to write into conditions that change, in the format of the API.
    """
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
    """Return an error code in the form of a condition's reason, which must not contain hyphens: `NAME-CONFLICT` becomes
    `NameConflict`."""
    return code.title().replace("-", "")


def _data(given: GivenDevice) -> Mapping[str, Any]:
    """Return the field `data` of our entry for an attached device: the RDMA device, the mode and the device nodes. Half
    of the nodes are dropped repeatedly while the JSON is longer than MAX_DATA bytes."""
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
    """Yield the addresses in the form that the API accepts. IPv4-mapped IPv6 addresses are left out, because the API
    refuses them."""
    for it in map(ip_interface, addresses):
        if not isinstance(it, IPv6Interface) or it.ip.ipv4_mapped is None:
            yield str(it)


def _cut(text: str, most: int) -> str:
    """Return the text, cut to at most `most` bytes."""
    return text.encode(errors="replace")[:most].decode(errors="ignore")

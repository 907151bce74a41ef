"""The CDI spec of a claim: a device for each of its requests, with our key and the guard. Pure.

A container gets the CDI devices of the requests that it asks for. Each has the nodes of its RDMA devices, and under our
key what they are given with, so that they are attached as any driver's (docs/cdi.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nri_rdma.cdi.guard import guard
from nri_rdma.cdi.index import CLAIM_KEY, TRACE_KEY
from nri_rdma.cdi.spec import Device, DeviceNode, Edits, Kind, NodeType, Spec, Version
from nri_rdma.cdi.version import minimum_version
from nri_rdma.decide.advertised import DRIVER
from nri_rdma.decide.claims import AdmittedClaim
from nri_rdma.model.claim import Claim, ClaimName
from nri_rdma.model.device import CharDevice, CharKind
from nri_rdma.text.claims import main_request, refuse_uid

BOOT_KEY = "claims.noderesource.dev/boot"
"""Annotation of a spec: the boot in which it was written."""
ALLOCATION_KEY = "claims.noderesource.dev/allocation"
"""Annotation of a spec: a digest of the allocation that it was written for. A claim outlives its pods, and has other
devices or other parameters when it is allocated the next time."""
KIND = Kind(vendor=DRIVER, device_class="claim")
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStyle:
    """The choices that all specs of a daemon have in common: `prefix` is that of our annotations, `hook` None: there is
    no guard, `options` are flags of the hook that differ from its defaults.

    `boot` is the id of the boot in which they count: the folder may outlive it, and devices have other nodes then.
    `has_numbers`: the runtime cannot look for the nodes in the host's /dev. Elsewhere it has to, because the kernel
    gives a node other numbers when its device changes namespace.
    """

    prefix: str
    hook: Path | None
    options: Sequence[str] = ()
    boot: str = ""
    has_numbers: bool = False


def claim_spec(
    claim: Claim, requests: Iterable[AdmittedClaim], rdma_cm: CharDevice | None, style: SpecStyle, trace: str = ""
) -> Spec:
    """Return the spec of a claim with these requests; `trace` is the `traceparent` of the call that prepares it."""
    devices = tuple(_device(claim.uid, it, rdma_cm, style) for it in requests)
    told = {
        CLAIM_KEY: f"{claim.namespace}/{claim.name}",
        BOOT_KEY: style.boot,
        ALLOCATION_KEY: allocation_of(claim),
        TRACE_KEY: trace,
    }
    annotations = tuple((key, value) for key, value in told.items() if value)
    spec = Spec(version=next(iter(Version)), kind=KIND, annotations=annotations, devices=devices)
    return replace(spec, version=minimum_version(spec))


def cdi_device(uid: str, request: str) -> str:
    """Return the qualified name of a request's CDI device."""
    return KIND.qualified(_name(uid, request))


def spec_file(uid: str) -> str:
    """Return the name of the file with a claim's spec. Raise ClaimError for a uid that is none."""
    refuse_uid(uid)
    return f"{KIND.vendor}-{KIND.device_class}-{uid}{_SUFFIX}"


def allocation_of(claim: Claim) -> str:
    """Return a digest of all that a claim was allocated of our driver: devices, requests and parameters."""
    told = json.dumps([asdict(request) for request in claim.requests], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def is_for(text: bytes, claim: Claim, boot: str) -> bool:
    """Return whether a file's spec was written in this boot for what the claim is allocated now. A file of somebody
    else, or half of one, was not."""
    try:
        told = json.loads(text)["annotations"]
        return bool(told[BOOT_KEY] == boot and told[ALLOCATION_KEY] == allocation_of(claim))
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def claim_of(file: str, spec: Spec) -> ClaimName | None:
    """Return the claim for which a file's spec was written; None where it is none of ours, or from an older daemon."""
    namespace, slash, name = dict(spec.annotations).get(CLAIM_KEY, "").partition("/")
    before, _, uid = file.removesuffix(_SUFFIX).rpartition(f"{KIND.vendor}-{KIND.device_class}-")
    is_ours = spec.kind == KIND and not before and bool(slash)
    return ClaimName(namespace=namespace, name=name, uid=uid) if is_ours else None


def is_of(cdi_device: str, uid: str) -> bool:
    """Return whether a CDI device is one of the claim's."""
    return cdi_device.startswith(KIND.qualified(f"{uid}-"))


def _name(uid: str, request: str) -> str:
    return f"{uid}-{main_request(request)}"


def _device(uid: str, it: AdmittedClaim, rdma_cm: CharDevice | None, style: SpecStyle) -> Device:
    chars = [char for device in it.devices for char in device.char_devices if char.kind is CharKind.UVERBS]
    nodes = [*chars, *([rdma_cm] if rdma_cm is not None else ())]
    name = _name(uid, it.request.name)
    guards = () if style.hook is None else (guard(str(style.hook), style.options, "--device", KIND.qualified(name)),)
    return Device(
        name=name,
        annotations=((style.prefix, it.text),),
        edits=Edits(device_nodes=tuple(_node(char, style.has_numbers) for char in nodes), hooks=guards),
    )


def _node(char: CharDevice, has_numbers: bool) -> DeviceNode:
    node = DeviceNode(path=char.path, type=NodeType.CHARACTER, permissions="rw")
    return replace(node, major=char.major, minor=char.minor) if has_numbers else node

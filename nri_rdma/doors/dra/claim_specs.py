"""The CDI spec of a ResourceClaim: one CDI device for each of the claim's requests. Pure.

A container gets the CDI devices of those requests that its pod assigns to it. Each CDI device has the device nodes, the
guard (an OCI hook that keeps a container from starting without its devices), and an annotation with our key that says
how the devices are attached. The CDI spec of any other driver may have such an annotation, too (docs/cdi.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nri_rdma.cdi.guard import guard
from nri_rdma.cdi.index import ALLOCATION_KEY, CLAIM_KEY, TRACE_KEY
from nri_rdma.cdi.spec import Device, DeviceNode, Edits, NodeType, Spec, Version
from nri_rdma.cdi.version import minimum_version
from nri_rdma.decide.advertised import CLAIM_KIND
from nri_rdma.decide.claim_admission import AdmittedClaim
from nri_rdma.model.claim import Claim, ClaimName
from nri_rdma.model.device import CharDevice, CharKind
from nri_rdma.text.allocated_claim import main_request, refuse_uid

BOOT_KEY = "claims.noderesource.dev/boot"
"""Annotation of a spec: the id of the boot in which it was written."""
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecStyle:
    """The choices that all CDI specs of a daemon share.

    `prefix` begins our annotations. `hook` is the program of the guard, an OCI hook that keeps a container from
    starting without its devices; None: specs add no guard. `options` are the hook's flags with values other than the
    defaults. `boot` is the id of this boot: a spec from before a reboot is outdated, because device nodes have other
    numbers now.

    `has_numbers`: write the numbers of device nodes into the spec, because the runtime cannot look them up in the
    host's /dev. Otherwise the runtime looks them up, since a node's number changes when its device changes namespace.
    """

    prefix: str
    hook: Path | None
    options: Sequence[str] = ()
    boot: str = ""
    has_numbers: bool = False


def claim_spec(
    claim: Claim, requests: Iterable[AdmittedClaim], rdma_cm: CharDevice | None, style: SpecStyle, trace: str = ""
) -> Spec:
    """Return the CDI spec of a claim. `requests` are its requests with their devices; `rdma_cm` is the host's node of
    that name.

    `trace` is the W3C traceparent of the call that prepares the claim.
    """
    devices = tuple(_device(claim.uid, it, rdma_cm, style) for it in requests)
    told = {
        CLAIM_KEY: f"{claim.namespace}/{claim.name}",
        BOOT_KEY: style.boot,
        ALLOCATION_KEY: allocation_of(claim),
        TRACE_KEY: trace,
    }
    annotations = tuple((key, value) for key, value in told.items() if value)
    spec = Spec(version=next(iter(Version)), kind=CLAIM_KIND, annotations=annotations, devices=devices)
    return replace(spec, version=minimum_version(spec))


def cdi_device(uid: str, request: str) -> str:
    """Return the qualified name of the CDI device for a request of the claim."""
    return CLAIM_KIND.qualified(_name(uid, request))


def spec_file(uid: str) -> str:
    """Return the file name of the claim's CDI spec. Raises ClaimError if `uid` is not a UID."""
    refuse_uid(uid)
    return f"{CLAIM_KIND.vendor}-{CLAIM_KIND.device_class}-{uid}{_SUFFIX}"


def allocation_of(claim: Claim) -> str:
    """Return a digest of the claim's allocation by our driver: its requests, devices and parameters."""
    told = json.dumps([asdict(request) for request in claim.requests], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()


def is_for(text: bytes, claim: Claim, boot: str) -> bool:
    """Return whether `text` is a spec that was written in this boot for the claim's present allocation. False for an
    incomplete file, and for a file of another program."""
    try:
        told = json.loads(text)["annotations"]
        return bool(told[BOOT_KEY] == boot and told[ALLOCATION_KEY] == allocation_of(claim))
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


def claim_of(file: str, spec: Spec) -> ClaimName | None:
    """Return the claim to which a CDI spec belongs; None if another program or an older release of ours wrote the
    spec."""
    namespace, slash, name = dict(spec.annotations).get(CLAIM_KEY, "").partition("/")
    before, _, uid = file.removesuffix(_SUFFIX).rpartition(f"{CLAIM_KIND.vendor}-{CLAIM_KIND.device_class}-")
    is_ours = spec.kind == CLAIM_KIND and not before and bool(slash)
    return ClaimName(namespace=namespace, name=name, uid=uid) if is_ours else None


def is_of(cdi_device: str, uid: str) -> bool:
    """Return whether the CDI device belongs to the claim with this UID."""
    return cdi_device.startswith(CLAIM_KIND.qualified(f"{uid}-"))


def _name(uid: str, request: str) -> str:
    return f"{uid}-{main_request(request)}"


def _device(uid: str, it: AdmittedClaim, rdma_cm: CharDevice | None, style: SpecStyle) -> Device:
    chars = [char for device in it.devices for char in device.char_devices if char.kind is CharKind.UVERBS]
    nodes = [*chars, *([rdma_cm] if rdma_cm is not None else ())]
    name = _name(uid, it.request.name)
    told = ("--device", CLAIM_KIND.qualified(name))
    guards = () if style.hook is None else (guard(str(style.hook), style.options, *told),)
    return Device(
        name=name,
        annotations=((style.prefix, it.text),),
        edits=Edits(device_nodes=tuple(_node(char, style.has_numbers) for char in nodes), hooks=guards),
    )


def _node(char: CharDevice, has_numbers: bool) -> DeviceNode:
    node = DeviceNode(path=char.path, type=NodeType.CHARACTER, permissions="rw")
    return replace(node, major=char.major, minor=char.minor) if has_numbers else node

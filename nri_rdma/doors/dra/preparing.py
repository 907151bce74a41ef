"""NodePrepareResources and NodeUnprepareResources: a claim becomes a CDI spec, and the spec goes.

The kubelet names a claim and expects an answer within 45 s. It comes once for a claim, before its first pod's sandbox;
again after a reboot, or when our answer was lost. A claim that was prepared in this boot has its spec, and gets the
same answer: its devices may be in its pod by then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: JSON

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.decide.claims import AdmittedClaim
from nri_rdma.doors.dra.reporting import StatusWriter
from nri_rdma.doors.dra.specs import SpecStyle, boot_of, cdi_device, claim_spec, spec_file
from nri_rdma.errors import ApiServerError, ClaimError, ErrorCode, NriRdmaError
from nri_rdma.host.cdi.write import write_spec
from nri_rdma.model.claim import Claim, ClaimName
from nri_rdma.model.device import CharDevice
from nri_rdma.text.claims import claim_path, main_request, read_claim

log = logging.getLogger(__name__)

PREPARE_S = 30.0
"""How long Prepare waits for devices that are being returned; the kubelet waits 45 s for the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """A device of a claim in our answer; `cdi_devices` are the names by which the runtime gets it."""

    request: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...]


class Preparer:
    """Prepares claims. Safe for use by several threads."""

    def __init__(
        self,
        get: Callable[[str], Mapping[str, Any]],
        admit: Callable[[Claim, float], tuple[AdmittedClaim, ...]],
        rdma_cm: Callable[[], CharDevice | None],
        *,
        folder: Path,
        style: Callable[[], SpecStyle],
        statuses: StatusWriter,
        expect: Callable[[list[str]], None],
    ) -> None:
        """`get` asks the API server for an object, `admit` is Claims.prepare, `folder` is that of CDI specs;
        `expect` has RunPodSandbox wait until the specs of these CDI devices are read. The answer does not wait for
        that: more than a tenth of a second passes until the pod's sandbox is there."""
        self._statuses = statuses
        self._get = get
        self._admit = admit
        self._rdma_cm = rdma_cm
        self._folder = folder
        self._style = style
        self._expect = expect

    def prepare(self, name: ClaimName) -> tuple[PreparedDevice, ...]:
        """Return the devices of a claim, whose spec is then written. Raises NriRdmaError and OSError."""
        try:
            devices = self._prepare(name)
        except (ApiServerError, ClaimError):
            raise  # about another claim of the name, or none
        except (NriRdmaError, OSError) as error:
            self._statuses.refused(name, str(error))
            raise
        if devices:
            self._statuses.prepared(name)
        return devices

    def _prepare(self, name: ClaimName) -> tuple[PreparedDevice, ...]:
        claim = read_claim(self._get(claim_path(name)), DRIVER)
        if claim.uid != name.uid:
            what = f"claim {name} is another one by now: its uid is {claim.uid}"
            raise ClaimError(
                ErrorCode.CLAIM_CHANGED, what, where=f"uid {name.uid}", hint="nothing to do: the kubelet asks anew"
            )
        if claim.requests and not self._is_prepared(claim.uid):
            admitted = self._admit(claim, time.monotonic() + PREPARE_S)
            spec = claim_spec(claim, admitted, self._rdma_cm(), self._style())
            write_spec(spec, self._folder, spec_file(claim.uid))
            given = [device.name for it in admitted for device in it.devices]
            log.info("claim prepared", extra={"claim": str(name), "devices": given})
        answered = tuple(_answered(claim))
        self._expect([it for device in answered for it in device.cdi_devices])
        return answered

    def _is_prepared(self, uid: str) -> bool:
        """Return whether the claim was prepared in this boot."""
        try:
            text = (self._folder / spec_file(uid)).read_bytes()
        except FileNotFoundError:
            return False
        return boot_of(text) == self._style().boot

    def unprepare(self, name: ClaimName) -> None:
        """Remove the claim's spec: no container can get its devices any more. Raises OSError."""
        with suppress(FileNotFoundError):
            (self._folder / spec_file(name.uid)).unlink()
            log.info("claim unprepared", extra={"claim": str(name)})
        self._statuses.unprepared(name)


def _answered(claim: Claim) -> list[PreparedDevice]:
    """Return each device. The CDI device of a request is for all of its devices, and comes with the first one: named
    twice it would bring its hook twice."""
    return [
        PreparedDevice(
            request=main_request(it.name),
            pool=it.pool,
            device=device,
            cdi_devices=(cdi_device(claim.uid, it.name),) if number == 0 else (),
        )
        for it in claim.requests
        for number, device in enumerate(it.devices)
    ]

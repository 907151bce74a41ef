"""NodePrepareResources and NodeUnprepareResources: a claim becomes a CDI spec, and the spec goes.

The kubelet names a claim, and gives its call up after 45 s, or when its pod is deleted; its next try comes 60 to 90 s
later. It calls once for a claim, before its first pod's sandbox; again after a reboot, or when our answer was lost.

Law: a claim is prepared for what it is allocated now, by a call whose caller still waits. Between the last look at both
and the writing of the spec nothing is awaited. A claim that was prepared in this boot for the same allocation has its
spec, and gets the same answer: its devices may be in its pod by then.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: JSON
from weakref import WeakValueDictionary

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.decide.claims import AdmittedClaim
from nri_rdma.doors.dra.reporting import StatusWriter
from nri_rdma.doors.dra.specs import SpecStyle, cdi_device, claim_spec, is_for, spec_file
from nri_rdma.engine.claims import Claims
from nri_rdma.errors import ApiServerError, ClaimError, ErrorCode, NriRdmaError, PlacementError
from nri_rdma.host.cdi.write import remove_own_spec, write_own_spec
from nri_rdma.model.claim import Claim, ClaimName
from nri_rdma.observe.spans import Recorder, traceparent
from nri_rdma.tasks.workers import Workers
from nri_rdma.text.claims import claim_path, main_request, read_claim

log = logging.getLogger(__name__)

ASKING_THREADS = 8
"""Claims about which the API server is asked at one time."""
_AGAIN = "nothing to do: the kubelet asks anew"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """A device of a claim in our answer; `cdi_devices` are the names by which the runtime gets it."""

    request: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...]


class _Turn:
    """The calls that prepare one claim, until it is unprepared: one of them works at a time."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, awaited: Future[Any], by: float) -> bool:
        """Wait for that, and return whether it came before `by`. It has to be one that cannot be cancelled. Raise
        ClaimError when the claim is unprepared meanwhile."""
        coming = asyncio.wrap_future(awaited)
        try:
            left = max(0.0, by - time.monotonic())
            await asyncio.wait({coming, self.over}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            coming.cancel()  # nobody looks at it any more
        self.refuse_over()
        return awaited.done()

    def refuse_over(self) -> None:
        """Raise ClaimError when the claim was unprepared since this call came."""
        if self.over.done():
            what = "the claim was unprepared while it was prepared"
            raise ClaimError(ErrorCode.CLAIM_CHANGED, what, hint=_AGAIN)


class Preparer:
    """Prepares claims: coroutines, all of one event loop."""

    def __init__(
        self,
        get: Callable[[str], Mapping[str, Any]],
        claims: Claims,
        *,
        folder: Path,
        style: Callable[[], SpecStyle],
        statuses: StatusWriter,
        expect: Callable[[list[str]], None],
        spans: Recorder,
    ) -> None:
        """`get` asks the API server for an object, `folder` is that of CDI specs; `expect` has RunPodSandbox wait until
        the specs of these CDI devices are read. The answer does not wait for that: more than a tenth of a second passes
        until the pod's sandbox is there."""
        self._statuses = statuses
        self._get = get
        self._claims = claims
        self._folder = folder
        self._style = style
        self._expect = expect
        self._spans = spans
        self._askers = Workers(ASKING_THREADS, name="api-server")
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    async def prepare(self, name: ClaimName, by: float) -> tuple[PreparedDevice, ...]:
        """Return the devices of a claim, whose spec is then written, or raise at `by` (seconds of `time.monotonic`)
        where one of them is not free until then. Raise NriRdmaError and OSError."""
        turn = self._turns.setdefault(name.uid, _Turn())
        try:
            async with turn.lock:
                turn.refuse_over()
                devices = await self._prepare(name, turn, by)
        except (ApiServerError, ClaimError):
            raise  # about another claim of the name, or none
        except (NriRdmaError, OSError) as error:
            if isinstance(error, NriRdmaError):
                error.names_holders = self._claims.names_holders
            told = error.for_author if isinstance(error, NriRdmaError) else str(error)
            self._statuses.refused(name, told)
            raise
        if devices:
            self._statuses.prepared(name)
        return devices

    async def _prepare(self, name: ClaimName, turn: _Turn, by: float) -> tuple[PreparedDevice, ...]:
        call = traceparent()
        with self._spans.span("get claim"):
            claim = read_claim(await self._asked(name, turn, by), DRIVER)
        if claim.uid != name.uid:
            what = f"claim {name} is another one by now: its uid is {claim.uid}"
            raise ClaimError(ErrorCode.CLAIM_CHANGED, what, where=f"uid {name.uid}", hint=_AGAIN)
        if claim.requests and not self._is_prepared(claim):
            # One of an earlier allocation would give its devices to who asks before the end.
            remove_own_spec(self._folder, spec_file(claim.uid))
            with self._spans.span("admit") as span:
                admitted = await self._admitted(claim, turn, by)
                given = span.attributes["rdma.devices"] = ",".join(it.name for one in admitted for it in one.devices)
            with self._spans.span("write spec"):
                spec = claim_spec(claim, admitted, self._claims.rdma_cm, self._style(), call)
                write_own_spec(spec, self._folder, spec_file(claim.uid))
            log.info("claim prepared", extra={"claim": str(name), "devices": given})
        answered = tuple(_answered(claim))
        self._expect([it for device in answered for it in device.cdi_devices])
        return answered

    async def _asked(self, name: ClaimName, turn: _Turn, by: float) -> Mapping[str, Any]:
        """Return the claim as the API server has it. A thread asks, for as long as a call of the API server may take;
        what it hears for nobody is dropped."""
        heard: Future[Mapping[str, Any]] = Future()
        heard.set_running_or_notify_cancel()

        def ask() -> None:
            try:
                heard.set_result(self._get(claim_path(name)))
            except Exception as error:  # noqa: BLE001 - the future carries it to who asked
                heard.set_exception(error)

        self._askers.submit(name.uid, ask)
        if not await turn.wait(heard, by):
            hint = "nothing to do: the kubelet tries again; see that the API server runs"
            raise ApiServerError("the API server does not answer in time", where=claim_path(name), hint=hint)
        return heard.result()

    async def _admitted(self, claim: Claim, turn: _Turn, by: float) -> tuple[AdmittedClaim, ...]:
        """Return the requests of the claim when their devices are free."""
        admission = self._claims.admission(claim)
        while True:
            change = self._claims.next_change()  # before the look: what changes after it is not missed
            admitted = admission.look()
            if admitted is not None:
                return admitted
            if time.monotonic() >= by:
                why, where, hint = admission.why, admission.where, admission.hint
                raise PlacementError(ErrorCode.DEVICE_CONFLICT, why, where=where, hint=hint)
            await turn.wait(change, by)

    def _is_prepared(self, claim: Claim) -> bool:
        """Return whether the claim was prepared in this boot for what it is allocated now."""
        try:
            return is_for((self._folder / spec_file(claim.uid)).read_bytes(), claim, self._style().boot)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def unprepare(self, name: ClaimName) -> None:
        """Remove the claim's spec: no container can get its devices any more. Calls that still prepare the claim end
        with an error, and write nothing. Raise CdiError."""
        turn = self._turns.pop(name.uid, None)
        if turn is not None:
            turn.over.set_result(None)
        if remove_own_spec(self._folder, spec_file(name.uid)):
            log.info("claim unprepared", extra={"claim": str(name)})
        self._statuses.unprepared(name)

    def close(self) -> None:
        """End the threads; one that asks the API server ends with the process."""
        self._askers.close(0)


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

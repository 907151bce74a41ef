"""NodePrepareResources and NodeUnprepareResources: the first writes a CDI spec for a claim, the second removes it.

The kubelet prepares a claim before the sandbox of its first pod starts, and again after a reboot or if our answer was
lost. It gives a call up after 45 s, or when the pod is deleted, and tries again 60 to 90 s later.

Law: a claim is prepared only if its allocation is unchanged and the caller still waits. Both are checked before the
spec is written, with no `await` in between. A claim that was already prepared in this boot for the same allocation
keeps its spec and gets an equal answer, because its pod may already have the devices.
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
from nri_rdma.decide.claim_admission import AdmittedClaim
from nri_rdma.doors.dra.claim_specs import SpecStyle, allocation_of, cdi_device, claim_spec, is_for, spec_file
from nri_rdma.doors.dra.reporting import StatusWriter
from nri_rdma.engine.claims import Claims
from nri_rdma.errors import ApiServerError, ClaimError, ErrorCode, NriRdmaError, PlacementError
from nri_rdma.host.cdi.write import remove_own_spec, write_own_spec
from nri_rdma.model.claim import Claim, ClaimName
from nri_rdma.observe.spans import Recorder, traceparent
from nri_rdma.tasks.workers import Workers
from nri_rdma.text.allocated_claim import claim_path, main_request, read_claim

log = logging.getLogger(__name__)

ASKING_THREADS = 8
"""Maximum number of claims that are read from the API server simultaneously."""
_AGAIN = "nothing to do: the kubelet asks again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDevice:
    """A device of a claim in the answer to the kubelet. `cdi_devices` are the CDI devices that the runtime injects for
    it."""

    request: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...]


class _Turn:
    """A lock for one claim, so that calls prepare it one after the other. `over` is done when the claim is
    unprepared."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def wait(self, awaited: Future[Any], by: float) -> bool:
        """Wait for `awaited`, and return whether it was done before `by`, in seconds of `time.monotonic`. The future
        must not be cancellable.

        Raises ClaimError if the claim is unprepared meanwhile.
        """
        coming = asyncio.wrap_future(awaited)
        try:
            left = max(0.0, by - time.monotonic())
            await asyncio.wait({coming, self.over}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            coming.cancel()  # this call no longer needs it
        self.refuse_over()
        return awaited.done()

    def refuse_over(self) -> None:
        """Raise ClaimError if the claim was unprepared after this call began."""
        if self.over.done():
            what = "the claim was unprepared while it was prepared"
            raise ClaimError(ErrorCode.CLAIM_CHANGED, what, hint=_AGAIN)


class Preparer:
    """Prepares and unprepares claims. Its coroutines all run in one event loop."""

    def __init__(
        self,
        get: Callable[[str], Mapping[str, Any]],
        claims: Claims,
        *,
        node: str,
        folder: Path,
        style: Callable[[], SpecStyle],
        statuses: StatusWriter,
        expect: Callable[[list[str], str], None],
        spans: Recorder,
    ) -> None:
        """`get` reads an object from the API server. `node` is the name of this node, and of the pool of its devices.
        `folder` is the directory of CDI specs. `style` returns the present options of the specs.

        `expect` makes RunPodSandbox wait until the specs of the given CDI devices are read, as they were written for
        the given allocation. The answer to the kubelet does not wait for that, because the pod's sandbox is created
        more than a tenth of a second later.
        """
        self._statuses = statuses
        self._get = get
        self._claims = claims
        self._node = node
        self._folder = folder
        self._style = style
        self._expect = expect
        self._spans = spans
        self._askers = Workers(ASKING_THREADS, name="api-server")
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    async def prepare(self, name: ClaimName, by: float) -> tuple[PreparedDevice, ...]:
        """Write the claim's CDI spec and return its devices. If a device is not free, wait for it until `by`, in
        seconds of `time.monotonic`.

        Raises ClaimError if the claim has changed, ApiServerError if it cannot be read, PlacementError if its devices
        do not become free, another NriRdmaError if its request is not allowed, and OSError if the spec cannot be
        written.
        """
        turn = self._turns.setdefault(name.uid, _Turn())
        try:
            async with turn.lock:
                turn.refuse_over()
                devices = await self._prepare(name, turn, by)
        except (ApiServerError, ClaimError):
            raise  # the claim was replaced, or the API server fails: no status can be written
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
            what = f"claim {name} was deleted and created again: its uid is now {claim.uid}"
            raise ClaimError(ErrorCode.CLAIM_CHANGED, what, where=f"uid {name.uid}", hint=_AGAIN)
        if claim.requests and not self._is_prepared(claim):
            # The spec of an earlier allocation would give its devices to a container that is created meanwhile.
            remove_own_spec(self._folder, spec_file(claim.uid))
            self._refuse_other_node(claim)
            with self._spans.span("admit") as span:
                admitted = await self._admitted(claim, turn, by)
                given = span.attributes["rdma.devices"] = ",".join(it.name for one in admitted for it in one.devices)
            with self._spans.span("write spec"):
                spec = claim_spec(claim, admitted, self._claims.rdma_cm, self._style(), call)
                write_own_spec(spec, self._folder, spec_file(claim.uid))
            log.info("claim prepared", extra={"claim": str(name), "devices": given})
        answered = tuple(_answered(claim))
        self._expect([it for device in answered for it in device.cdi_devices], allocation_of(claim))
        return answered

    async def _asked(self, name: ClaimName, turn: _Turn, by: float) -> Mapping[str, Any]:
        """Return the claim from the API server. A thread sends the request, so that the event loop goes on.

        `turn` ends the wait with ClaimError if the claim is unprepared. Raises ApiServerError if there is no response
        before `by`, in seconds of `time.monotonic`; a later response is dropped.
        """
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
        """Wait until the claim's devices are free, and return its requests with their devices.

        `turn` ends the wait with ClaimError if the claim is unprepared. Raises PlacementError if the devices are not
        free at `by`, in seconds of `time.monotonic`.
        """
        admission = self._claims.admission(claim)
        while True:
            change = self._claims.next_change()  # before look(), so that no later change is missed
            admitted = admission.look()
            if admitted is not None:
                return admitted
            if time.monotonic() >= by:
                why, where, hint = admission.why, admission.where, admission.hint
                raise PlacementError(ErrorCode.DEVICE_CONFLICT, why, where=where, hint=hint)
            await turn.wait(change, by)

    def _refuse_other_node(self, claim: Claim) -> None:
        """Raise ClaimError if the claim's devices are on another node, where devices have the same names. The kubelet
        does not compare nodes, and a pod with `nodeName` was not placed by the scheduler."""
        for it in claim.requests:
            if it.pool != self._node:
                what = f"the claim has devices of node {it.pool}, and the pod is on {self._node}"
                hint = "delete the pod, and let the scheduler place it: leave nodeName out"
                where = f"claim {claim.namespace}/{claim.name}, request {it.name}"
                raise ClaimError(ErrorCode.DEVICE_UNKNOWN, what, where=where, hint=hint)

    def _is_prepared(self, claim: Claim) -> bool:
        """Return whether the claim has a CDI spec that was written in this boot for its present allocation."""
        try:
            return is_for((self._folder / spec_file(claim.uid)).read_bytes(), claim, self._style().boot)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def unprepare(self, name: ClaimName) -> None:
        """Remove the claim's CDI spec, so that no container can get its devices any more. Raises CdiError if the spec
        cannot be removed.

        Calls that are still preparing the claim fail and write nothing.
        """
        turn = self._turns.pop(name.uid, None)
        if turn is not None:
            turn.over.set_result(None)
        if remove_own_spec(self._folder, spec_file(name.uid)):
            log.info("claim unprepared", extra={"claim": str(name)})
        self._statuses.unprepared(name)

    def close(self) -> None:
        """End the threads. A thread that is blocked in a request to the API server ends with the process."""
        self._askers.close(0)


def _answered(claim: Claim) -> list[PreparedDevice]:
    """Return the claim's devices for the answer to the kubelet.

    A request has one CDI device for all its devices. Only the request's first device names it, because a CDI device
    that is named twice would run its hook twice.
    """
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

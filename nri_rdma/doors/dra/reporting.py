"""Writes the state of claims' devices into `status.devices` of their ResourceClaims, in a thread of its own.

Other threads only note that a claim has news; nothing waits for this thread. The newest state of each claim is then
written once, however many changes led to it. A failed write is repeated after growing pauses. A state that the API
server already has is not written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nri_rdma.doors.dra.claim_specs import claim_of, is_of
from nri_rdma.doors.dra.status_writing import DRIVER_RIGHT, GONE, INVALID, lacks_driver_right, write_status
from nri_rdma.doors.dra.statuses import ClaimState
from nri_rdma.engine.claim_states import CdiState
from nri_rdma.errors import ApiServerError
from nri_rdma.host.cdi.folder import scan
from nri_rdma.host.kubernetes.api import RIGHTS_HINT, ApiServer
from nri_rdma.model.claim import ClaimName
from nri_rdma.model.driver import PreparedClaims

log = logging.getLogger(__name__)

QUIET_S = 0.2
"""Pause between the first news of a claim and its write. The end of a pod takes less time, so one write reports all
news of a pod's end."""
FIRST_PAUSE_S, LAST_PAUSE_S = 0.5, 60.0
"""First and longest pause after errors. Each pause is twice as long as the pause before."""
LOOK_S = 30.0
"""Pause between two comparisons of all claims with their last written state. They find changes that no thread has
noted."""
KEPT = 4096
"""Maximum number of claims in memory: sixteen for each of 250 pods. With more, the oldest claim is forgotten."""
CLOSE_S = 0.5
"""How many seconds `close` waits for the end of the writing thread."""
_FORBIDDEN = 403
_RIGHTS = f"patch and update of resourceclaims/status, and associated-node: with both of {DRIVER_RIGHT}"


@dataclass(slots=True, kw_only=True)
class _Known:
    """A claim that is prepared, or whose status still has to be written."""

    name: ClaimName
    is_prepared: bool = False
    is_due: bool = False
    at: float = 0.0
    """Earliest time of the next write, in seconds of `time.monotonic`."""
    pause_s: float
    failures: dict[str, str] = field(default_factory=dict)
    """The reason why the last attach failed, by CDI device."""
    refusal: str = ""
    """The reason why the claim was not prepared; "" if it was prepared."""
    was_given: set[str] = field(default_factory=set)
    """The CDI devices whose devices a pod has had since the daemon's start."""
    is_invalid: bool = False
    """Whether it was already logged that the API server rejects this claim's status as invalid."""
    counts_bytes: bool = False
    """Whether the status must be written in protobuf, because JSON would change bytes of the claim's allocation."""
    written: ClaimState | None = None
    """The state that was last written to the API server; None if nothing was written yet."""


class StatusWriter:
    """Writes the status of claims in a thread of its own. Any thread may call its methods. Only `close` may block, for
    CLOSE_S."""

    def __init__(self, api: ApiServer, states: Callable[[], Mapping[str, CdiState]], folder: Path) -> None:
        """`states` returns the present state of each CDI device. `folder` is the directory of the claims' CDI specs."""
        self._api = api
        self._states = states
        self._folder = folder
        self._changed = threading.Condition()
        self._claims: dict[str, _Known] = {}
        self._is_closed = False
        self._look_at = time.monotonic() + LOOK_S
        self._error: int | None = None
        """The HTTP status of the last logged error; None after a successful write."""
        self._thread = threading.Thread(target=self._run, name="claim-status", daemon=True)

    @property
    def known(self) -> tuple[str, ...]:
        """The UIDs of the claims in memory, oldest first."""
        with self._changed:
            return tuple(self._claims)

    @property
    def runs(self) -> bool:
        """Return whether the thread that writes is running."""
        return self._thread.is_alive()

    def counted(self) -> PreparedClaims:
        """Return how many prepared claims are in each state."""
        states = self._states()
        with self._changed:
            prepared = [it for it in self._claims.values() if it.is_prepared]
            found = Counter(
                _state(it, [state for name, state in states.items() if is_of(name, it.name.uid)]) for it in prepared
            )
        return PreparedClaims(**found)

    def start(self) -> None:
        """Start the thread. Calling it twice is allowed."""
        with self._changed:
            if self._thread.ident is None and not self._is_closed:
                self._thread.start()

    def close(self) -> None:
        """End the thread. The next daemon writes what is still unwritten. If the thread is blocked in a request, it
        ends with the process."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)

    def prepared(self, name: ClaimName) -> None:
        """Note that a claim is prepared: a pod may have its devices from now on."""
        with self._changed:
            claim = self._noted(name)
            claim.is_prepared, claim.refusal = True, ""

    def refused(self, name: ClaimName, why: str) -> None:
        """Note that a claim could not be prepared; `why` is written into its status."""
        with self._changed:
            claim = self._noted(name)
            claim.refusal = why
            self._have_written(claim)

    def unprepared(self, name: ClaimName) -> None:
        """Note that a claim is unprepared: no pod can get its devices any more."""
        with self._changed:
            claim = self._noted(name)
            claim.is_prepared = False
            self._have_written(claim)

    def news(self, cdi_devices: frozenset[str], why: str) -> None:
        """Note that the state of these CDI devices has changed, and have their claims' status written. `why` is the
        reason if their attach failed, otherwise empty."""
        with self._changed:
            for claim in self._claims.values():
                mine = [it for it in cdi_devices if is_of(it, claim.name.uid)]
                if mine:
                    claim.failures.update({it: why for it in mine if why})
                    self._have_written(claim)

    # -- below, with the lock ----------------------------------------------------------------------------------------

    def _noted(self, name: ClaimName) -> _Known:
        if name.uid not in self._claims and len(self._claims) >= KEPT:
            del self._claims[next(iter(self._claims))]
        return self._claims.setdefault(name.uid, _Known(name=name, pause_s=FIRST_PAUSE_S))

    def _have_written(self, claim: _Known) -> None:
        if not claim.is_due:
            claim.is_due, claim.at = True, max(claim.at, time.monotonic() + QUIET_S)
        self._changed.notify_all()

    def _await_due(self) -> list[_Known]:
        """Wait until claims are due for a write, and return them. Returns an empty list when the writer is closed."""
        with self._changed:
            while not self._is_closed:
                now = time.monotonic()
                if now >= self._look_at:
                    self._look_at = now + LOOK_S
                    for claim in self._claims.values():
                        claim.is_due = True
                due = [it for it in self._claims.values() if it.is_due]
                ready = [it for it in due if it.at <= now]
                if ready:
                    for claim in ready:
                        claim.is_due = False
                    return ready
                self._changed.wait(min([self._look_at, *(it.at for it in due)]) - now)
            return []

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._take_up()
                break
            except Exception as error:  # noqa: BLE001 - as in _write
                log.warning("the claims of the daemon before are not known yet", extra={"error": str(error)})
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, FIRST_PAUSE_S)
        while due := self._await_due():
            try:
                states = self._states()
            except Exception as error:  # noqa: BLE001 - as in _write
                for claim in due:
                    self._failed(claim, error)
            else:
                for claim in due:
                    self._write(claim, states)

    def _take_up(self) -> None:
        """Note the claims that an earlier daemon prepared, from their CDI specs. Their status at the API server is then
        updated if it is out of date."""
        found = scan([self._folder])
        for item in found.specs:
            name = claim_of(Path(item.file).name, item.spec)
            if name is not None:
                self.prepared(name)
        with self._changed:
            for claim in self._claims.values():
                self._have_written(claim)

    def _write(self, claim: _Known, states: Mapping[str, CdiState]) -> None:
        state = self._state_of(claim, states)
        try:
            if state != claim.written:
                claim.counts_bytes = write_status(self._api, claim.name, state, counts_bytes=claim.counts_bytes)
        except Exception as error:  # noqa: BLE001 - logged, and tried again: the thread must not end
            self._failed(claim, error)
            return
        self._error = None
        with self._changed:
            claim.written, claim.pause_s, claim.at, claim.is_invalid = state, FIRST_PAUSE_S, 0.0, False
            if not (claim.is_prepared or claim.is_due or state.states):
                self._forget(claim)

    def _state_of(self, claim: _Known, states: Mapping[str, CdiState]) -> ClaimState:
        own = {name: it for name, it in states.items() if is_of(name, claim.name.uid)}
        with self._changed:
            for name, it in own.items():
                if it.given:
                    claim.failures.pop(name, None)
                    claim.was_given.add(name)
            return ClaimState(
                states=own,
                was_given=frozenset(claim.was_given),
                failures=dict(claim.failures),
                refusal=claim.refusal,
            )

    def _failed(self, claim: _Known, error: Exception) -> None:
        """Schedule the next write of a claim after a pause; forget the claim if it was deleted.

        The error is not logged if it has the HTTP status of the last error, because usually all claims fail for one
        reason. If the API server rejects a status as invalid, that is logged once for the claim.
        """
        status = error.status if isinstance(error, ApiServerError) else -1
        with self._changed:
            if status == GONE:
                self._forget(claim)
                return
            pause_s = LAST_PAUSE_S if status in {_FORBIDDEN, INVALID} else claim.pause_s
            claim.pause_s = min(2 * claim.pause_s, LAST_PAUSE_S)
            claim.is_due, claim.at = True, time.monotonic() + pause_s
        lacks_right = status == _FORBIDDEN or (isinstance(error, ApiServerError) and lacks_driver_right(error))
        if status == INVALID and not lacks_right:  # the error concerns only this claim
            is_known, claim.is_invalid = claim.is_invalid, True
        else:
            is_known, self._error = status == self._error, status
        if not is_known:
            facts = {"claim": str(claim.name), "error": str(error)}
            if lacks_right:
                facts |= {"missing": _RIGHTS, "hint": RIGHTS_HINT}
            log.warning("claim status is not written", extra=facts, exc_info=error if status == -1 else None)

    def _forget(self, claim: _Known) -> None:
        if self._claims.get(claim.name.uid) is claim:
            del self._claims[claim.name.uid]


def _state(claim: _Known, states: Sequence[CdiState]) -> str:
    """Return the name of the field of PreparedClaims that counts this claim. `states` are the states of the claim's CDI
    devices."""
    if any(it.given for it in states):
        return "attached"
    if claim.failures:
        return "failed"
    return "returning" if any(it.is_returning for it in states) else "waiting"

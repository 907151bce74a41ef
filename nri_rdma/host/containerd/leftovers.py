"""Removes what containerd leaves behind of sandboxes that the daemon refused, in a thread of its own.

Some releases (`Abilities.leaves_refused`) leave the pause process, its network namespace and the container's record.
The kubelet tries again with the sandbox's name, and two records with one name keep containerd from starting the next
time (containerd issue 13609, docs/adr/0019).

Law: only sandboxes that the daemon refused are touched, and only after containerd has given them up: the record is that
of a sandbox's container, and containerd no longer lists the sandbox. A sandbox that runs although the daemon refused
it, because its answer came too late, is still listed and stays. After a restart, containerd lists the sandboxes that it
had left behind; from then on the kubelet removes them (`listed`).
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from pathlib import Path

from nri_rdma.host.containerd.containerd_api import Containerd, ContainerdError
from nri_rdma.host.containerd.notes import RefusalNotes
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Recorder, Span, current_span, under

log = logging.getLogger(__name__)

PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds to wait before each check of a refused sandbox. After the refusal, containerd takes the pod's network down,
which CNI plugins may delay, and containerd may be busy or restarting."""
MAX_WAITING = 1000
"""The largest number of refused sandboxes that wait for a check; further ones are not checked. The limit matters if
containerd hangs for a long time."""
LAST_PAUSE_S = 0.1
"""Seconds between two checks of a sandbox while the daemon ends."""
KIND, SANDBOX = "io.cri-containerd.kind", "sandbox"
"""The label that containerd's CRI plugin gives to containers, and the label's value for the container of a sandbox."""


class Look(Enum):
    """The result of one check of a sandbox that the daemon refused."""

    GONE = auto()
    """containerd has no record of the sandbox."""
    REMOVED = auto()
    """There was a record, and this check removed it."""
    NO_SANDBOX = auto()
    """The record does not belong to a sandbox, so it must not be touched."""
    LISTED = auto()
    """containerd still lists the sandbox; it has not given the sandbox up yet."""


def look(containerd: Containerd, sandbox_id: str) -> Look:
    """Check once whether containerd still has a record of a refused sandbox, and remove the record if containerd has
    given the sandbox up. Return what was found or done. Raises ContainerdError if containerd refuses or does not
    answer."""
    labels = containerd.labels_of(sandbox_id)
    if labels is None:
        return Look.GONE
    if labels.get(KIND) != SANDBOX:
        return Look.NO_SANDBOX
    if containerd.has_sandbox(sandbox_id):
        return Look.LISTED
    containerd.shut_down(sandbox_id)
    if containerd.labels_of(sandbox_id) is not None:
        raise ContainerdError("it has shut the sandbox down, but its record still exists")
    return Look.REMOVED


@dataclass(frozen=True, slots=True, order=True)
class _Task:
    """A refused sandbox to check at the clock time `due`, in seconds. `number` counts the sandbox's checks from 0.
    `parent` is the tracing span of the refusal."""

    due: float
    number: int
    pod: Pod = field(compare=False)
    parent: Span | None = field(compare=False)


class Leftovers:
    """Removes what containerd leaves of sandboxes that the daemon refused. The creator must call `close`.

    Its thread starts with the first refusal. The method `refused` only takes a lock, so it never waits for containerd.
    """

    def __init__(
        self,
        socket: Path | None,
        spans: Recorder,
        notes: RefusalNotes,
        *,
        pauses_s: tuple[float, ...] = PAUSES_S,
        connect: Callable[[Path], Containerd] = Containerd,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`socket` is containerd's socket; None: nothing is ever removed. `notes` keeps the refused sandboxes for the
        next daemon. `pauses_s` are the seconds to wait before each check of a sandbox."""
        self._socket = socket
        self._spans = spans
        self._notes = notes
        self._pauses_s = pauses_s
        self._connect = connect
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: list[_Task] = []
        self._thread: threading.Thread | None = None
        self._until: float | None = None  # set by `close`: the clock time until which work goes on
        self._has_told = False
        self._listed_ids: frozenset[str] = frozenset()

    def refused(self, pod: Pod) -> None:
        """Record that this sandbox was refused just now, so that it is checked later. Never blocks and never raises."""
        if self._socket is None:
            return
        with self._changed:
            if self._until is not None:
                return
            if len(self._waiting) >= MAX_WAITING or not self._is_served(self._socket):
                facts = {"pod": str(pod), "sandbox": pod.sandbox_id, "next": by_hand(pod.sandbox_id)}
                log.warning("cannot check what containerd leaves of a refused sandbox", extra=facts)
                return
            self._notes.add(pod)
            heapq.heappush(self._waiting, _Task(self._clock() + self._pauses_s[0], 0, pod, current_span()))
            self._changed.notify()

    def resume(self) -> None:
        """Also check the sandboxes that an earlier daemon refused and did not clean up."""
        pods = self._notes.read() if self._socket is not None else ()
        with self._changed:
            if self._socket is None or not pods or not self._is_served(self._socket):
                return
            due = self._clock() + self._pauses_s[0]
            for pod in pods[:MAX_WAITING]:
                heapq.heappush(self._waiting, _Task(due, 1, pod, None))
            self._changed.notify()
        log.info("cleaning up what an earlier daemon refused", extra={"sandboxes": len(pods)})

    def listed(self, sandbox_ids: Collection[str]) -> None:
        """Forget the sandboxes that the runtime lists after a reconnect. The kubelet now removes them, even those that
        a crashed containerd left behind."""
        with self._changed:
            self._listed_ids = frozenset(sandbox_ids)
            for task in self._waiting:
                if task.pod.sandbox_id in self._listed_ids:
                    self._notes.discard(task.pod.sandbox_id)
            self._waiting = [task for task in self._waiting if task.pod.sandbox_id not in sandbox_ids]
            heapq.heapify(self._waiting)

    def _is_served(self, socket: Path) -> bool:
        """Start the thread if it does not run yet. Return False if it cannot be started. The caller holds the lock."""
        if self._thread is None:
            thread = threading.Thread(target=partial(self._serve, socket), name="leftovers", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process has reached its limit of threads
                log.warning("cannot start a thread", extra={"error": str(error)})
                return False
            self._thread = thread
        return True

    def close(self, within_s: float) -> None:
        """Check the waiting sandboxes now and repeatedly, until none is left or `within_s` seconds are over; then end
        the thread.

        A thread that hangs longer ends with the process. Closing twice does nothing.
        """
        with self._changed:
            self._until = self._clock() + within_s
            self._waiting = [replace(task, due=self._clock()) for task in self._waiting]
            heapq.heapify(self._waiting)
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(within_s)

    def _serve(self, socket: Path) -> None:
        while (task := self._next()) is not None:
            attributes = {"k8s.pod.name": str(task.pod), "k8s.pod.uid": task.pod.uid, "sandbox": task.pod.sandbox_id}
            try:
                with under(task.parent), self._spans.span("clean up", attributes) as span:
                    self._try(socket, task, span)
            except Exception:  # a bug here must not stop the clean-up of other sandboxes
                log.exception("bug while a refused sandbox was cleaned up", extra={"sandbox": task.pod.sandbox_id})

    def _next(self) -> _Task | None:
        """Wait for the next task whose time has come and return it; None once this object is closed and no task is
        left."""
        with self._changed:
            while True:
                if self._waiting and self._waiting[0].due <= self._clock():
                    return heapq.heappop(self._waiting)
                if self._until is not None and not self._waiting:
                    return None
                self._changed.wait(self._waiting[0].due - self._clock() if self._waiting else None)

    def _try(self, socket: Path, task: _Task, span: Span) -> None:
        facts = {"pod": str(task.pod), "sandbox": task.pod.sandbox_id}
        try:
            with self._connect(socket) as containerd:
                seen = look(containerd, task.pod.sandbox_id)
        except ContainerdError as error:
            span.error = str(error)
            self._failed(task, error, facts)
            return
        span.attributes["result"] = seen.name.lower()
        if seen is not Look.LISTED:
            self._notes.discard(task.pod.sandbox_id)
        match seen:
            case Look.REMOVED:
                log.info("removed what containerd left of a refused sandbox", extra=facts)
            case Look.LISTED:
                self._listed(task, facts)
            case Look.NO_SANDBOX:
                log.warning(
                    "containerd's record of a refused sandbox does not belong to a sandbox: it is left alone",
                    extra=facts,
                )
            case Look.GONE if task.number == 0:
                self._tell_nothing_left(facts | {"socket": str(socket)})

    def _listed(self, task: _Task, facts: dict[str, str]) -> None:
        if self._again(task):
            log.debug("containerd still has a refused sandbox", extra=facts)
        elif self._until is None:
            self._notes.discard(task.pod.sandbox_id)
            log.warning("containerd still lists a refused sandbox: check whether CRI lists it", extra=facts)
        else:
            log.warning(
                "the daemon ends while containerd still lists a refused sandbox: the next daemon goes on",
                extra=facts | {"next": by_hand(task.pod.sandbox_id)},
            )

    def _failed(self, task: _Task, error: ContainerdError, facts: dict[str, str]) -> None:
        facts = facts | {"error": str(error), "next": by_hand(task.pod.sandbox_id)}
        # An absent runtime may be ending with this daemon, and its next start waits for this daemon's locks.
        if not (error.is_absent and self._until is not None) and self._again(task):
            log.debug("a refused sandbox is not cleaned up yet", extra=facts)
            return
        if self._until is None:
            self._notes.discard(task.pod.sandbox_id)
        if error.is_absent:
            log.warning(
                "containerd cannot be asked to remove what it leaves of a refused sandbox: see containerd_socket",
                extra=facts,
            )
        else:
            log.warning(
                "containerd keeps what is left of a refused sandbox, and may not start again with it", extra=facts
            )

    def _again(self, task: _Task) -> bool:
        """Schedule another check of a sandbox. Return False if there were enough checks already or too little time is
        left.

        Also returns True, without another check, if the runtime now lists the sandbox, because the kubelet then removes
        it.
        """
        with self._changed:
            if task.pod.sandbox_id in self._listed_ids:
                return True
            now, number = self._clock(), task.number + 1
            if self._until is not None:
                pause_s = LAST_PAUSE_S if now + LAST_PAUSE_S < self._until else None
            else:
                pause_s = self._pauses_s[number] if number < len(self._pauses_s) else None
            if pause_s is not None:
                heapq.heappush(self._waiting, replace(task, due=now + pause_s, number=number))
            return pause_s is not None

    def _tell_nothing_left(self, facts: dict[str, str]) -> None:
        """Log that containerd left nothing of a refused sandbox. This is logged only once, because it is then true for
        every sandbox."""
        if not self._has_told:
            self._has_told = True
            log.info(
                "containerd has left nothing of a refused sandbox, or containerd_socket is another containerd's",
                extra=facts,
            )


def by_hand(sandbox_id: str) -> str:
    """Return the shell command with which an administrator removes the leftovers of a sandbox."""
    # The pause: containerd deletes the task itself, and `rm` fails in the middle of that (seen with 2.1.9).
    return f"ctr -n k8s.io task kill -s SIGKILL {sandbox_id}; sleep 1; ctr -n k8s.io container rm {sandbox_id}"

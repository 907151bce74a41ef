"""What containerd leaves of sandboxes that we refused, removed by a thread of its own.

Some releases (`Abilities.leaves_refused`) leave the pause process, its network namespace and the container's record.
The kubelet tries again under the same name; two records of one name keep containerd from its next start (containerd
issue 13609, docs/adr/0019).

Law: only sandboxes that we refused are touched, and only when containerd has given them up: the record is that of a
sandbox's container, and no list has the sandbox any more. A sandbox that runs although we refused it (our answer came
too late) is in containerd's list, and stays. A containerd that restarts lists the sandboxes that it had left; removing
them is the kubelet's job from then on (`listed`).
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

from nri_rdma.host.containerd.client import Containerd, ContainerdError
from nri_rdma.host.containerd.notes import RefusalNotes
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Recorder, Span, current_span, under

log = logging.getLogger(__name__)

PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Pauses before each check of a refused sandbox, in seconds. After our answer containerd takes the pod's network down,
which CNI plugins may delay, and containerd may be busy or restarting."""
MAX_WAITING = 1000
"""Most refused sandboxes that wait for a check; further ones are not checked. A containerd that hangs answers none of
them for long."""
LAST_PAUSE_S = 0.1
"""Pause between two checks while the daemon ends."""
KIND, SANDBOX = "io.cri-containerd.kind", "sandbox"
"""The label of what CRI has made, and its value for the container of a sandbox."""


class Look(Enum):
    """Result of one check of a refused sandbox."""

    GONE = auto()
    """There is no record of the sandbox."""
    REMOVED = auto()
    """There was a record, and it is removed now."""
    NO_SANDBOX = auto()
    """The record is no sandbox's: we must not touch it."""
    LISTED = auto()
    """containerd has not given the sandbox up (yet)."""


def look(containerd: Containerd, sandbox_id: str) -> Look:
    """Remove what is left of the sandbox, if anything. Raises ContainerdError."""
    labels = containerd.labels_of(sandbox_id)
    if labels is None:
        return Look.GONE
    if labels.get(KIND) != SANDBOX:
        return Look.NO_SANDBOX
    if containerd.has_sandbox(sandbox_id):
        return Look.LISTED
    containerd.shut_down(sandbox_id)
    if containerd.labels_of(sandbox_id) is not None:
        raise ContainerdError("it has shut the sandbox down, and the record is still there")
    return Look.REMOVED


@dataclass(frozen=True, slots=True, order=True)
class _Task:
    """A sandbox to check from `due` on (seconds of the clock); `number` counts the checks, from 0."""

    due: float
    number: int
    pod: Pod = field(compare=False)
    parent: Span | None = field(compare=False)


class Leftovers:
    """Removes the leftovers of refused sandboxes. Whoever makes it closes it. The thread starts with the first refusal;
    `refused` only takes a lock."""

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
        """Prepare to remove leftovers. Without a socket nothing is ever removed. `notes` outlive the daemon."""
        self._socket = socket
        self._spans = spans
        self._notes = notes
        self._pauses_s = pauses_s
        self._connect = connect
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: list[_Task] = []
        self._thread: threading.Thread | None = None
        self._until: float | None = None  # a moment of the clock: it is closed, and works until then
        self._has_told = False
        self._listed_ids: frozenset[str] = frozenset()

    def refused(self, pod: Pod) -> None:
        """Note that this sandbox was refused just now. Never blocks, never raises."""
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
        """Go on with the sandboxes that an earlier daemon refused and did not clean up."""
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
        """Drop the sandboxes that the runtime lists after a reconnect. Removing them is now the kubelet's job, even if
        a crashed containerd left them."""
        with self._changed:
            self._listed_ids = frozenset(sandbox_ids)
            for task in self._waiting:
                if task.pod.sandbox_id in self._listed_ids:
                    self._notes.discard(task.pod.sandbox_id)
            self._waiting = [task for task in self._waiting if task.pod.sandbox_id not in sandbox_ids]
            heapq.heapify(self._waiting)

    def _is_served(self, socket: Path) -> bool:
        """Return whether there is a thread, and start it for the first sandbox. The caller holds the lock."""
        if self._thread is None:
            thread = threading.Thread(target=partial(self._serve, socket), name="leftovers", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more of them
                log.warning("cannot start a thread", extra={"error": str(error)})
                return False
            self._thread = thread
        return True

    def close(self, within_s: float) -> None:
        """Check the waiting sandboxes at once, and repeatedly for `within_s` seconds or until none is left, and end the
        thread. A thread that still hangs then dies with the process. Closing twice is no error."""
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
            except Exception:  # the next sandbox must not pay for a bug of ours
                log.exception("bug while a refused sandbox was cleaned up", extra={"sandbox": task.pod.sandbox_id})

    def _next(self) -> _Task | None:
        """Wait for the next due task and return it; None when this object is closed and nothing is left to do."""
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
                log.warning("the record of a refused sandbox is no sandbox's: it is left alone", extra=facts)
            case Look.GONE if task.number == 0:
                self._tell_nothing_left(facts | {"socket": str(socket)})

    def _listed(self, task: _Task, facts: dict[str, str]) -> None:
        if self._again(task):
            log.debug("containerd still has a refused sandbox", extra=facts)
        elif self._until is None:
            self._notes.discard(task.pod.sandbox_id)
            log.warning("containerd still lists a refused sandbox: see whether CRI does", extra=facts)
        else:
            log.warning(
                "the daemon ends before containerd has given a refused sandbox up: the next daemon goes on",
                extra=facts | {"next": by_hand(task.pod.sandbox_id)},
            )

    def _failed(self, task: _Task, error: ContainerdError, facts: dict[str, str]) -> None:
        facts = facts | {"error": str(error), "next": by_hand(task.pod.sandbox_id)}
        # The runtime may end with us, and its next start waits for our locks.
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
        """Schedule another check. Return whether there will be one, or the sandbox is the kubelet's meanwhile."""
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
        """Log once in the life of this daemon that nothing is left: it is so for every sandbox."""
        if not self._has_told:
            self._has_told = True
            log.info(
                "containerd has left nothing of a refused sandbox, or containerd_socket is another containerd's",
                extra=facts,
            )


def by_hand(sandbox_id: str) -> str:
    """Return the command with which a person removes the leftovers."""
    # The pause: containerd deletes the task itself, and `rm` fails in the middle of that (seen with 2.1.9).
    return f"ctr -n k8s.io task kill -s SIGKILL {sandbox_id}; sleep 1; ctr -n k8s.io container rm {sandbox_id}"

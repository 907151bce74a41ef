"""The sandboxes that hold devices: their states, their workers, their end.

States: planned -> attaching -> attached -> returning -> gone. A failed attach undoes itself and may be tried again;
`returning` never goes back. Everything is keyed by sandbox id: two sandboxes of one pod UID may exist at once.

One thread at a time works on a sandbox: a planner until its plan is in the journal, then the worker of its key. Who
ends a sandbox that is being planned leaves its undo to the planner.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future

from nri_rdma.attach.attachment import Again, Choose, Chosen, Sandbox, cdi_devices_of, interrupted
from nri_rdma.attach.journal import Journal
from nri_rdma.attach.liveness import Ends, lives_by_process
from nri_rdma.attach.numbers import Resolve
from nri_rdma.attach.port import Kernel, KernelError, Processes, ProcessIdentity
from nri_rdma.attach.presence import Presence
from nri_rdma.attach.record import SandboxRecord, State
from nri_rdma.attach.second_look import SecondLooks
from nri_rdma.attach.survey import placed_of
from nri_rdma.attach.transaction import Boundary, no_boundary
from nri_rdma.attach.work import Work, all_physical, let_go
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import NotReadyError, NriRdmaError
from nri_rdma.model.device import CharDevice
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Recorder, current_span, under
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

Schedule = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Has something called after so many seconds; the result cancels that."""

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses before an undo that failed is tried again. After the last one (30 s in all) a namespace in which physical
devices are stuck is let go, so that the kernel brings them home when it dies."""

ATTEMPTS = 3
"""How often an attach is tried whose sandbox has started already: nobody else can try it again."""
TAKE_UP_PAUSE_S = 1.0
"""Before it is tried again to see what became of a sandbox of an earlier daemon."""
ATTEMPT_PAUSES_S = (0.5, 1.0)
"""Before the second attempt, and before the third."""


ANSWER_FIRST_S = 0.0005
"""Between a plan and its attach where the runtime is answered in between: it and the runtime want the interpreter and a
processor for that, and waited milliseconds for them."""


def start_timer(pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
    """The real Schedule: a thread that waits."""
    timer = threading.Timer(pause_s, work)
    timer.daemon = True
    timer.start()
    return timer.cancel


class Sandboxes:
    """All sandboxes of the node. Public methods may be called by any thread and never block on the kernel."""

    def __init__(
        self,
        kernel: Kernel,
        journal: Journal,
        workers: Workers,
        spans: Recorder,
        resolve: Resolve,
        *,
        on_held: Callable[[str], None],
        on_gone: Callable[[str], None],
        planners: Workers | None = None,
        processes: Processes | None = None,
        event_sequence: Callable[[], int] = lambda: 0,
        links_are_managed: Callable[[], bool] = lambda: False,
        boundary: Boundary = no_boundary,
        schedule: Schedule = start_timer,
    ) -> None:
        """`on_held` has a namespace's path watched, before it is opened; `on_gone` is told when everything of a sandbox
        is home, and is called again after a pause when it raises; `event_sequence` is the number of the kernel's newest
        device event; `links_are_managed` says whether somebody else configures the netdevs that come home, too.
        `planners` plan, so that no plan waits for attaches; by default the workers."""
        self._kernel = kernel
        self._journal = journal
        self._workers = workers
        self._planners = planners or workers
        self._spans = spans
        self._on_gone = on_gone
        self._schedule = schedule
        self._second_looks = SecondLooks(kernel, workers, schedule)
        self._ends = Ends(kernel, on_held, processes)
        self._work = Work(
            kernel,
            journal,
            spans,
            Presence(kernel, resolve),
            self._ends,
            self._second_looks,
            event_sequence=event_sequence,
            links_are_managed=links_are_managed,
            boundary=boundary,
        )
        self._lock = threading.Lock()
        self._sandboxes: dict[str, dict[str, Sandbox]] = {}
        """By sandbox id, then by part; never an empty one."""
        self._left: dict[Sandbox, None] = {}
        """What an earlier daemon left, and nobody has begun to take up yet."""
        self._closed = False

    def knows(self, sandbox_id: str) -> bool:
        """Whether the sandbox of that id holds anything."""
        return sandbox_id in self._sandboxes

    def get(self, sandbox_id: str) -> Sandbox | None:
        """What the sandbox of that id was given at its start, if it holds that."""
        return self._sandboxes.get(sandbox_id, {}).get("")

    def of(self, sandbox_id: str) -> tuple[Sandbox, ...]:
        """All that the sandbox of that id holds, by part, oldest first."""
        parts = self._sandboxes.get(sandbox_id)
        return tuple(parts.values()) if parts is not None else ()  # one step of the interpreter: no lock

    def all(self) -> tuple[Sandbox, ...]:
        """All sandboxes that hold anything, each of their parts, oldest first."""
        with self._lock:
            return self._all()

    def _all(self) -> tuple[Sandbox, ...]:
        return tuple(sandbox for parts in self._sandboxes.values() for sandbox in parts.values())

    def begin(
        self,
        pod: Pod,
        placed: tuple[Placed, ...],
        rdma_cm: CharDevice | None,
        part: str = "",
        attempts: int = 1,
        again: Again | None = None,
    ) -> Sandbox:
        """Have `placed` planned and attached: `planned` of the result tells the refusal, `attach_done` the end.

        An attach that fails after its plan was told is tried `attempts` times in all, with what `again` finds.
        """
        sandbox = Sandbox(pod, part=part, attempts=attempts)
        sandbox.again = again
        sandbox.cdi_devices = cdi_devices_of(placed)
        self._add(sandbox)
        self._submit_plan(sandbox, lambda: Chosen(placed=placed, rdma_cm=rdma_cm))
        return sandbox

    def begin_after(
        self,
        older: Collection[Future[None]],
        pod: Pod,
        choose: Choose,
        attempts: int = 1,
        again: Again | None = None,
    ) -> Sandbox:
        """The same when what these undos bring home is home; only then `choose` is called, in a planner."""
        sandbox = Sandbox(pod, attempts=attempts)
        sandbox.again = again
        sandbox.waits_for_older = True
        self._add(sandbox)
        joined(older).add_done_callback(lambda _done: self._submit_plan(sandbox, choose))
        return sandbox

    def _add(self, sandbox: Sandbox) -> None:
        with self._lock:
            self._sandboxes.setdefault(sandbox.pod.sandbox_id, {})[sandbox.part] = sandbox

    def cover(self, sandbox: Sandbox, cdi_device: str, container: str) -> Future[None]:
        """Have another container of the sandbox covered by what it attached for a CDI device, because that container
        has the CDI device too."""
        return self._workers.submit(sandbox.pod.sandbox_id, lambda: self._work.cover(sandbox, cdi_device, container))

    def end(self, sandbox_id: str) -> Future[None] | None:
        """Have everything of a sandbox undone. Joinable: a second call gets the same future, which is done when the
        devices are home, however often that has to be tried. None: it holds nothing."""
        undos = [self._end(sandbox) for sandbox in self.of(sandbox_id)]
        return joined(undos) if undos else None

    def _end(self, sandbox: Sandbox) -> Future[None]:
        if sandbox.end_from_outside():
            with self._lock:
                cancel, sandbox.cancel_retry = sandbox.cancel_retry, None
            if cancel is not None:
                cancel()
            self._submit_taking_up(sandbox)  # first: it opens the namespace that the devices are in
            self._submit_undo(sandbox)
        assert sandbox.undo_done is not None  # it ends
        return sandbox.undo_done

    def end_of_process(self, process: ProcessIdentity) -> None:
        """End the sandboxes that lived as long as this process."""
        for sandbox in self.all():
            record = sandbox.record
            known = record.process if record is not None else None  # none yet: its attach is under way
            if lives_by_process(sandbox.pod) and sandbox.pod.pid == process.pid and known in {None, process}:
                log.info("the sandbox's process ended", extra={"pod": str(sandbox.pod), "pid": process.pid})
                self.end(sandbox.pod.sandbox_id)

    def recover(self, on_record: Callable[[SandboxRecord], None], *, later: bool = False) -> tuple[NriRdmaError, ...]:
        """Take up what an earlier daemon left: adopt what is attached, begin anew what was half done, undo what is gone
        or was half way home. Workers do that, now or `later`, when `take_up` says so; until they have, containers of
        these sandboxes wait.

        Called once, before any door opens; `on_record` is told every record before anything is done with it. Returns an
        error for every journal file that had to be set aside.
        """
        records, errors = self._journal.load()
        for record in sorted(records, key=lambda it: (it.pod.sandbox_id, it.part)):
            if record.namespace is not None and record.namespace.boot_id != self._kernel.host.identity.boot_id:
                log.info("forgotten: the moves ended with the boot", extra={"pod": str(record.pod)})
                self._journal.remove(record.key)
                continue
            on_record(record)
            sandbox = Sandbox(record.pod, record)
            sandbox.taken_up = Future()
            self._left[sandbox] = None
            self._add(sandbox)
        if not later:
            self.take_up()
        return errors

    def take_up(self) -> None:
        """Have workers take up what `recover` found; once."""
        with self._lock:
            left = tuple(self._left)
        for sandbox in left:
            self._submit_taking_up(sandbox)

    def _submit_taking_up(self, sandbox: Sandbox) -> None:
        """Unless that is done. With the lock until it is in the queue: an undo must come after it."""

        def work() -> None:
            try:
                self._take_up(sandbox)
            except KernelError as error:  # it cannot be seen now what is there (EMFILE, ENOMEM, ...)
                log.warning("not taken up yet", extra={"pod": str(sandbox.pod), "error": str(error)})
                with self._lock:
                    self._left[sandbox] = None
                self._later(sandbox, TAKE_UP_PAUSE_S, lambda: self._submit_taking_up(sandbox))
                return
            assert sandbox.taken_up is not None  # recover made it
            sandbox.taken_up.set_result(None)

        with self._lock:
            if sandbox in self._left:
                del self._left[sandbox]
                self._workers.submit(sandbox.pod.sandbox_id, work)

    def _take_up(self, sandbox: Sandbox) -> None:
        """In a worker. Raises KernelError when it cannot be seen whether the pod is there."""
        record = sandbox.record
        assert record is not None  # recover read it
        sandbox.namespace = self._ends.open_again(record)
        is_there = record.state is not State.RETURNING and self._ends.is_there(record, sandbox.namespace)
        if sandbox.ends:
            return  # the runtime does not know it any more: its undo is next
        if is_there and record.state is State.ATTACHED:
            self._adopt(sandbox)
        elif is_there and not record.part:
            log.info("beginning anew", extra={"pod": str(record.pod), "sandbox": record.pod.sandbox_id})
            self._begin_anew(sandbox, record)
        else:
            self._end(sandbox)

    def _adopt(self, sandbox: Sandbox) -> None:
        """It has what it had. Nobody listened to the kernel meanwhile: its numbers are read anew before any container
        gets them."""
        self.look_again(sandbox)  # in the queue before anybody can see it attached
        try:
            sandbox.advance(State.ATTACHED)
        except NotReadyError:
            return  # it ends: its undo is next
        sandbox.settle()
        log.info("adopted", extra={"pod": str(sandbox.pod), "sandbox": sandbox.pod.sandbox_id})

    def _begin_anew(self, sandbox: Sandbox, record: SandboxRecord) -> None:
        """An attach that its daemon's end cut short. The runtime was told that it goes on, or was told nothing: its
        containers may come at any time."""
        sandbox.attempts = 1 + ATTEMPTS
        sandbox.settle_plan()
        chosen = Chosen(placed=placed_of(record), rdma_cm=record.rdma_cm)
        self._failed(sandbox, interrupted(record.pod), lambda: chosen)

    def node_removed(self, number: tuple[int, int], sequence: int) -> None:
        """The kernel took a character device away. Those who have it read their numbers anew: it was a move or a driver
        that came back, and the numbers are another's now."""
        for sandbox in self.all():
            if sequence > sandbox.numbers_from and (number in _numbers(sandbox) or _is_being_read(sandbox)):
                log.info("character device is gone", extra={"pod": str(sandbox.pod), "number": list(number)})
                self.look_again(sandbox)

    def look_at_all_again(self) -> None:
        """Events were lost, or a device has another name: whose it is is not known."""
        for sandbox in self.all():
            self.look_again(sandbox)

    def look_again(self, sandbox: Sandbox) -> Future[None]:
        """Have the names and character devices of a sandbox that is attached read anew; the future raises AttachError
        when one is not there any more."""
        with self._lock:
            sandbox.looked_again = self._workers.submit(sandbox.pod.sandbox_id, lambda: self._work.look_again(sandbox))
            return sandbox.looked_again

    def is_there(self, pod: Pod) -> bool:
        """Whether the namespace of a pod that has one is there. Blocks on the kernel: for a worker."""
        return self._ends.can_be_opened(pod.netns_path)

    def held(self) -> int:
        """How many namespaces are held open: while they are, nothing in them can come home by itself."""
        return sum(1 for sandbox in self.all() if sandbox.namespace is not None)

    def close(self, busy: Collection[str] = ()) -> None:
        """Cancel what is due and let all namespaces go; what is attached stays attached. After Workers.close, with the
        sandboxes that are still being worked on: theirs stay open, for who works with them."""
        with self._lock:
            self._closed = True
            sandboxes = self._all()
            cancels = [sandbox.cancel_retry for sandbox in sandboxes if sandbox.cancel_retry is not None]
        for cancel in cancels:
            cancel()
        self._second_looks.close()
        for sandbox in sandboxes:
            if sandbox.pod.sandbox_id not in busy:
                let_go(sandbox)

    # -- in a planner ------------------------------------------------------------------------------------------------

    def _submit_plan(self, sandbox: Sandbox, choose: Choose) -> None:
        task = self._planners.submit(sandbox.pod.sandbox_id, lambda: self._plan(sandbox, choose))
        task.add_done_callback(lambda done: _settle_cancelled(sandbox, done))

    def _plan(self, sandbox: Sandbox, choose: Choose) -> None:
        if not sandbox.start_planning():
            return  # it ended: its undo tells who waits
        undone = False
        try:
            with under(sandbox.parent):
                chosen = choose()
                sandbox.cdi_devices = cdi_devices_of(chosen.placed)
                self._work.plan(sandbox, chosen)
        except BaseException as error:  # noqa: BLE001 - whatever refused it, who waits is told
            undone = self._failed(sandbox, error, choose)
        if sandbox.record is not None and not sandbox.ends:
            sandbox.settle_plan()
            if sandbox.attempts > 1:
                time.sleep(ANSWER_FIRST_S)
            self._work.note_plan(sandbox)
        ended = sandbox.stop_planning()
        if ended and not undone:
            self._submit_undo(sandbox)
        elif not ended and sandbox.record is not None:
            self._submit_attach(sandbox, lambda: chosen)

    # -- in a worker -------------------------------------------------------------------------------------------------

    def _submit_attach(self, sandbox: Sandbox, choose: Choose) -> None:
        task = self._workers.submit(sandbox.pod.sandbox_id, lambda: self._attach(sandbox, choose))
        task.add_done_callback(lambda done: _settle_cancelled(sandbox, done))

    def _attach(self, sandbox: Sandbox, choose: Choose) -> None:
        pod = sandbox.pod
        attributes: dict[str, str | int | float | bool] = {
            "k8s.pod.name": str(pod),
            "k8s.pod.uid": pod.uid,
            "sandbox": pod.sandbox_id,
            "rdma.attempt": sandbox.attempt,
        }
        try:
            with under(sandbox.parent), self._spans.span("attach", attributes) as span:
                record = self._work.attach(sandbox)
                span.attributes["rdma.isolation"] = str(record.isolation or "")
        except BaseException as error:  # noqa: BLE001 - whatever went wrong, the host comes first
            log.warning("attach failed", extra={"pod": str(pod), "error": str(error), "attempt": sandbox.attempt})
            with under(sandbox.parent):
                self._failed(sandbox, error, choose)
        else:
            sandbox.settle()

    def _failed(self, sandbox: Sandbox, error: BaseException, choose: Choose) -> bool:
        """Undo what an attempt did, then try again, or give up and tell who waits when the host is as before. Whether
        the sandbox was ended here, and its undo seen to."""
        sandbox.last_error = str(error)
        if self._try_again(sandbox, choose):
            return False
        given_up = sandbox.give_up()
        if given_up:
            self._undo(sandbox, error=error)
        sandbox.settle(error)  # also where its undo has to be tried again
        return given_up

    def _try_again(self, sandbox: Sandbox, choose: Choose) -> bool:
        """Whether there will be another attempt. The first one whose refusal somebody still waits for is the last."""
        if sandbox.ends or self._closed or sandbox.attempt >= sandbox.attempts or not sandbox.planned.done():
            return False
        try:
            self._work.bring_home(sandbox)
            sandbox.advance(State.PLANNED)
        except Exception:  # noqa: BLE001 - it is undone for good now, which tells what it meets
            return False
        sandbox.record = None
        pause_s = ATTEMPT_PAUSES_S[min(sandbox.attempt, len(ATTEMPT_PAUSES_S)) - 1]
        sandbox.attempt += 1
        log.info("trying again", extra={"pod": str(sandbox.pod), "attempt": sandbox.attempt, "pause_s": pause_s})
        self._later(sandbox, pause_s, lambda: self._submit_next(sandbox, choose))
        return True

    def _submit_next(self, sandbox: Sandbox, choose: Choose) -> None:
        """The next attempt; no planner waits for a reading before it."""
        again = sandbox.again
        if again is None:
            self._submit_plan(sandbox, choose)
        else:
            again.read().add_done_callback(lambda _done: self._submit_plan(sandbox, again.choose))

    def _later(self, sandbox: Sandbox, pause_s: float, work: Callable[[], None]) -> None:
        """What is due after a pause, unless the daemon ends before."""
        with self._lock:
            if not self._closed:
                sandbox.cancel_retry = self._schedule(pause_s, work)

    def _submit_undo(self, sandbox: Sandbox, attempt: int = 0) -> None:
        parent = current_span()

        def work() -> None:
            with under(parent):
                self._undo(sandbox, attempt)

        self._workers.submit(sandbox.pod.sandbox_id, work, urgent=True)

    def _undo(self, sandbox: Sandbox, attempt: int = 0, error: BaseException | None = None) -> None:
        """Undo, or see to it that it is tried again. The only place where a sandbox becomes `gone`; who waits is told
        `error` before nothing is known of it any more."""
        pod = sandbox.pod
        try:
            if not sandbox.is_home:
                self._refuse_unseen(sandbox)
                self._work.bring_home(sandbox)
                sandbox.is_home = True
            self._on_gone(sandbox.key)
        except Exception as failure:  # noqa: BLE001 - hardware is at stake: whatever it was, it is tried again
            self._retry_undo(sandbox, failure, attempt)
            return
        sandbox.settle(error or interrupted(pod))
        with self._lock:
            sandbox.state, sandbox.undo_error, sandbox.cancel_retry = State.GONE, "", None
            self._forget(sandbox)
        assert sandbox.undo_done is not None  # who submits an undo makes it
        sandbox.undo_done.set_result(None)
        if sandbox.record is not None:
            log.info("returned", extra={"pod": str(pod), "devices": sandbox.record.device_names})

    def _refuse_unseen(self, sandbox: Sandbox) -> None:
        """Raise KernelError as long as the namespace of an earlier daemon's sandbox could not be looked for: without it
        a virtual netdev would be taken for one that died with it."""
        with self._lock:
            if sandbox in self._left:
                raise KernelError("look for the network namespace", errno.EAGAIN, "it could not be opened yet")

    def _forget(self, sandbox: Sandbox) -> None:
        """With the lock."""
        parts = self._sandboxes.get(sandbox.pod.sandbox_id, {})
        if parts.get(sandbox.part) is sandbox:
            del parts[sandbox.part]
            if not parts:
                del self._sandboxes[sandbox.pod.sandbox_id]

    def _retry_undo(self, sandbox: Sandbox, error: Exception, attempt: int) -> None:
        """Keep the devices as held and try again, for as long as the daemon lives, with growing pauses."""
        sandbox.undo_error = error.message if isinstance(error, ExceptionGroup) else str(error)
        log.error("undo failed, trying again", extra={"pod": str(sandbox.pod), "error": sandbox.undo_error})
        if attempt >= len(RETRY_SECONDS) and sandbox.record is not None and all_physical(sandbox.record.plan):
            self._work.leave_to_kernel(sandbox)
        pause_s = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
        self._later(sandbox, pause_s, lambda: self._submit_undo(sandbox, attempt + 1))


def joined(futures: Collection[Future[None]]) -> Future[None]:
    """Done when all of them are."""
    if len(futures) == 1:
        return next(iter(futures))
    done: Future[None] = Future()
    left = len(futures)
    lock = threading.Lock()

    def one_more(_future: Future[None]) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            done.set_result(None)

    for future in futures:
        future.add_done_callback(one_more)
    return done


def _settle_cancelled(sandbox: Sandbox, done: Future[None]) -> None:
    """The workers have ended: nobody will come to it."""
    if done.cancelled():
        sandbox.settle(interrupted(sandbox.pod))


def _is_being_read(sandbox: Sandbox) -> bool:
    """Whether its numbers are being read just now, so that nobody knows yet whether a number is one of them."""
    looked = sandbox.looked_again
    is_confirming = sandbox.state is State.ATTACHING and sandbox.numbers_from > 0
    return is_confirming or (looked is not None and not looked.done())


def _numbers(sandbox: Sandbox) -> frozenset[tuple[int, int]]:
    """Of the character devices that containers of an attached sandbox get."""
    record = sandbox.record
    if record is None or sandbox.state is not State.ATTACHED:
        return frozenset()
    nodes = [node for it in record.attached for item in it.devices for node in item.device.char_devices]
    return frozenset((node.major, node.minor) for node in nodes)

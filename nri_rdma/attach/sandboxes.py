"""The sandboxes that hold devices: their states, their workers, their end.

States: planned -> attaching -> attached -> returning -> gone. A failed attach undoes itself. `returning` never goes
back. Everything is keyed by sandbox id: two sandboxes of one pod UID may exist at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace

from nri_rdma.attach.journal import Journal
from nri_rdma.attach.plan import Plan, moving_netdevs
from nri_rdma.attach.port import Kernel, KernelError, Namespace
from nri_rdma.attach.preparation import needs_namespace, open_for, prepare
from nri_rdma.attach.presence import Presence
from nri_rdma.attach.processes import NoProcesses, Processes, ProcessIdentity
from nri_rdma.attach.record import SandboxRecord, State
from nri_rdma.attach.resolution import Resolve
from nri_rdma.attach.sandbox import Sandbox, cdi_devices_of
from nri_rdma.attach.second_look import SecondLooks
from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.transaction import Boundary, do_steps, no_boundary, undo_steps
from nri_rdma.attach.workers import Workers
from nri_rdma.errors import AttachError, ErrorCode, NotReadyError, NriRdmaError
from nri_rdma.model.device import CharDevice
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Recorder, current_span, under
from nri_rdma.placement import Placed

log = logging.getLogger(__name__)

Schedule = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Has something called after so many seconds; the result cancels that."""

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses before an undo that failed is tried again. After the last one (30 s in all) a namespace in which physical
devices are stuck is let go, so that the kernel brings them home when it dies."""


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
        processes: Processes | None = None,
        event_sequence: Callable[[], int] = lambda: 0,
        links_are_managed: Callable[[], bool] = lambda: False,
        boundary: Boundary = no_boundary,
        schedule: Schedule = start_timer,
    ) -> None:
        """`on_held` has a namespace's path watched, before it is opened; `on_gone` is told when everything of a sandbox
        is home, and is called again after a pause when it raises; `event_sequence` is the number of the kernel's newest
        device event; `links_are_managed` says whether somebody else configures the netdevs that come home, too."""
        self._kernel = kernel
        self._journal = journal
        self._workers = workers
        self._spans = spans
        self._presence = Presence(kernel, resolve)
        self._on_held = on_held
        self._on_gone = on_gone
        self._processes = processes or NoProcesses()
        self._event_sequence = event_sequence
        self._boundary = boundary
        self._lock = threading.Lock()
        self._sandboxes: dict[str, dict[str, Sandbox]] = {}
        """By sandbox id, then by part; never an empty one."""
        self._schedule = schedule
        self._links_are_managed = links_are_managed
        self._second_looks = SecondLooks(kernel, workers, schedule)
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

    def begin(self, pod: Pod, placed: tuple[Placed, ...], rdma_cm: CharDevice | None, part: str = "") -> Sandbox:
        """Have a worker attach `placed`; `attach_done` of the result tells the end or the error."""
        sandbox = Sandbox(pod, part=part)
        sandbox.cdi_devices = cdi_devices_of(placed)
        parent = current_span()

        def work() -> None:
            with under(parent):
                self._attach(sandbox, placed, rdma_cm)

        with self._lock:
            sandbox.attach_done = self._workers.submit(pod.sandbox_id, work)
            self._sandboxes.setdefault(pod.sandbox_id, {})[part] = sandbox
        return sandbox

    def cover(self, sandbox: Sandbox, cdi_device: str, container: str) -> Future[None]:
        """Have another container of the sandbox covered by what it attached for a CDI device, because that container
        has the CDI device too."""
        return self._workers.submit(sandbox.pod.sandbox_id, lambda: self._cover(sandbox, cdi_device, container))

    def end(self, sandbox_id: str) -> Future[None] | None:
        """Have everything of a sandbox undone. Joinable: a second call gets the same future, which is done when the
        devices are home, however often that has to be tried. None: it holds nothing."""
        with self._lock:
            undos = [self._end(sandbox) for sandbox in self._sandboxes.get(sandbox_id, {}).values()]
        return joined(undos) if undos else None

    def _end(self, sandbox: Sandbox) -> Future[None]:
        """With the lock."""
        if sandbox.undo_done is None:
            sandbox.state = State.RETURNING
            sandbox.undo_done = Future()
            self._submit_undo(sandbox)
        return sandbox.undo_done

    def end_of_process(self, process: ProcessIdentity) -> None:
        """End the sandboxes that lived as long as this process."""
        for sandbox in self.all():
            record = sandbox.record
            known = record.process if record is not None else None  # none yet: its attach is under way
            if _lives_by_process(sandbox.pod) and sandbox.pod.pid == process.pid and known in {None, process}:
                log.info("the sandbox's process ended", extra={"pod": str(sandbox.pod), "pid": process.pid})
                self.end(sandbox.pod.sandbox_id)

    def recover(self, on_record: Callable[[SandboxRecord], None]) -> tuple[NriRdmaError, ...]:
        """Take up what an earlier daemon left: adopt what is attached, undo what was half done or is gone.

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
            self._take_up(record)
        return errors

    def _take_up(self, record: SandboxRecord) -> None:
        sandbox = Sandbox(record.pod, record)
        sandbox.namespace = self._open_again(record)
        with self._lock:
            self._sandboxes.setdefault(record.pod.sandbox_id, {})[record.part] = sandbox
        # A path that vanished before the sandbox was known here told nobody: look again.
        if record.state is State.ATTACHED and self._is_there(record):
            sandbox.attach_done.set_result(None)
            self.look_again(sandbox)  # nobody listened to the kernel meanwhile
            log.info("adopted", extra={"pod": str(record.pod), "sandbox": record.pod.sandbox_id})
        else:
            sandbox.attach_done.set_exception(_interrupted(record.pod))
            with self._lock:
                self._end(sandbox)

    def node_removed(self, number: tuple[int, int], sequence: int) -> None:
        """The kernel took a character device away. Those who have it read their numbers anew: it was a move or a driver
        that came back, and the numbers are another's now."""
        for sandbox in self.all():
            if sequence > sandbox.numbers_from and number in _numbers(sandbox):
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
            sandbox.looked_again = self._workers.submit(sandbox.pod.sandbox_id, lambda: self._renumber(sandbox))
            return sandbox.looked_again

    def held(self) -> int:
        """How many namespaces are held open: while they are, nothing in them can come home by itself."""
        return sum(1 for sandbox in self.all() if sandbox.namespace is not None)

    def close(self, busy: Collection[str] = ()) -> None:
        """Cancel pending retries and let all namespaces go; what is attached stays attached. After Workers.close, with
        the sandboxes that are still being worked on: theirs stay open, for who works with them."""
        with self._lock:
            self._closed = True
            sandboxes = self._all()
            cancels = [sandbox.cancel_retry for sandbox in sandboxes if sandbox.cancel_retry is not None]
        for cancel in cancels:
            cancel()
        self._second_looks.close()
        for sandbox in sandboxes:
            if sandbox.pod.sandbox_id not in busy:
                _let_go(sandbox)

    # -- in a worker -------------------------------------------------------------------------------------------------

    def _attach(self, sandbox: Sandbox, placed: tuple[Placed, ...], rdma_cm: CharDevice | None) -> None:
        pod = sandbox.pod
        with self._spans.span(
            "attach", {"k8s.pod.name": str(pod), "k8s.pod.uid": pod.uid, "sandbox": pod.sandbox_id}
        ) as span:
            try:
                record = self._attach_or_raise(sandbox, placed, rdma_cm)
                span.attributes["rdma.isolation"] = str(record.isolation or "")
            except BaseException as error:
                log.warning("attach failed", extra={"pod": str(pod), "error": str(error)})
                self._roll_back(sandbox)  # whatever went wrong, the host comes first
                raise

    def _attach_or_raise(
        self, sandbox: Sandbox, placed: tuple[Placed, ...], rdma_cm: CharDevice | None
    ) -> SandboxRecord:
        _refuse_ended(sandbox)
        try:
            record = self._plan(sandbox, placed, rdma_cm)
        except KernelError as error:
            raise AttachError(str(error), device=_device_names(placed), where=str(sandbox.pod)) from error
        steps = steps_of(record.plan)
        sandbox.steps_total = len(steps)
        with self._lock:
            _refuse_ended(sandbox)
            sandbox.state = State.ATTACHING
        self._write(record)
        sandbox.record = record
        if sandbox.namespace is not None:
            do_steps(self._kernel, sandbox.namespace, steps, self._spans, self._counting(sandbox))
        return self._finish_attach(sandbox, record)

    def _write(self, record: SandboxRecord) -> None:
        try:
            self._journal.write(record)
        except OSError as error:
            raise AttachError(
                f"the journal cannot be written: {error.strerror}",
                device=record.device_names,
                where=str(record.pod),
                hint="make room for the state directory",
                errno=error.errno,
            ) from error

    def _plan(self, sandbox: Sandbox, placed: tuple[Placed, ...], rdma_cm: CharDevice | None) -> SandboxRecord:
        """Observe, refuse, decide: nothing on the host changes here."""
        with self._spans.span("plan"):
            self._watch(sandbox.pod.netns_path)
            self._second_looks.take_now({netdev.ifindex for netdev in moving_netdevs(placed)})
            if needs_namespace(self._kernel, placed):
                sandbox.namespace = open_for(self._kernel, sandbox.pod)
            process = self._watch_process(sandbox.pod)
            record = prepare(self._kernel, sandbox.namespace, sandbox.pod, placed, rdma_cm)
            return replace(record, process=process, part=sandbox.part)

    def _counting(self, sandbox: Sandbox) -> Boundary:
        def boundary(place: str) -> None:
            self._boundary(place)
            if place.startswith("after "):
                sandbox.steps_done += 1
            _refuse_ended(sandbox)

        return boundary

    def _finish_attach(self, sandbox: Sandbox, record: SandboxRecord) -> SandboxRecord:
        sandbox.numbers_from = self._event_sequence()
        with self._spans.span("resolve-numbers"):
            resolved = self._presence.at_the_end(record, sandbox.namespace)
        sandbox.record = replace(resolved, state=State.ATTACHED)
        self._write(sandbox.record)
        with self._lock:
            if sandbox.state is not State.RETURNING:
                sandbox.state = State.ATTACHED
        log.info("attached", extra={"pod": str(sandbox.pod), "devices": sandbox.record.device_names})
        return sandbox.record

    def _renumber(self, sandbox: Sandbox) -> None:
        record, newest = sandbox.record, self._event_sequence()
        if record is None or sandbox.state is not State.ATTACHED:
            return  # not yet, or no longer: nobody gets these numbers
        with self._spans.span("resolve-numbers", {"k8s.pod.name": str(sandbox.pod), "sandbox": sandbox.pod.sandbox_id}):
            now = self._presence.again(record, sandbox.namespace)
        if now != record:
            self._write(now)
            sandbox.record = now
            log.info("devices have new names or numbers", extra={"pod": str(sandbox.pod)})
        sandbox.numbers_from = newest

    def _cover(self, sandbox: Sandbox, cdi_device: str, container: str) -> None:
        record = sandbox.record
        if record is None or sandbox.state is not State.ATTACHED:
            raise _interrupted(sandbox.pod)
        covering = record.covering(cdi_device, container)
        self._write(covering)
        sandbox.record = covering

    def _roll_back(self, sandbox: Sandbox) -> None:
        """Undo within the attach itself, so that its error is told when the host is as before."""
        with self._lock:
            if sandbox.undo_done is not None:
                return  # somebody ended the sandbox: that undo is next in the queue
            sandbox.state = State.RETURNING
            sandbox.undo_done = Future()
        self._undo(sandbox)

    def _submit_undo(self, sandbox: Sandbox, attempt: int = 0) -> None:
        parent = current_span()

        def work() -> None:
            with under(parent):
                self._undo(sandbox, attempt)

        self._workers.submit(sandbox.pod.sandbox_id, work, urgent=True)

    def _undo(self, sandbox: Sandbox, attempt: int = 0) -> None:
        """Undo, or see to it that it is tried again. The only place where a sandbox becomes `gone`."""
        pod = sandbox.pod
        try:
            if not sandbox.is_home:
                self._bring_home(sandbox)
            self._on_gone(sandbox.key)
        except Exception as error:  # noqa: BLE001 - hardware is at stake: whatever it was, it is tried again
            self._retry_undo(sandbox, error, attempt)
            return
        with self._lock:
            sandbox.state, sandbox.undo_error, sandbox.cancel_retry = State.GONE, "", None
            self._forget(sandbox)
        assert sandbox.undo_done is not None  # who submits an undo makes it
        sandbox.undo_done.set_result(None)
        if sandbox.record is not None:
            log.info("returned", extra={"pod": str(pod), "devices": sandbox.record.device_names})

    def _forget(self, sandbox: Sandbox) -> None:
        """With the lock."""
        parts = self._sandboxes.get(sandbox.pod.sandbox_id, {})
        if parts.get(sandbox.part) is sandbox:
            del parts[sandbox.part]
            if not parts:
                del self._sandboxes[sandbox.pod.sandbox_id]

    def _bring_home(self, sandbox: Sandbox) -> None:
        """undo(journal). Raises when anything is not as before."""
        pod = sandbox.pod
        if sandbox.record is not None:
            self._note_returning(sandbox, sandbox.record)
            attributes: dict[str, str | int | float | bool] = {
                "k8s.pod.name": str(pod),
                "k8s.pod.uid": pod.uid,
                "sandbox": pod.sandbox_id,
            }
            with self._spans.span("undo", attributes):
                errors = undo_steps(self._kernel, sandbox.namespace, steps_of(sandbox.record.plan), self._spans)
            if errors:
                raise ExceptionGroup("; ".join(str(error) for error in errors), errors)
            if self._links_are_managed():
                self._second_looks.expect(sandbox.record.plan.moves)
        self._journal.remove(sandbox.key)
        _let_go(sandbox)
        sandbox.is_home = True

    def _note_returning(self, sandbox: Sandbox, record: SandboxRecord) -> None:
        """A daemon that starts anew must not adopt what is half way home."""
        if record.state is State.RETURNING:
            return
        sandbox.record = replace(record, state=State.RETURNING)
        try:
            self._journal.write(sandbox.record)
        except OSError as error:  # a full disk must not keep hardware in a pod
            log.warning("journal not written", extra={"pod": str(sandbox.pod), "error": str(error)})

    def _retry_undo(self, sandbox: Sandbox, error: Exception, attempt: int) -> None:
        """Keep the devices as held and try again, for as long as the daemon lives, with growing pauses."""
        sandbox.undo_error = error.message if isinstance(error, ExceptionGroup) else str(error)
        log.error("undo failed, trying again", extra={"pod": str(sandbox.pod), "error": sandbox.undo_error})
        if attempt >= len(RETRY_SECONDS) and sandbox.record is not None and _all_physical(sandbox.record.plan):
            _let_go(sandbox)
        with self._lock:
            if not self._closed:
                sandbox.cancel_retry = self._schedule(
                    RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)],
                    lambda: self._submit_undo(sandbox, attempt + 1),
                )

    def _watch(self, path: str) -> None:
        """Before the namespace is opened: a removal after that is told, one before it makes opening fail."""
        if not path:
            return
        try:
            self._on_held(path)
        except OSError as error:  # without the watch its end is noticed by the next Synchronize
            log.warning("namespace is not watched", extra={"path": path, "error": str(error)})

    def _watch_process(self, pod: Pod) -> ProcessIdentity | None:
        """For a pod whose end no namespace tells: the process that does; None when that cannot be seen."""
        if not _lives_by_process(pod):
            return None
        try:
            return self._processes.watch(pod.pid)
        except OSError as error:  # perhaps we have PIDs of our own: without the watch the next Synchronize tells
            log.warning("process is not watched", extra={"pod": str(pod), "pid": pod.pid, "error": str(error)})
            return None

    def _process_is_there(self, process: ProcessIdentity | None) -> bool:
        """Whether a process that was watched still is the one it was; True where none was."""
        if process is None:
            return True
        try:
            self._processes.watch_again(process)
        except ProcessLookupError:
            return False
        except OSError as error:  # as in _watch_process
            log.warning("process is not watched", extra={"pid": process.pid, "error": str(error)})
        return True

    def _open_again(self, record: SandboxRecord) -> Namespace | None:
        """The namespace of a record that holds one, if it is still the same; paths are used again, cookies are not."""
        self._watch(record.pod.netns_path)
        if record.namespace is None:
            return None
        try:
            namespace = self._kernel.open_namespace(record.namespace.path)
        except KernelError as error:
            log.info("namespace is gone", extra={"path": record.namespace.path, "error": str(error)})
            return None
        if namespace.identity != record.namespace:
            namespace.close()
            return None
        return namespace

    def _is_there(self, record: SandboxRecord) -> bool:
        """Whether the pod's namespace is still at its path, and the same where we know which one it was; of a pod
        without one, whether its process is."""
        if not record.pod.netns_path:
            return self._process_is_there(record.process)
        try:
            namespace = self._kernel.open_namespace(record.pod.netns_path)
        except KernelError:
            return False
        namespace.close()
        return record.namespace is None or namespace.identity == record.namespace


def joined(futures: list[Future[None]]) -> Future[None]:
    """Done when all of them are."""
    if len(futures) == 1:
        return futures[0]
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


def _lives_by_process(pod: Pod) -> bool:
    """Whether only a process tells the end of this pod: it is on the host's network."""
    return not pod.netns_path and pod.pid != 0


def _numbers(sandbox: Sandbox) -> frozenset[tuple[int, int]]:
    """Of the character devices that containers of an attached sandbox get."""
    record = sandbox.record
    if record is None or sandbox.state is not State.ATTACHED:
        return frozenset()
    nodes = [node for it in record.attached for item in it.devices for node in item.device.char_devices]
    return frozenset((node.major, node.minor) for node in nodes)


def _let_go(sandbox: Sandbox) -> None:
    namespace, sandbox.namespace = sandbox.namespace, None
    if namespace is not None:
        namespace.close()


def _all_physical(plan: Plan) -> bool:
    """Only these come home by themselves; a virtual netdev would die with its namespace."""
    return all(move.link.parent for move in plan.moves)


def _refuse_ended(sandbox: Sandbox) -> None:
    if sandbox.state is State.RETURNING:
        raise _interrupted(sandbox.pod)


def _interrupted(pod: Pod) -> NotReadyError:
    return NotReadyError(
        ErrorCode.RETURNING,
        "this sandbox is being taken down, its devices go back",
        where=str(pod),
        hint="nothing to do: the kubelet makes a new sandbox",
    )


def _device_names(placed: tuple[Placed, ...]) -> str:
    return ", ".join(device.name for item in placed for device in item.devices)

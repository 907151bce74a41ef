"""The sandboxes that hold devices: their states, their workers, their end.

States: planned -> attaching -> attached -> returning -> gone. A failed attach undoes itself. `returning` never goes
back. Everything is keyed by sandbox id: two sandboxes of one pod UID may exist at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from nri_rdma.attach.journal import Journal
from nri_rdma.attach.plan import Plan, moving_netdevs, plan_attach
from nri_rdma.attach.port import Kernel, KernelError, Namespace, NamespaceIdentity
from nri_rdma.attach.record import SandboxRecord, State
from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.transaction import Boundary, do_steps, no_boundary, undo_steps
from nri_rdma.attach.workers import Workers
from nri_rdma.errors import AttachError, ErrorCode, NotReadyError, NriRdmaError, PlacementError
from nri_rdma.inject import AttachedDevice, AttachedRequest
from nri_rdma.inventory import in_use_reasons
from nri_rdma.model.device import CharDevice, RdmaDevice
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import Mode
from nri_rdma.observe.spans import Recorder, current_span, under
from nri_rdma.placement import Placed

log = logging.getLogger(__name__)

Resolve = Callable[[RdmaDevice], RdmaDevice]
"""Reads the character devices of a device anew: the attach's last step."""

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)


class Sandbox:
    """One sandbox that has, gets or had devices. Its worker writes it; others read it."""

    def __init__(self, pod: Pod, record: SandboxRecord | None = None) -> None:
        self.pod = pod
        self.state = record.state if record is not None else State.PLANNED
        self.record = record
        self.namespace: Namespace | None = None
        self.attach_done: Future[None] = Future()
        self.undo_done: Future[None] | None = None
        self.undo_error = ""
        self.steps_done = 0
        self.steps_total = 0


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
        boundary: Boundary = no_boundary,
    ) -> None:
        self._kernel = kernel
        self._journal = journal
        self._workers = workers
        self._spans = spans
        self._resolve = resolve
        self._on_held = on_held
        self._on_gone = on_gone
        self._boundary = boundary
        self._lock = threading.Lock()
        self._sandboxes: dict[str, Sandbox] = {}
        self._timers: set[threading.Timer] = set()

    def get(self, sandbox_id: str) -> Sandbox | None:
        """The sandbox of that id, if it holds anything."""
        return self._sandboxes.get(sandbox_id)

    def all(self) -> tuple[Sandbox, ...]:
        """All sandboxes that hold anything, oldest first."""
        with self._lock:
            return tuple(self._sandboxes.values())

    def begin(self, pod: Pod, placed: tuple[Placed, ...], rdma_cm: CharDevice | None) -> Sandbox:
        """Have a worker attach `placed`; `attach_done` of the result tells the end or the error."""
        sandbox = Sandbox(pod)
        with self._lock:
            self._sandboxes[pod.sandbox_id] = sandbox
        parent = current_span()

        def work() -> None:
            with under(parent):
                self._attach(sandbox, placed, rdma_cm)

        sandbox.attach_done = self._workers.submit(pod.sandbox_id, work)
        return sandbox

    def end(self, sandbox_id: str) -> Future[None] | None:
        """Have everything of a sandbox undone. Joinable: a second call gets the same future. None: it holds nothing."""
        with self._lock:
            sandbox = self._sandboxes.get(sandbox_id)
            if sandbox is None:
                return None
            if sandbox.undo_done is not None:
                return sandbox.undo_done
            sandbox.state = State.RETURNING
            sandbox.undo_done = self._submit_undo(sandbox)
            return sandbox.undo_done

    def recover(self, on_record: Callable[[SandboxRecord], None]) -> tuple[NriRdmaError, ...]:
        """Take up what an earlier daemon left: adopt what is attached, undo what was half done or is gone.

        Called once, before any door opens; `on_record` is told every record before anything is done with it. Returns an
        error for every journal file that had to be set aside.
        """
        records, errors = self._journal.load()
        for record in records:
            on_record(record)
            sandbox = Sandbox(record.pod, record)
            sandbox.namespace = self._open_again(record.namespace)
            with self._lock:
                self._sandboxes[record.pod.sandbox_id] = sandbox
            namespace_gone = record.namespace is not None and sandbox.namespace is None
            if record.state is State.ATTACHED and not namespace_gone:
                sandbox.attach_done.set_result(None)
                log.info("adopted", extra={"pod": str(record.pod), "sandbox": record.pod.sandbox_id})
            else:
                sandbox.attach_done.set_exception(_interrupted(record.pod))
                self.end(record.pod.sandbox_id)
        return errors

    def held(self) -> int:
        """How many namespaces are held open: while they are, nothing in them can come home by itself."""
        return sum(1 for sandbox in self.all() if sandbox.namespace is not None)

    def close(self) -> None:
        """Cancel pending retries and let all namespaces go; what is attached stays attached."""
        with self._lock:
            timers, sandboxes = tuple(self._timers), tuple(self._sandboxes.values())
            self._timers.clear()
        for timer in timers:
            timer.cancel()
        for sandbox in sandboxes:
            if sandbox.namespace is not None:
                sandbox.namespace.close()

    # -- in a worker -------------------------------------------------------------------------------------------------

    def _attach(self, sandbox: Sandbox, placed: tuple[Placed, ...], rdma_cm: CharDevice | None) -> None:
        pod = sandbox.pod
        with self._spans.span("attach", {"k8s.pod.name": str(pod), "k8s.pod.uid": pod.uid, "sandbox": pod.sandbox_id}):
            try:
                self._attach_or_raise(sandbox, placed, rdma_cm)
            except BaseException:
                self._roll_back(sandbox)  # whatever went wrong, the host comes first
                raise

    def _attach_or_raise(self, sandbox: Sandbox, placed: tuple[Placed, ...], rdma_cm: CharDevice | None) -> None:
        if sandbox.state is State.RETURNING:
            raise _interrupted(sandbox.pod)
        try:
            record = self._plan(sandbox, placed, rdma_cm)
        except KernelError as error:
            raise AttachError(str(error), device=_device_names(placed), where=str(sandbox.pod)) from error
        steps = steps_of(record.plan)
        sandbox.record, sandbox.steps_total = record, len(steps)
        sandbox.state = State.ATTACHING
        self._journal.write(record)
        if sandbox.namespace is not None:
            do_steps(self._kernel, sandbox.namespace, steps, self._spans, self._counting(sandbox))
        self._finish_attach(sandbox, record)

    def _plan(self, sandbox: Sandbox, placed: tuple[Placed, ...], rdma_cm: CharDevice | None) -> SandboxRecord:
        """Observe, refuse, decide: nothing on the host changes here."""
        pod, kernel = sandbox.pod, self._kernel
        netdevs = moving_netdevs(placed)
        plan = Plan()
        with self._spans.span("plan"):
            if netdevs:
                sandbox.namespace = self._open_for(pod)
                links = kernel.links(kernel.host)
                defaults = kernel.default_route_links()
                present = {link.ifindex for link in links}
                captured = {
                    netdev.ifindex: kernel.capture(kernel.host, netdev.ifindex)
                    for netdev in netdevs
                    if netdev.ifindex in present
                }
                for link in captured.values():
                    _refuse_use(in_use_reasons(link, links, defaults))
                names = frozenset(link.name for link in kernel.links(sandbox.namespace))
                plan = plan_attach(placed, captured, names)
        return SandboxRecord(
            pod=pod,
            state=State.ATTACHING,
            namespace=sandbox.namespace.identity if sandbox.namespace is not None else None,
            plan=plan,
            attached=_attached(placed, plan),
            rdma_cm=rdma_cm,
        )

    def _open_for(self, pod: Pod) -> Namespace:
        if not pod.netns_path:
            raise PlacementError(
                ErrorCode.NO_NETWORK_NAMESPACE,
                "the runtime names no network namespace for this pod",
                where=str(pod),
                hint="a pod with hostNetwork can only ask for mode: shared",
            )
        namespace = self._kernel.open_namespace(pod.netns_path)
        if namespace.is_host:
            namespace.close()
            raise PlacementError(
                ErrorCode.HOST_NETWORK,
                "this pod runs on the host's network: a netdev cannot be moved into it",
                where=str(pod),
                hint="ask for mode: shared, or take hostNetwork away",
            )
        self._on_held(pod.netns_path)
        return namespace

    def _counting(self, sandbox: Sandbox) -> Boundary:
        def boundary(place: str) -> None:
            self._boundary(place)
            if place.startswith("after "):
                sandbox.steps_done += 1
            if sandbox.state is State.RETURNING:
                raise _interrupted(sandbox.pod)

        return boundary

    def _finish_attach(self, sandbox: Sandbox, record: SandboxRecord) -> None:
        with self._spans.span("resolve-numbers"):
            attached = tuple(
                replace(
                    request,
                    devices=tuple(replace(item, device=self._resolve(item.device)) for item in request.devices),
                )
                for request in record.attached
            )
        sandbox.record = replace(record, state=State.ATTACHED, attached=attached)
        self._journal.write(sandbox.record)
        with self._lock:
            if sandbox.state is not State.RETURNING:
                sandbox.state = State.ATTACHED
        log.info("attached", extra={"pod": str(sandbox.pod), "devices": sandbox.record.device_names})

    def _roll_back(self, sandbox: Sandbox) -> None:
        """Undo within the attach itself, so that its error is told when the host is as before; else retry later."""
        with self._lock:
            sandbox.state = State.RETURNING
        self._undo(sandbox)

    def _submit_undo(self, sandbox: Sandbox) -> Future[None]:
        parent = current_span()

        def work() -> None:
            with under(parent):
                self._undo(sandbox)

        return self._workers.submit(sandbox.pod.sandbox_id, work, urgent=True)

    def _undo(self, sandbox: Sandbox, attempt: int = 0) -> None:
        if sandbox.state is State.GONE:
            return
        errors: tuple[NriRdmaError, ...] = ()
        pod = sandbox.pod
        if sandbox.record is not None:
            steps = steps_of(sandbox.record.plan)
            with self._spans.span(
                "undo", {"k8s.pod.name": str(pod), "k8s.pod.uid": pod.uid, "sandbox": pod.sandbox_id}
            ):
                errors = undo_steps(self._kernel, sandbox.namespace, steps, self._spans)
        if errors:
            self._retry_undo(sandbox, errors, attempt)
            return
        self._journal.remove(pod.sandbox_id)
        if sandbox.namespace is not None:
            sandbox.namespace.close()
            sandbox.namespace = None
        with self._lock:
            sandbox.state = State.GONE
            if self._sandboxes.get(pod.sandbox_id) is sandbox:
                del self._sandboxes[pod.sandbox_id]
        self._on_gone(pod.sandbox_id)
        if sandbox.record is not None:
            log.info("returned", extra={"pod": str(pod), "devices": sandbox.record.device_names})

    def _retry_undo(self, sandbox: Sandbox, errors: tuple[NriRdmaError, ...], attempt: int) -> None:
        """Keep the devices as held and try again, for as long as the daemon lives, with growing pauses."""
        sandbox.undo_error = "; ".join(str(error) for error in errors)
        log.error("undo failed, trying again", extra={"pod": str(sandbox.pod), "error": sandbox.undo_error})
        pause = RETRY_SECONDS[min(attempt, len(RETRY_SECONDS) - 1)]
        timer = threading.Timer(
            pause,
            lambda: self._workers.submit(sandbox.pod.sandbox_id, lambda: self._undo(sandbox, attempt + 1), urgent=True),
        )
        timer.daemon = True
        with self._lock:
            self._timers.add(timer)
        timer.start()

    def _open_again(self, identity: NamespaceIdentity | None) -> Namespace | None:
        """The namespace of a record, if it is still the same one; paths are used again, cookies are not."""
        if identity is None:
            return None
        try:
            namespace = self._kernel.open_namespace(identity.path)
        except KernelError as error:
            log.info("namespace is gone", extra={"path": identity.path, "error": str(error)})
            return None
        if namespace.identity != identity:
            namespace.close()
            return None
        self._on_held(identity.path)
        return namespace


def _attached(placed: tuple[Placed, ...], plan: Plan) -> tuple[AttachedRequest, ...]:
    """What the pod will have, with the netdev names as they will be in it."""
    in_pod = {move.link.ifindex: move.pod_name for move in plan.moves}
    return tuple(
        AttachedRequest(
            admitted=item.admitted,
            devices=tuple(
                AttachedDevice(
                    device=device,
                    netdev_names=tuple(in_pod.get(netdev.ifindex, netdev.name) for netdev in device.netdevs)
                    if item.admitted.mode is Mode.EXCLUSIVE
                    else (),
                )
                for device in item.devices
            ),
        )
        for item in placed
    )


def _refuse_use(reasons: tuple[str, ...]) -> None:
    if reasons:
        raise PlacementError(
            ErrorCode.DEVICE_IN_USE,
            f"the host uses this device: {'; '.join(reasons)}",
            hint="free it on the host, or ask for another device",
        )


def _interrupted(pod: Pod) -> NotReadyError:
    return NotReadyError(
        ErrorCode.RETURNING,
        "this sandbox is being taken down, its devices go back",
        where=str(pod),
        hint="nothing to do: the kubelet makes a new sandbox",
    )


def _device_names(placed: tuple[Placed, ...]) -> str:
    return ", ".join(device.name for item in placed for device in item.devices)

"""The sandboxes of a dry run: planned as Sandboxes plans them, and never attached.

Law: nothing here can change a host. There are no steps, no journal and no open namespace; a sandbox is "attached" with
the record that a real one would have, so that its containers are answered for by the same code.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, replace

from nri_rdma.attach.attachment import Again, Choose, Chosen, Sandbox, cdi_devices_of
from nri_rdma.attach.numbers import Resolve, with_char_devices
from nri_rdma.attach.port import KernelError, NamespaceIdentity
from nri_rdma.attach.record import SandboxRecord, State
from nri_rdma.attach.survey import Host, needs_namespace, open_for, prepare, refuse_held
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import AttachError, PlacementError
from nri_rdma.model.device import CharDevice
from nri_rdma.model.pod import Pod
from nri_rdma.tasks.waiting import settled
from nri_rdma.tasks.workers import Workers

READ_S = 60.0
"""For a worker of a dry run: the node is read anew."""


@dataclass(frozen=True, slots=True)
class Unopened:
    """A network namespace that is only named."""

    identity: NamespaceIdentity
    is_host: bool

    def rest(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""


class PlannedSandboxes:
    """What Lifecycle asks of Sandboxes, without effects. `on_gone` is told when a sandbox has ended."""

    def __init__(self, host: Host, workers: Workers, resolve: Resolve, on_gone: Callable[[str], None]) -> None:
        self._host = host
        self._workers = workers
        self._resolve = resolve
        self._on_gone = on_gone
        self._lock = threading.Lock()
        self._sandboxes: dict[str, dict[str, Sandbox]] = {}

    def knows(self, sandbox_id: str) -> bool:
        """Whether the sandbox of that id would hold anything."""
        return sandbox_id in self._sandboxes

    def get(self, sandbox_id: str) -> Sandbox | None:
        """What the sandbox of that id would be given at its start, if that is anything."""
        return self._sandboxes.get(sandbox_id, {}).get("")

    def of(self, sandbox_id: str) -> tuple[Sandbox, ...]:
        """All that the sandbox of that id would hold, by part, oldest first."""
        with self._lock:
            return tuple(self._sandboxes.get(sandbox_id, {}).values())

    def all(self) -> tuple[Sandbox, ...]:
        """All sandboxes that would hold anything, each of their parts, oldest first."""
        with self._lock:
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
        """Have a worker plan; `planned` and `attach_done` of the result tell the end or the refusal."""
        chosen = Chosen(placed=placed, rdma_cm=rdma_cm)
        sandbox = Sandbox(pod, part=part, attempts=attempts)
        sandbox.cdi_devices, sandbox.again = cdi_devices_of(placed), again
        return self._begin(sandbox, lambda: chosen)

    def begin_after(
        self,
        older: Collection[Future[None]],
        pod: Pod,
        choose: Choose,
        attempts: int = 1,
        again: Again | None = None,
    ) -> Sandbox:
        """The same with what a worker chooses; what is older ended at once."""
        sandbox = Sandbox(pod, attempts=attempts)
        sandbox.again = again
        return self._begin(sandbox, choose)

    def _begin(self, sandbox: Sandbox, choose: Choose) -> Sandbox:
        with self._lock:
            self._sandboxes.setdefault(sandbox.pod.sandbox_id, {})[sandbox.part] = sandbox
            done = self._workers.submit(sandbox.pod.sandbox_id, lambda: self._plan(sandbox, choose()))
            sandbox.planned = sandbox.attach_done = done
        return sandbox

    def end(self, sandbox_id: str) -> Future[None] | None:
        """The sandbox holds nothing any more; the future is done. None: it held nothing."""
        with self._lock:
            parts = self._sandboxes.pop(sandbox_id, {})
        if not parts:
            return None
        done: Future[None] = Future()
        for sandbox in parts.values():
            self._end(sandbox, done)
        done.set_result(None)
        return done

    def cover(self, sandbox: Sandbox, cdi_device: str, container: str) -> Future[None]:
        """Another container of the sandbox would be covered, too."""
        done: Future[None] = Future()
        if sandbox.record is not None:
            sandbox.record = sandbox.record.covering(cdi_device, container)
        done.set_result(None)
        return done

    def _end(self, sandbox: Sandbox, done: Future[None]) -> None:
        sandbox.state, sandbox.undo_done = State.GONE, done
        self._on_gone(sandbox.key)

    def _drop(self, sandbox: Sandbox) -> None:
        """Its plan was refused."""
        with self._lock:
            parts = self._sandboxes.get(sandbox.pod.sandbox_id, {})
            if parts.get(sandbox.part) is sandbox:
                del parts[sandbox.part]
                if not parts:
                    del self._sandboxes[sandbox.pod.sandbox_id]
        done: Future[None] = Future()
        self._end(sandbox, done)
        done.set_result(None)

    def look_again(self, sandbox: Sandbox) -> Future[None]:
        """Nothing of it is in a pod, where it could change: what was planned stays true."""
        return sandbox.attach_done

    def is_there(self, pod: Pod) -> bool:
        """Whether the pod's namespace is there."""
        try:
            self._host.open_namespace(pod.netns_path).close()
        except KernelError:
            return False
        return True

    def _plan(self, sandbox: Sandbox, chosen: Chosen) -> None:
        pod = sandbox.pod
        try:
            planned = self._planned_at_last(sandbox, chosen)
            sandbox.record = replace(planned, state=State.ATTACHED, part=sandbox.part)
        except KernelError as error:
            self._drop(sandbox)
            raise AttachError(str(error), device=chosen.device_names, where=str(pod)) from error
        except BaseException:
            self._drop(sandbox)
            raise
        with self._lock:
            if sandbox.state is State.PLANNED:
                sandbox.state = State.ATTACHED

    def _planned_at_last(self, sandbox: Sandbox, chosen: Chosen) -> SandboxRecord:
        """What the attach would come to that looks for something else once, as a daemon's does."""
        try:
            return self._planned(sandbox.pod, chosen)
        except PlacementError:
            if sandbox.again is None:
                raise
            settled(sandbox.again.read(), READ_S)
        return self._planned(sandbox.pod, sandbox.again.choose())

    def _planned(self, pod: Pod, chosen: Chosen) -> SandboxRecord:
        namespace = open_for(self._host, pod) if needs_namespace(self._host, chosen.placed) else None
        record = prepare(self._host, namespace, pod, chosen.placed, chosen.rdma_cm)
        refuse_held(self._host, record)
        return with_char_devices(record, self._resolve)

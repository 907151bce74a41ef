"""What a thread does for one sandbox: plan, attach, look again, bring home.

Law: what will be done is in the journal before anything is touched, and stays there until everything is home. All of
this blocks on the kernel. Who calls sees to it that one thread at a time works on a sandbox (attach/attachments.py).
"""

from __future__ import annotations

import errno
import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from nri_rdma.attach.attachment import Chosen, Sandbox, interrupted
from nri_rdma.attach.journal import Journal
from nri_rdma.attach.liveness import Ends
from nri_rdma.attach.plan import NetdevMove, Plan, moving_netdevs
from nri_rdma.attach.port import Kernel, KernelError, Namespace
from nri_rdma.attach.presence import Presence
from nri_rdma.attach.record import SandboxRecord, State
from nri_rdma.attach.return_netdev import remove_foreign_names
from nri_rdma.attach.second_look import SecondLooks
from nri_rdma.attach.steps import Step, steps_of
from nri_rdma.attach.survey import completed, needs_namespace, open_for, prepare, refuse_held
from nri_rdma.attach.transaction import Boundary, do_steps, undo_steps
from nri_rdma.errors import AttachError
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Recorder

log = logging.getLogger(__name__)


class Work:
    """The parts of a sandbox's life that touch the kernel and the journal."""

    def __init__(
        self,
        kernel: Kernel,
        journal: Journal,
        spans: Recorder,
        presence: Presence,
        ends: Ends,
        second_looks: SecondLooks,
        *,
        event_sequence: Callable[[], int],
        links_are_managed: Callable[[], bool],
        boundary: Boundary,
    ) -> None:
        """As Sandboxes has them."""
        self._kernel = kernel
        self._journal = journal
        self._spans = spans
        self._presence = presence
        self._ends = ends
        self._second_looks = second_looks
        self._event_sequence = event_sequence
        self._links_are_managed = links_are_managed
        self._boundary = boundary

    def plan(self, sandbox: Sandbox, chosen: Chosen) -> None:
        """Observe, refuse, decide: nothing on the host changes here. Raises what refuses the sandbox."""
        self._boundary(f"before plan {sandbox.key}")
        try:
            decided = self._decide(sandbox, chosen)
        except KernelError as error:
            raise AttachError(str(error), device=chosen.device_names, where=str(sandbox.pod)) from error
        self._boundary(f"after plan {sandbox.key}")
        sandbox.refuse_ended()
        self._refuse_unwritable(decided)
        # Nothing of it may be undone as long as it has not been captured.
        sandbox.record, sandbox.decided = replace(decided, plan=Plan()), decided.plan

    def note_plan(self, sandbox: Sandbox) -> None:
        """Write down who gets what, for a daemon that starts anew. Nothing depends on it but that: where it cannot be
        written the attach will fail, which writes the whole plan."""
        assert sandbox.record is not None  # it is planned
        try:
            self._write(sandbox.record)
        except AttachError as error:
            log.warning("journal not written", extra={"pod": str(sandbox.pod), "error": str(error)})

    def attach(self, sandbox: Sandbox) -> SandboxRecord:
        """Do what is planned; the record with what the containers get. Raises AttachError, and NotReadyError when the
        sandbox ends meanwhile; the caller undoes."""
        record = self._begun(sandbox)
        steps = steps_of(record.plan)
        boundary = self._counting(sandbox, steps)
        if sandbox.namespace is not None:
            do_steps(self._kernel, sandbox.namespace, steps, self._spans, boundary)
        return self._confirm(sandbox, record)

    def _begun(self, sandbox: Sandbox) -> SandboxRecord:
        """The journal has the whole plan, with all that the links carry: from here on there is something to undo."""
        sandbox.advance(State.ATTACHING)
        planned = sandbox.record
        assert planned is not None  # it is planned
        with self._spans.span("capture"):
            try:
                refuse_held(self._kernel, planned)
                plan = completed(self._kernel, sandbox.decided)
            except KernelError as error:
                raise AttachError(str(error), device=planned.device_names, where=str(planned.pod)) from error
        record = replace(planned, plan=plan, state=State.ATTACHING)
        sandbox.refuse_ended()
        self._write(record)
        sandbox.record = record
        return record

    def look_again(self, sandbox: Sandbox) -> None:
        """Read names and numbers of what is attached anew. Raises AttachError when one is not there any more."""
        record, newest = sandbox.record, self._event_sequence()
        if record is None or sandbox.state is not State.ATTACHED:
            return  # not yet, or no longer: nobody gets these numbers
        attributes: dict[str, str | int | float | bool] = {
            "k8s.pod.name": str(sandbox.pod),
            "sandbox": sandbox.pod.sandbox_id,
        }
        try:
            with self._spans.span("resolve-numbers", attributes):
                now = self._presence.again(record, sandbox.namespace)
        finally:
            _rest(sandbox)
        if now != record:
            self._write(now)
            sandbox.record = now
            log.info("devices have new names or numbers", extra={"pod": str(sandbox.pod)})
        sandbox.numbers_from = newest

    def cover(self, sandbox: Sandbox, cdi_device: str, container: str) -> None:
        """One more container has that CDI device."""
        record = sandbox.record
        if record is None or sandbox.state is not State.ATTACHED:
            raise interrupted(sandbox.pod)
        covering = record.covering(cdi_device, container)
        self._write(covering)
        sandbox.record = covering

    def bring_home(self, sandbox: Sandbox) -> None:
        """undo(journal). Raises when anything is not as before."""
        pod = sandbox.pod
        if sandbox.record is not None:
            if sandbox.ends:  # else it is tried again, and a daemon that starts anew begins it anew
                self._note_returning(sandbox, sandbox.record)
            attributes: dict[str, str | int | float | bool] = {
                "k8s.pod.name": str(pod),
                "k8s.pod.uid": pod.uid,
                "sandbox": pod.sandbox_id,
            }
            with self._spans.span("undo", attributes):
                steps = steps_of(sandbox.record.plan)
                errors = undo_steps(self._kernel, sandbox.namespace, steps, self._spans, self._boundary)
            if errors:
                raise ExceptionGroup("; ".join(str(error) for error in errors), errors)
            if self._links_are_managed():
                self._second_looks.expect(sandbox.record.plan.moves)
        self._boundary(f"before forget-journal {sandbox.key}")
        self._journal.remove(sandbox.key)
        self._boundary(f"after forget-journal {sandbox.key}")
        let_go(sandbox)

    def leave_to_kernel(self, sandbox: Sandbox) -> None:
        """Let the namespace of a sandbox go whose undo fails: the kernel moves physical netdevs to the host when it
        ends. Remove the pod's alternative names before, as far as possible: the kernel keeps them on a netdev."""
        if sandbox.namespace is not None and sandbox.record is not None:
            for move in sandbox.record.plan.moves:
                self._remove_foreign_names(sandbox.pod, sandbox.namespace, move)
        let_go(sandbox)

    # -- below -------------------------------------------------------------------------------------------------------

    def _remove_foreign_names(self, pod: Pod, namespace: Namespace, move: NetdevMove) -> None:
        try:
            remove_foreign_names(self._kernel, namespace, move)
        except KernelError as error:  # a namespace that is held would keep the device from everybody
            facts = {"pod": str(pod), "device": move.device, "error": str(error)}
            log.warning("alternative names not removed", extra=facts)

    def _decide(self, sandbox: Sandbox, chosen: Chosen) -> SandboxRecord:
        with self._spans.span("plan"):
            self._ends.watch(sandbox.pod.netns_path)
            self._second_looks.take_now({netdev.ifindex for netdev in moving_netdevs(chosen.placed)})
            if needs_namespace(self._kernel, chosen.placed):
                sandbox.namespace = open_for(self._kernel, sandbox.pod)
            process = self._ends.watch_process(sandbox.pod)
            record = prepare(self._kernel, sandbox.namespace, sandbox.pod, chosen.placed, chosen.rdma_cm)
            self._presence.refuse_elsewhere(record, sandbox.namespace)
            return replace(record, process=process, part=sandbox.part)

    def _counting(self, sandbox: Sandbox, steps: tuple[Step, ...]) -> Boundary:
        """Counts the devices all of whose steps are done, and stops between two steps of a sandbox that ends."""
        left = Counter(step.device for step in steps)
        sandbox.devices_done, sandbox.devices_total = 0, len(left)

        def boundary(place: str) -> None:
            self._boundary(place)
            if place.startswith("after "):
                device = place.rpartition(" ")[2]
                left[device] -= 1
                sandbox.devices_done += left[device] == 0
            sandbox.refuse_ended()

        return boundary

    def _confirm(self, sandbox: Sandbox, record: SandboxRecord) -> SandboxRecord:
        """Read the numbers, which the moves have changed; from here on containers get them."""
        sandbox.numbers_from = self._event_sequence()
        self._boundary(f"before resolve-numbers {sandbox.key}")
        with self._spans.span("resolve-numbers"):
            resolved = self._presence.at_the_end(record, sandbox.namespace)
        self._boundary(f"after resolve-numbers {sandbox.key}")
        confirmed = replace(resolved, state=State.ATTACHED)
        self._write(confirmed)
        sandbox.record = confirmed
        sandbox.advance(State.ATTACHED)
        _rest(sandbox)
        log.info("attached", extra={"pod": str(sandbox.pod), "devices": confirmed.device_names})
        return confirmed

    def _refuse_unwritable(self, record: SandboxRecord) -> None:
        """While the sandbox can still be refused: the worker will want to write what it is given."""
        try:
            has_room = self._journal.has_room()
        except OSError as error:
            raise _unwritten(record, error.errno) from error
        if not has_room:
            raise _unwritten(record, errno.ENOSPC)

    def _write(self, record: SandboxRecord) -> None:
        self._boundary(f"before write-journal {record.key}")
        try:
            self._journal.write(record)
        except OSError as error:
            raise _unwritten(record, error.errno) from error
        self._boundary(f"after write-journal {record.key}")

    def _note_returning(self, sandbox: Sandbox, record: SandboxRecord) -> None:
        """A daemon that starts anew must not adopt what is half way home."""
        if record.state is State.RETURNING:
            return
        sandbox.record = replace(record, state=State.RETURNING)
        self._boundary(f"before write-journal {record.key}")
        try:
            self._journal.write(sandbox.record)
        except OSError as error:  # a full disk must not keep hardware in a pod
            log.warning("journal not written", extra={"pod": str(sandbox.pod), "error": str(error)})
        self._boundary(f"after write-journal {record.key}")


def _unwritten(record: SandboxRecord, number: int | None) -> AttachError:
    return AttachError(
        f"the journal cannot be written: {os.strerror(number or 0)}",
        device=record.device_names,
        where=str(record.pod),
        hint="make room for the state directory",
        errno=number,
    )


def _rest(sandbox: Sandbox) -> None:
    """What is attached needs its namespace open and no more: no thread, no socket."""
    if sandbox.namespace is not None:
        sandbox.namespace.rest()


def let_go(sandbox: Sandbox) -> None:
    """Close the sandbox's namespace, if it is held."""
    namespace, sandbox.namespace = sandbox.namespace, None
    if namespace is not None:
        namespace.close()


def all_physical(plan: Plan) -> bool:
    """Only these come home by themselves; a virtual netdev would die with its namespace."""
    return all(move.link.parent for move in plan.moves)

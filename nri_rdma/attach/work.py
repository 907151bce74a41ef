"""The tasks of an attachment on a host: plan, attach, reread names and numbers, return the devices.

Law: before anything on the host changes, the journal says what will be done, and it says so until everything is
restored. All tasks block on the kernel. attach/state_machine.py ensures that one thread at a time works on an
attachment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from nri_rdma.attach.attachment import Attachment, Selection, interrupted
from nri_rdma.attach.journal import Journal
from nri_rdma.attach.journal_writer import JournalWriter
from nri_rdma.attach.last_look import last_look
from nri_rdma.attach.liveness import Ends
from nri_rdma.attach.lost import LostNetdevs
from nri_rdma.attach.numbers import Resolve
from nri_rdma.attach.plan import NetdevMove, Plan, moving_netdevs
from nri_rdma.attach.pod_gids import PodGids
from nri_rdma.attach.port import Kernel, KernelError, Namespace, Processes, explained
from nri_rdma.attach.presence import Presence
from nri_rdma.attach.progress import counting
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.return_netdev import remove_foreign_names
from nri_rdma.attach.second_look import SecondLooks
from nri_rdma.attach.states import Event
from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.survey import needs_namespace, open_for, prepare, refuse_powerless
from nri_rdma.attach.transaction import Boundary, do_steps, no_boundary, undo_steps
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.pod import Pod
from nri_rdma.model.usage import Lifelines
from nri_rdma.observe.spans import AttributeValue, Recorder

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The host on which tasks are done, with its kernel and journal, and functions that tasks call."""

    kernel: Kernel
    journal: Journal
    spans: Recorder
    resolve: Resolve
    """Finds the present character devices of RDMA devices on the host."""
    on_held: Callable[[str], None]
    """Starts to watch the path of a network namespace; called before the namespace is opened."""
    processes: Processes | None = None
    event_sequence: Callable[[], int] = lambda: 0
    """Returns the sequence number of the kernel's newest device event."""
    links_are_managed: Callable[[], bool] = lambda: False
    """Returns whether udev or a network manager configures netdevs that return to the host."""
    boundary: Boundary = no_boundary
    lifelines: Lifelines = field(default_factory=Lifelines)
    gid_wait_s: float = 0.0
    """How long an attach waits for GIDs, in seconds; see GID_WAIT_S in pod_gids."""


class Work:
    """Carries out the tasks of attachments on this host, with its kernel and its journal."""

    def __init__(self, site: Site, second_looks: SecondLooks) -> None:
        self._kernel = site.kernel
        self._lifelines = site.lifelines
        self._journal = JournalWriter(site.journal, site.boundary)
        self._spans = site.spans
        self._presence = Presence(site.kernel, site.resolve)
        self._ends = Ends(site.kernel, site.on_held, site.processes)
        self._second_looks = second_looks
        self._event_sequence = site.event_sequence
        self._links_are_managed = site.links_are_managed
        self._boundary = site.boundary
        self._gids = PodGids(site.kernel, site.spans, site.gid_wait_s)
        self._lost = LostNetdevs()

    def recorded(self) -> tuple[tuple[SandboxRecord, ...], tuple[NriRdmaError, ...]]:
        """Return the journal's records of this boot, and an error for each record that was set aside."""
        return self._journal.load(self._kernel.host.identity.boot_id)

    def lost(self) -> LostNetdevs:
        """Return the netdevs that the host has lost in pods since the daemon's start."""
        return self._lost

    def find(self, attachment: Attachment) -> Event:
        """Open the namespace of an earlier daemon's attachment, and return its state as an event: THERE, HALF or
        ABSENT. Raises KernelError if the kernel does not let us find out."""
        record = attachment.now.record
        assert record is not None  # an earlier daemon wrote it
        with self._spans.span("recover", _names(attachment.pod)):
            namespace = self._ends.open_again(record)
            attachment.change(namespace=namespace)
            is_there = record.state is not Phase.RETURNING and self._ends.is_there(record, namespace)
        if is_there and record.state is Phase.ATTACHED:
            return Event.THERE
        return Event.HALF if is_there and not record.part else Event.ABSENT

    def is_there(self, pod: Pod) -> bool:
        """Return whether the pod's namespace can be opened; True for a pod on the host's network. Raises KernelError if
        the kernel does not let us find out."""
        with self._spans.span("recover", _names(pod)):
            return not pod.netns_path or self._ends.can_be_opened(pod.netns_path)

    def watch_end(self, pod: Pod) -> None:
        """Watch the path of the pod's namespace. Never raises."""
        self._ends.watch(pod)

    def close(self) -> None:
        """Cancel the scheduled second restores of returned netdevs, which undo later changes by udev or networkd."""
        self._second_looks.close()

    def plan(self, attachment: Attachment, chosen: Selection) -> None:
        """Read the state of host and pod, and decide the steps; nothing on the host changes. Raises the error that
        refuses the attachment."""
        self._boundary(f"before plan {attachment.key}")
        try:
            decided = self._decide(attachment, chosen)
        except KernelError as error:
            pod = attachment.pod
            raise explained(error, device=chosen.device_names, where=str(pod), path=pod.netns_path) from error
        self._boundary(f"after plan {attachment.key}")
        attachment.refuse_ended()
        self._journal.refuse_unwritable(decided)
        # Until its links are captured, the plan must not be undone. So it is not in the record yet.
        attachment.change(record=replace(decided, plan=Plan()), decided=decided.plan)

    def note_plan(self, attachment: Attachment) -> None:
        """Record in the journal which devices the pod gets. Never raises."""
        self._journal.note_plan(attachment)

    def attach(self, attachment: Attachment) -> None:
        """Carry out the plan, and store in the attachment's record the devices as its containers get them. Raises
        AttachError, or NotReadyError if the attachment ends meanwhile. The caller then undoes the attach."""
        facts = _names(attachment.pod) | {"rdma.attempt": attachment.now.attempt}
        with self._kernel.host.keeping(), self._spans.span("attach", facts) as span:
            record = self._begun(attachment)
            steps = steps_of(record.plan)
            boundary = counting(attachment, steps, self._boundary)
            if attachment.now.namespace is not None:
                do_steps(self._kernel, attachment.now.namespace, steps, self._spans, boundary)
            confirmed = self._confirm(attachment, record)
            span.attributes["rdma.isolation"] = str(confirmed.isolation or "")

    def _begun(self, attachment: Attachment) -> SandboxRecord:
        """Write the whole plan, with the state of all its links, to the journal, and return the record. From now on the
        attach can be undone."""
        planned = attachment.now.record
        assert planned is not None  # it is planned
        with self._spans.span("capture"):
            plan = last_look(self._kernel, self._lifelines, attachment, planned)
        record = replace(planned, plan=plan, state=Phase.ATTACHING)
        attachment.refuse_ended()
        self._journal.write(record)
        attachment.change(record=record)
        return record

    def look_again(self, attachment: Attachment) -> None:
        """Reread the names of attached RDMA devices and the numbers of their character devices. Raises AttachError if a
        device is gone."""
        record = attachment.now.record
        if record is None or attachment.state is not Phase.ATTACHED:
            return  # no container gets numbers of an attachment in another state
        try:
            with self._spans.span("resolve-numbers", _names(attachment.pod)):
                newest = self._event_sequence()
                now = self._presence.again(record, attachment.now.namespace)
                now = self._gids.again(attachment, now)
        finally:
            self.rest(attachment)
        if now != record:
            self._journal.write(now)
            attachment.change(record=now)
            log.info("devices have new names or numbers", extra={"pod": str(attachment.pod)})
        attachment.change(numbers_from=newest)

    def cover(self, attachment: Attachment, name: str, container: str, is_covered: bool) -> None:
        """Give the container the devices that were attached for `name`, a CDI device or a share. If not `is_covered`,
        withdraw the devices. Raises NotReadyError if the attachment is not in the phase ATTACHED."""
        record = attachment.now.record
        if record is None or attachment.state is not Phase.ATTACHED:
            raise interrupted(attachment.pod)
        covering = record.covering(name, container, is_covered)
        self._journal.write(covering)
        attachment.change(record=covering)

    def bring_home(self, attachment: Attachment) -> None:
        """Undo the attach that the journal's record describes. Raises an ExceptionGroup with one error for each failed
        step; the record then stays."""
        if attachment.now.record is not None:
            if attachment.ends:  # otherwise another attempt follows, also in a restarted daemon
                self._journal.note_returning(attachment, attachment.now.record)
            # If no call ended the attachment (its namespace is gone, say), the undo is a trace of its own.
            with self._spans.span("undo", _names(attachment.pod), origin=attachment.parent) as span:
                steps = steps_of(attachment.now.record.plan, partial(self._lost.note, attachment.pod))
                errors = undo_steps(
                    self._kernel,
                    attachment.now.namespace,
                    steps,
                    self._spans,
                    self._boundary,
                    attachment.settle_returned,
                )
                span.error = words = "; ".join(map(str, errors))
            if errors:
                raise ExceptionGroup(words, errors)
            if self._links_are_managed():
                self._second_looks.expect(attachment.now.record.plan.moves)
        self._journal.forget(attachment.key)
        self.let_go(attachment)

    def leave_to_kernel(self, attachment: Attachment) -> None:
        """Close the namespace of an attachment whose undo keeps failing, if all its netdevs are physical: the kernel
        moves physical netdevs to the host when the namespace ends, but destroys virtual ones. First remove the
        alternative names that the pod gave to the netdevs, because a netdev keeps its names."""
        if attachment.now.record is None or not all(move.link.parent for move in attachment.now.record.plan.moves):
            return
        if attachment.now.namespace is not None:
            for move in attachment.now.record.plan.moves:
                self._remove_foreign_names(attachment.pod, attachment.now.namespace, move)
        self.let_go(attachment)

    def rest(self, attachment: Attachment) -> None:
        """Close the sockets that the daemon has in the namespace of an attached sandbox, but keep the namespace
        open."""
        if attachment.now.namespace is not None:
            attachment.now.namespace.rest()

    def let_go(self, attachment: Attachment) -> None:
        """Close the pod's network namespace, if the attachment holds it open."""
        namespace = attachment.now.namespace
        attachment.change(namespace=None)
        if namespace is not None:
            namespace.close()

    def _remove_foreign_names(self, pod: Pod, namespace: Namespace, move: NetdevMove) -> None:
        try:
            remove_foreign_names(self._kernel, namespace, move)
        except KernelError as error:  # go on: while the namespace is open, nobody can use the device
            facts = {"pod": str(pod), "device": move.device, "error": str(error)}
            log.warning("alternative names not removed", extra=facts)

    def _decide(self, attachment: Attachment, chosen: Selection) -> SandboxRecord:
        with self._spans.span("plan"):
            self._ends.watch(attachment.pod)
            self._second_looks.take_now({netdev.ifindex for netdev in moving_netdevs(chosen.placed)})
            if needs_namespace(self._kernel, chosen.placed):
                refuse_powerless(self._kernel, str(attachment.pod))
                attachment.change(namespace=open_for(self._kernel, attachment.pod))
            process = self._ends.watch_process(attachment.pod)
            pod, namespace = attachment.pod, attachment.now.namespace
            record = prepare(
                self._kernel, namespace, pod, chosen.placed, chosen.rdma_cm, process=process, part=attachment.part
            )
            self._presence.refuse_elsewhere(record, namespace)
            return record

    def _confirm(self, attachment: Attachment, record: SandboxRecord) -> SandboxRecord:
        """Reread the numbers of the character devices, which change when an RDMA device moves. Write the record of the
        finished attach, which CreateContainer reads from now on, and return it. Raises NotReadyError if the sandbox
        ends meanwhile."""
        with self._spans.span("resolve-numbers"):
            attachment.change(numbers_from=self._event_sequence())
            self._boundary(f"before resolve-numbers {attachment.key}")
            resolved = self._presence.at_the_end(record, attachment.now.namespace)
        self._boundary(f"after resolve-numbers {attachment.key}")
        confirmed = replace(resolved, state=Phase.ATTACHED, gids=self._gids.at_the_end(attachment, resolved))
        self._journal.write(confirmed)
        if attachment.now.namespace is not None and not attachment.now.namespace.is_at_its_path:
            raise interrupted(attachment.pod)  # the event may come late, and a container would start without netdevs
        attachment.refuse_ended()
        attachment.change(record=confirmed)
        return confirmed


def _names(pod: Pod) -> dict[str, AttributeValue]:
    """Return the attributes that identify the pod, for a span that may be the root of its trace."""
    return {"k8s.pod.name": str(pod), "k8s.pod.uid": pod.uid, "sandbox": pod.sandbox_id}

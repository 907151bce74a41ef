"""The dry run's replacement for the code that attaches devices: it finds out what an attach would do, without doing it.

Law: nothing here can change the host. There are no steps, no journal and no open namespace. An attachment gets the
state "attached" and the record that a real one would have, so that the engine can answer for its containers without a
difference.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from nri_rdma.attach.attachment import Attachment, Selection
from nri_rdma.attach.lost import LostNetdevs
from nri_rdma.attach.numbers import Resolve, with_char_devices
from nri_rdma.attach.port import KernelError, NamespaceIdentity, explained
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.states import Event
from nri_rdma.attach.survey import Host, needs_namespace, open_for, prepare, refuse_held
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.pod import Pod


@dataclass(frozen=True, slots=True)
class Unopened:
    """A network namespace of which only the path is known. It is never opened."""

    identity: NamespaceIdentity
    is_host: bool
    is_at_its_path: bool = True

    def keeping(self) -> AbstractContextManager[None]:
        """Do nothing: no namespace is open."""
        return nullcontext()

    def rest(self) -> None:
        """Do nothing: no namespace is open."""

    def close(self) -> None:
        """Do nothing: no namespace is open."""


class FindingOut:
    """The dry run's replacement for nri_rdma.attach.work. It has no effect on the host."""

    def __init__(self, host: Host, resolve: Resolve) -> None:
        self._host = host
        self._resolve = resolve

    def recorded(self) -> tuple[tuple[SandboxRecord, ...], tuple[NriRdmaError, ...]]:
        """Return no records and no errors: a dry run writes no journal."""
        return (), ()

    def lost(self) -> LostNetdevs:
        """Return no lost netdevs, because in a dry run no netdev leaves the host."""
        return LostNetdevs()

    def plan(self, attachment: Attachment, chosen: Selection) -> None:
        """Decide what an attach would do, and store it as the attachment's record. Raises NriRdmaError if the daemon
        would refuse the attachment."""
        pod = attachment.pod
        try:
            namespace = open_for(self._host, pod) if needs_namespace(self._host, chosen.placed) else None
            record = prepare(self._host, namespace, pod, chosen.placed, chosen.rdma_cm)
        except KernelError as error:
            raise explained(error, device=chosen.device_names, where=str(pod), path=pod.netns_path) from error
        attachment.refuse_ended()
        attachment.change(record=replace(record, part=attachment.part))

    def note_plan(self, attachment: Attachment) -> None:
        """Do nothing: there is no journal."""

    def attach(self, attachment: Attachment) -> None:
        """Mark the attachment as attached, with the device numbers that containers would get. Raises AttachError if a
        real attach would be refused."""
        planned = attachment.now.record
        assert planned is not None  # `plan` has set it
        try:
            refuse_held(self._host, planned)
        except KernelError as error:
            pod = planned.pod
            raise explained(error, device=planned.device_names, where=str(pod), path=pod.netns_path) from error
        attachment.change(record=replace(with_char_devices(planned, self._resolve), state=Phase.ATTACHED))

    def rest(self, attachment: Attachment) -> None:
        """Do nothing: no namespace is open."""

    def bring_home(self, attachment: Attachment) -> None:
        """Do nothing: no device has left the host."""

    def leave_to_kernel(self, attachment: Attachment) -> None:
        """Do nothing: no device has left the host."""

    def find(self, attachment: Attachment) -> Event:
        """Return ABSENT, which means that nothing of an attachment is in the pod: a dry run attaches nothing."""
        return Event.ABSENT

    def look_again(self, attachment: Attachment) -> None:
        """Do nothing. A real attachment reads its devices in the pod again; in a dry run no device is in a pod."""

    def cover(self, attachment: Attachment, name: str, container: str, is_covered: bool) -> None:
        """Record that a container of the sandbox would use the attachment; with `is_covered` false, that it would no
        longer use it."""
        if attachment.now.record is not None:
            attachment.change(record=attachment.now.record.covering(name, container, is_covered))

    def watch_end(self, pod: Pod) -> None:
        """Do nothing: a dry run does not watch for the pod's end."""

    def is_there(self, pod: Pod) -> bool:
        """Return whether the pod's network namespace exists."""
        try:
            self._host.open_namespace(pod.netns_path).close()
        except KernelError:
            return False
        return True

    def let_go(self, attachment: Attachment) -> None:
        """Do nothing: no namespace is open."""

    def close(self) -> None:
        """Do nothing: no background work is running."""

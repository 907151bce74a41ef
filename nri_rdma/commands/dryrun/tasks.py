"""What a dry run does for an attachment: it finds out what an attach would come to.

Law: nothing here can change a host. There are no steps, no journal and no open namespace. An attachment is "attached"
with the record that a real one would have, so that its containers are answered for by the same code.
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
    """A network namespace that is only named."""

    identity: NamespaceIdentity
    is_host: bool
    is_at_its_path: bool = True

    def keeping(self) -> AbstractContextManager[None]:
        """Nothing is open."""
        return nullcontext()

    def rest(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        """Nothing is open."""


class FindingOut:
    """As nri_rdma.attach.work, without effects."""

    def __init__(self, host: Host, resolve: Resolve) -> None:
        self._host = host
        self._resolve = resolve

    def recorded(self) -> tuple[tuple[SandboxRecord, ...], tuple[NriRdmaError, ...]]:
        """Return nothing: a dry run leaves nothing."""
        return (), ()

    def lost(self) -> LostNetdevs:
        """Return none: nothing left the host."""
        return LostNetdevs()

    def plan(self, attachment: Attachment, chosen: Selection) -> None:
        """Decide what would be done. Raises what refuses the attachment."""
        pod = attachment.pod
        try:
            namespace = open_for(self._host, pod) if needs_namespace(self._host, chosen.placed) else None
            record = prepare(self._host, namespace, pod, chosen.placed, chosen.rdma_cm)
        except KernelError as error:
            raise explained(error, device=chosen.device_names, where=str(pod), path=pod.netns_path) from error
        attachment.refuse_ended()
        attachment.change(record=replace(record, part=attachment.part))

    def note_plan(self, attachment: Attachment) -> None:
        """There is no journal."""

    def attach(self, attachment: Attachment) -> None:
        """Refuse what an attach would refuse, and find out what the containers would get. Raises AttachError."""
        planned = attachment.record
        assert planned is not None  # it is planned
        try:
            refuse_held(self._host, planned)
        except KernelError as error:
            pod = planned.pod
            raise explained(error, device=planned.device_names, where=str(pod), path=pod.netns_path) from error
        attachment.change(record=replace(with_char_devices(planned, self._resolve), state=Phase.ATTACHED))

    def rest(self, attachment: Attachment) -> None:
        """No namespace is open."""

    def bring_home(self, attachment: Attachment) -> None:
        """Nothing left the host."""

    def leave_to_kernel(self, attachment: Attachment) -> None:
        """Nothing left the host."""

    def find(self, attachment: Attachment) -> Event:
        """Return ABSENT: a dry run leaves nothing."""
        return Event.ABSENT

    def look_again(self, attachment: Attachment) -> None:
        """Nothing of it is in a pod, where it could change: what was planned stays true."""

    def cover(self, attachment: Attachment, name: str, container: str, is_covered: bool) -> None:
        """Another container of the sandbox would be covered, too, or would not any more."""
        if attachment.record is not None:
            attachment.change(record=attachment.record.covering(name, container, is_covered))

    def watch_end(self, pod: Pod) -> None:
        """Nothing is watched."""

    def is_there(self, pod: Pod) -> bool:
        """Return whether the pod's namespace is there."""
        try:
            self._host.open_namespace(pod.netns_path).close()
        except KernelError:
            return False
        return True

    def let_go(self, attachment: Attachment) -> None:
        """No namespace is open."""

    def close(self) -> None:
        """Nothing goes on by itself."""

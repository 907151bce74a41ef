"""The blocking tasks of attachments, as an interface. One implementation carries them out on a host, another one only
examines them in a dry run."""

from __future__ import annotations

from typing import Protocol

from nri_rdma.attach.attachment import Attachment, Selection
from nri_rdma.attach.lost import LostNetdevs
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.attach.states import Event
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.pod import Pod


class Tasks(Protocol):
    """The blocking tasks of an attachment. nri_rdma.attach.work carries them out on a host; a dry run
    (nri_rdma.commands.dryrun.finding_out) only examines what they would do. One thread at a time works on an
    attachment. An error that a task raises becomes an event for the state machine."""

    def recorded(self) -> tuple[tuple[SandboxRecord, ...], tuple[NriRdmaError, ...]]:
        """Return the records in the journal that still matter, and one error for each record that was set aside."""

    def lost(self) -> LostNetdevs:
        """Return the netdevs that the host has lost in pods since the daemon's start."""

    def plan(self, attachment: Attachment, chosen: Selection) -> None:
        """Open the namespace and decide the steps. Raises the error that refuses the attachment."""

    def note_plan(self, attachment: Attachment) -> None:
        """Record in the journal which devices the pod gets. Never raises."""

    def attach(self, attachment: Attachment) -> None:
        """Carry out the plan, so that containers may start. Raises AttachError, or NotReadyError if the attachment ends
        meanwhile."""

    def rest(self, attachment: Attachment) -> None:
        """Close the sockets that the attach opened in the pod's namespace. Containers may start before that."""

    def bring_home(self, attachment: Attachment) -> None:
        """Undo the attach: return the devices to the host and restore their configuration. Raises an ExceptionGroup
        with one error for each failed step."""

    def leave_to_kernel(self, attachment: Attachment) -> None:
        """Close the pod's namespace if the kernel then returns all netdevs in it to the host. Called after several
        failed undos."""

    def find(self, attachment: Attachment) -> Event:
        """Return the state of an earlier daemon's attachment: THERE, HALF or ABSENT. Raises KernelError if the kernel
        does not let us find out."""

    def look_again(self, attachment: Attachment) -> None:
        """Reread the names of the attached RDMA devices and the numbers of their character devices. Raises AttachError
        if a device is gone."""

    def cover(self, attachment: Attachment, name: str, container: str, is_covered: bool) -> None:
        """Give a container the devices that were attached for `name`, a CDI device or a share. If not `is_covered`,
        withdraw the devices from the container."""

    def is_there(self, pod: Pod) -> bool:
        """Return whether the pod's namespace can be opened; True for a pod on the host's network. Raises KernelError if
        the kernel does not let us find out."""

    def watch_end(self, pod: Pod) -> None:
        """Watch the path of the pod's namespace. Never raises."""

    def let_go(self, attachment: Attachment) -> None:
        """Close the pod's network namespace, if the attachment holds it open."""

    def close(self) -> None:
        """Cancel the tasks that were scheduled for later, which restore returned netdevs a second time. Called when the
        daemon ends."""

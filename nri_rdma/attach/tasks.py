"""The work that attachments need done by somebody who may block: on a host, or only as a finding out."""

from __future__ import annotations

from typing import Protocol

from nri_rdma.attach.attachment import Attachment, Selection
from nri_rdma.attach.lost import LostNetdevs
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.attach.states import Event
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.pod import Pod


class Tasks(Protocol):
    """The tasks of an attachment, done by one thread at a time: nri_rdma.attach.work does them on a host, a dry run
    (nri_rdma.commands.dryrun.tasks) only finds out. All of them may block. What they raise is the table's news."""

    def recorded(self) -> tuple[tuple[SandboxRecord, ...], tuple[NriRdmaError, ...]]:
        """Return what an earlier daemon left that may still matter, and an error for each record set aside."""

    def lost(self) -> LostNetdevs:
        """Return the netdevs that pods have lost since the start."""

    def plan(self, attachment: Attachment, chosen: Selection) -> None:
        """Decide the steps, and open the namespace. Raises what refuses the attachment."""

    def note_plan(self, attachment: Attachment) -> None:
        """Write down who gets what. Never raises."""

    def attach(self, attachment: Attachment) -> None:
        """Do what is planned, so that containers may have it. Raises AttachError, and NotReadyError when it ends."""

    def rest(self, attachment: Attachment) -> None:
        """Close the sockets that an attach had in the namespace. Containers need not wait for this."""

    def bring_home(self, attachment: Attachment) -> None:
        """Undo the attach. Raise when anything is not as before."""

    def leave_to_kernel(self, attachment: Attachment) -> None:
        """After many failed undos: close the namespace if the kernel brings home what is in it."""

    def find(self, attachment: Attachment) -> Event:
        """Return what became of what an earlier daemon left: THERE, HALF or ABSENT. Raises KernelError when that cannot
        be seen."""

    def look_again(self, attachment: Attachment) -> None:
        """Read names and numbers again. Raise AttachError when a device is gone."""

    def cover(self, attachment: Attachment, name: str, container: str, is_covered: bool) -> None:
        """Give a container what was attached for a CDI device, or take it out of that."""

    def is_there(self, pod: Pod) -> bool:
        """Return whether the pod's namespace can be opened. Raises KernelError when that cannot be seen."""

    def watch_end(self, pod: Pod) -> None:
        """Have the path of the pod's namespace watched. Never raises."""

    def let_go(self, attachment: Attachment) -> None:
        """Close the namespace, if it is held."""

    def close(self) -> None:
        """Start no further work on its own."""

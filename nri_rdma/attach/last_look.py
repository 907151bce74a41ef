"""The last look at host and pod before anything moves: who uses the devices by now, and all that their links carry."""

from __future__ import annotations

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.plan import Plan
from nri_rdma.attach.port import Kernel, KernelError, explained
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.survey import completed, refuse_held
from nri_rdma.model.usage import Lifelines
from nri_rdma.observe.spans import current_span, under
from nri_rdma.tasks.workers import Beside


class LastLook:
    """Looks at one attachment at a time in each thread. Blocks on the kernel: for workers."""

    def __init__(self, kernel: Kernel, lifelines: Lifelines, beside: Beside) -> None:
        """`beside` begins what is done at the same time as something else."""
        self._kernel = kernel
        self._lifelines = lifelines
        self._beside = beside

    def complete(self, attachment: Attachment, planned: SandboxRecord) -> Plan:
        """Return the plan that was decided with all that its links carry. Raise what refuses the attachment."""
        try:
            return self._complete(attachment, planned)
        except KernelError as error:
            pod = planned.pod
            raise explained(error, device=planned.device_names, where=str(pod), path=pod.netns_path) from error

    def _complete(self, attachment: Attachment, planned: SandboxRecord) -> Plan:
        """As `complete`. To look for sockets is the kernel's work, and is done beside the rest; where both refuse, the
        host's use of a device is told."""
        span = current_span()

        def look() -> None:
            with under(span):
                refuse_held(self._kernel, planned)

        looked = self._beside(planned.key, look)
        try:
            return completed(
                self._kernel,
                attachment.namespace,
                attachment.now.decided,
                self._lifelines,
                netdevs=_netdevs_beside(attachment),
            )
        finally:
            looked.result()


def _netdevs_beside(attachment: Attachment) -> frozenset[int]:
    """Return the interface numbers of the netdevs that the pod has from its other attachments."""
    records = (it.record for it in attachment.beside if it.state is Phase.ATTACHED)
    return frozenset(move.pod_ifindex for record in records if record is not None for move in record.plan.moves)

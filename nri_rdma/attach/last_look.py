"""The last look at host and pod before anything moves: who uses the devices now, and what their links carry."""

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
    """Completes plans just before the attach. Safe for use by several threads. Blocks on the kernel: only for
    workers."""

    def __init__(self, kernel: Kernel, lifelines: Lifelines, beside: Beside) -> None:
        """`beside` runs a function in another thread while the caller goes on."""
        self._kernel = kernel
        self._lifelines = lifelines
        self._beside = beside

    def complete(self, attachment: Attachment, planned: SandboxRecord) -> Plan:
        """Return the decided plan, completed with everything that its links carry. Raises the error that refuses the
        attachment."""
        try:
            return self._complete(attachment, planned)
        except KernelError as error:
            pod = planned.pod
            raise explained(error, device=planned.device_names, where=str(pod), path=pod.netns_path) from error

    def _complete(self, attachment: Attachment, planned: SandboxRecord) -> Plan:
        """Do the work of `complete`, while another thread checks whether sockets or processes of the host use the
        devices: that is slow in the kernel. If both fail, the error of the other thread is raised."""
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
    """Return the interface numbers, in the pod, of the netdevs that belong to the sandbox's other attachments."""
    records = (it.record for it in attachment.beside if it.state is Phase.ATTACHED)
    return frozenset(move.pod_ifindex for record in records if record is not None for move in record.plan.moves)

"""The last check of host and pod before anything moves: who uses the devices, and which addresses and routes their
links have."""

from __future__ import annotations

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.plan import Plan
from nri_rdma.attach.port import Kernel, KernelError, explained
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.survey import completed, refuse_held
from nri_rdma.model.usage import Lifelines


def last_look(kernel: Kernel, lifelines: Lifelines, attachment: Attachment, planned: SandboxRecord) -> Plan:
    """Return the decided plan, completed with the present addresses, routes and settings of its links. `lifelines` are
    the addresses that the node cannot do without. Raises the error that refuses the attachment: the host uses a device,
    or a link cannot be read."""
    try:
        refuse_held(kernel, planned)
        return completed(
            kernel, attachment.now.namespace, attachment.now.decided, lifelines, netdevs=_netdevs_beside(attachment)
        )
    except KernelError as error:
        pod = planned.pod
        raise explained(error, device=planned.device_names, where=str(pod), path=pod.netns_path) from error


def _netdevs_beside(attachment: Attachment) -> frozenset[int]:
    """Return the interface numbers, in the pod, of the netdevs that belong to the sandbox's other attachments."""
    records = (it.now.record for it in attachment.beside if it.state is Phase.ATTACHED)
    return frozenset(move.pod_ifindex for record in records if record is not None for move in record.plan.moves)

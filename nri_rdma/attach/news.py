"""The reactions to the kernel's events: a device was removed or renamed, a netdev changed, a pod ended.

Any thread may call the functions, which leave slow work to workers.
"""

from __future__ import annotations

import logging
from pathlib import Path

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.liveness import lives_by_process
from nri_rdma.attach.port import ProcessIdentity
from nri_rdma.attach.record import Phase
from nri_rdma.model.request import Mode

log = logging.getLogger(__name__)


def node_removed(attachments: Attachments, number: tuple[int, int], sequence: int) -> None:
    """Handle the removal of a character device, because its old number may belong to another device now. Attachments
    that use the number reread their device numbers. `number` is major and minor; `sequence` is the sequence number of
    the kernel's event."""
    for attachment in attachments.all():
        if sequence > attachment.now.numbers_from and (number in _numbers(attachment) or _is_being_read(attachment)):
            log.info("character device is gone", extra={"pod": str(attachment.pod), "number": list(number)})
            attachments.look_again(attachment)


def look_at_all_again(attachments: Attachments) -> None:
    """Make all attachments reread the names of their RDMA devices and the numbers of their character devices. Called
    when events were lost, or when a renamed device may belong to any attachment."""
    for attachment in attachments.all():
        attachments.look_again(attachment)


def netdevs_changed(attachments: Attachments, ifindexes: frozenset[int]) -> None:
    """Make attachments of shared devices reread their GIDs if one of their netdevs is in `ifindexes`, because its
    addresses may have changed. A reread that already runs is not queued again, so that a flapping link does not keep
    all workers busy."""
    for attachment in attachments.all():
        record, looked = attachment.now.record, attachment.now.looked_again
        if record is None or attachment.state is not Phase.ATTACHED or (looked is not None and not looked.done()):
            continue
        shared = (it for it in record.attached if it.admitted.mode is Mode.SHARED)
        netdevs = (netdev for it in shared for item in it.devices for netdev in item.device.netdevs)
        if any(netdev.ifindex in ifindexes for netdev in netdevs):
            attachments.look_again(attachment)


def process_ended(attachments: Attachments, process: ProcessIdentity) -> None:
    """End the sandboxes that live as long as this process."""
    for attachment in attachments.all():
        record = attachment.now.record
        known = record.process if record is not None else None  # None while the attach is under way
        if lives_by_process(attachment.pod) and attachment.pod.pid == process.pid and known in {None, process}:
            log.info("the sandbox's process ended", extra={"pod": str(attachment.pod), "pid": process.pid})
            attachments.end(attachment.pod.sandbox_id)


def namespace_removed(attachments: Attachments, path: str) -> None:
    """End the sandboxes whose network namespace was at this path."""
    for attachment in attachments.all():
        if attachment.pod.netns_path == path:
            log.info("the namespace was removed", extra={"pod": str(attachment.pod), "path": path})
            attachments.end(attachment.pod.sandbox_id)


def look_at_all_namespaces(attachments: Attachments) -> None:
    """End the sandboxes whose network namespace no longer exists. Called when events about removed namespaces were
    lost."""
    for attachment in attachments.all():
        path = attachment.pod.netns_path
        if path and not Path(path).exists():
            namespace_removed(attachments, path)


def _is_being_read(attachment: Attachment) -> bool:
    """Return whether a worker is rereading the numbers of the attachment's character devices now. Until it is done, the
    numbers are unknown."""
    looked = attachment.now.looked_again
    is_confirming = attachment.state is Phase.ATTACHING and attachment.now.numbers_from > 0
    return is_confirming or (looked is not None and not looked.done())


def _numbers(attachment: Attachment) -> frozenset[tuple[int, int]]:
    """Return the major and minor numbers of the character devices of an attached sandbox; empty in any other state."""
    record = attachment.now.record
    if record is None or attachment.state is not Phase.ATTACHED:
        return frozenset()
    nodes = [node for it in record.attached for item in it.devices for node in item.device.char_devices]
    return frozenset((node.major, node.minor) for node in nodes)

"""The barrier: a container is created only when its pod's devices are attached and verified to be still in the pod.

A container waits only briefly, because all other pods of the node wait with it. Then it is refused with an error text
after which the kubelet retries soon.
"""

from __future__ import annotations

import time

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.holdings import Holdings
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.engine.refusals import failed_late, not_ready, returning
from nri_rdma.engine.sandbox import Sandboxes
from nri_rdma.model.waits import Waits
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import settled, wait

BARRIER_PAUSE_S = 0.8
"""Minimum time between two waits of a sandbox's containers, in seconds. The kubelet's attempts are at least a second
apart, so containers that arrive within this time belong to the same attempt."""


class Barrier:
    """The wait of a container that is being created for its pod's attachments. Thread-safe. Deadlines are in seconds of
    `time.monotonic`."""

    def __init__(self, attachments: Attachments, known: Sandboxes, spans: Recorder, waits: Waits) -> None:
        self._attachments = attachments
        self._known = known
        self._spans = spans
        self.waits = waits

    def by(self, deadline: float) -> float:
        """Return the time until which a CreateContainer call that begins now may wait, at most `deadline`. It is short,
        because all other pods of the node wait meanwhile."""
        return min(deadline, time.monotonic() + self.waits.barrier_s)

    def await_all(self, attachments: Holdings, container: str, deadline: float) -> None:
        """Wait until all `attachments` are attached, and their devices are verified to be still in the pod. Raise
        NotReadyError if this is not so by `deadline`."""
        for it in attachments:
            self.await_attached(it, deadline)
            self.await_present(it, container, deadline)
        for it in attachments:
            self.await_attached(it, deadline)  # its end may have begun while we waited for another attachment

    def await_attached(self, attachment: Attachment, deadline: float) -> None:
        """Wait briefly for an attach that still runs. Raise NotReadyError if it is not done by the deadline, has
        failed, or is being undone."""
        if attachment.now.phase is Phase.ATTACHED:
            return
        with self._spans.span("barrier"):
            self._await_end(attachment, deadline)
        now = attachment.now
        if now.phase is Phase.ATTACHED:
            return
        if now.is_given_up and not attachment.part:
            raise failed_late(attachment.pod, now.last_error)
        if now.ends and attachment.part and not self._known.has_ended(attachment.pod.sandbox_id):
            raise not_ready(attachment.pod, "an earlier attempt to attach its devices is being undone", now.last_error)
        if now.ends:
            raise returning(attachment.pod)
        raise not_ready(attachment.pod, _so_far(attachment), now.last_error)

    def await_present(self, attachment: Attachment, container: str, deadline: float) -> None:
        """Verify that the attached devices are still in the pod. Raise NotReadyError while they are being verified.

        The kernel may have given a device's number to another device. The pod can also rename a device without any
        event, and rdma limits name devices.
        """
        now = attachment.now
        looked = now.looked_again
        has_failed = looked is not None and looked.done() and looked.exception() is not None
        if has_failed or _has_limits(now.record, container):
            looked = self._attachments.look_again(attachment, gids=False)  # a missing device may have returned
        if looked is None or (looked.done() and looked.exception() is None):
            return
        with self._spans.span("barrier"):
            if not wait(looked, min(self.waits.barrier_s, deadline - time.monotonic())):
                raise not_ready(attachment.pod, "the devices of this pod are being checked again")

    def _await_end(self, attachment: Attachment, deadline: float) -> None:
        if not attachment.now.ends and self._may_wait(attachment.pod.sandbox_id):
            settled(attachment.attach_done, min(self.waits.barrier_s, deadline - time.monotonic()))

    def _may_wait(self, sandbox_id: str) -> bool:
        """Return whether this container may wait. Only one container of a sandbox waits in each of the kubelet's
        attempts; the sandbox's other containers are refused at once."""
        now, known = time.monotonic(), self._known.take(sandbox_id)
        may = now - known.waited_at >= BARRIER_PAUSE_S
        if may:
            known.waited_at = now
        return may


def _has_limits(record: SandboxRecord | None, container: str) -> bool:
    """Return whether the container gets rdma limits."""
    for item in record.attached if record is not None else ():
        request = item.admitted.request
        if request.limits is not None and request.scope.covers(container):
            return True
    return False


def _so_far(attachment: Attachment) -> str:
    """Return the progress of an attach as text for people."""
    now = attachment.now
    so_far = f"{now.devices_done} of {now.devices_total} devices attached"
    if attachment.waits_for_older and not attachment.planned.done():
        so_far = "the devices of this pod's older sandbox are on their way back"
    return so_far + (f", attempt {now.attempt} of {attachment.attempts}" if now.attempt > 1 else "")

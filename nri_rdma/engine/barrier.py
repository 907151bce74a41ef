"""The barrier: no container is created before its pod's devices are attached and still verified.

A container waits only briefly, because all other pods of the node wait with it. Then it is refused with an error text
after which the kubelet retries soon.
"""

from __future__ import annotations

import time

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.record import Phase
from nri_rdma.engine.sandbox import Sandboxes, Unserved
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.pod import Pod
from nri_rdma.model.waits import Waits
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import settled, wait

BARRIER_PAUSE_S = 0.8
"""The kubelet's attempts are at least a second apart: containers that arrive within this time belong to one attempt."""


class Barrier:
    """Safe for use by several threads. Deadlines are in seconds of `time.monotonic`."""

    def __init__(self, attachments: Attachments, known: Sandboxes, spans: Recorder, waits: Waits) -> None:
        self._attachments = attachments
        self._known = known
        self._spans = spans
        self.waits = waits

    def await_attached(self, attachment: Attachment, deadline: float) -> None:
        """Wait briefly for an attach that still runs. Raise NotReadyError when it is not done by the deadline."""
        if not attachment.ends and self._may_wait(attachment.pod.sandbox_id):
            settled(attachment.attach_done, min(self.waits.barrier_s, deadline - time.monotonic()))
        if attachment.state is Phase.ATTACHED:
            return
        if attachment.is_given_up and not attachment.part:
            raise failed_late(Unserved(pod=attachment.pod, why=attachment.last_error))
        if attachment.ends:
            raise returning(attachment.pod)
        raise _not_ready(attachment)

    def await_present(self, attachment: Attachment, container: str, deadline: float) -> None:
        """Verify that the attached devices are still the pod's: the kernel may have given a number to another device,
        and the pod itself can rename a device unseen, which matters for limits."""
        looked = attachment.looked_again
        has_failed = looked is not None and looked.done() and looked.exception() is not None
        if has_failed or _has_limits(attachment, container):
            looked = self._attachments.look_again(attachment)  # a missing device may have returned
        if looked is None or (looked.done() and looked.exception() is None):
            return
        with self._spans.span("barrier"):
            if not wait(looked, min(self.waits.barrier_s, deadline - time.monotonic())):
                raise NotReadyError(
                    ErrorCode.NOT_READY,
                    "network is not ready: the devices of this pod are looked at again",
                    where=str(attachment.pod),
                    hint="nothing to do: the kubelet asks again",
                )

    def _may_wait(self, sandbox_id: str) -> bool:
        """Return whether this container may wait: one per sandbox waits in each of the kubelet's attempts. The others
        are answered at once."""
        now, known = time.monotonic(), self._known.take(sandbox_id)
        may = now - known.waited_at >= BARRIER_PAUSE_S
        if may:
            known.waited_at = now
        return may


def _has_limits(sandbox: Attachment, container: str) -> bool:
    """Return whether the container gets rdma limits, which name devices."""
    for item in sandbox.record.attached if sandbox.record is not None else ():
        request = item.admitted.request
        if request.limits is not None and request.scope.covers(container):
            return True
    return False


def _not_ready(sandbox: Attachment) -> NotReadyError:
    """Return an error whose text begins so that the kubelet retries after about a second, not after ten or more."""
    so_far = f"{sandbox.devices_done} of {sandbox.devices_total} devices attached"
    if sandbox.waits_for_older and not sandbox.planned.done():
        so_far = "the devices of this pod's older sandbox are on their way back"
    again = f", attempt {sandbox.attempt} of {sandbox.attempts}" if sandbox.attempt > 1 else ""
    return NotReadyError(
        ErrorCode.NOT_READY,
        f"network is not ready: {so_far}{again}",
        where=str(sandbox.pod),
        hint="nothing to do: the kubelet asks again",
        detail=sandbox.last_error,
    )


def failed_late(failed: Unserved) -> NotReadyError:
    return NotReadyError(
        ErrorCode.ATTACH_FAILED,
        "the attach failed after the sandbox had started, and was undone",
        where=str(failed.pod),
        hint="delete the pod so that it gets a new sandbox",
        detail=failed.why,
    )


def returning(pod: Pod) -> NotReadyError:
    """Return the error that refuses a container of a sandbox that is ending."""
    return NotReadyError(
        ErrorCode.RETURNING,
        "the devices of this sandbox go back to the host",
        where=str(pod),
        hint="the pod needs a new sandbox; delete the pod if the kubelet does not make one",
    )

"""The progress of an attach: counts the attached devices, and stops the attach when its attachment ends."""

from __future__ import annotations

from collections import Counter

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.steps import Step
from nri_rdma.attach.transaction import Boundary


def counting(attachment: Attachment, steps: tuple[Step, ...], boundary: Boundary) -> Boundary:
    """Return a function to be called before and after each step. It calls `boundary`, the tests' hook, and counts the
    devices whose steps are all done. It stops the attach with NotReadyError if the attachment is ending."""
    left = Counter(step.device for step in steps)
    attachment.change(devices_done=0, devices_total=len(left))

    def count(place: str) -> None:
        boundary(place)
        if place.startswith("after "):
            device = place.rpartition(" ")[2]
            left[device] -= 1
            if not left[device]:
                attachment.change(devices_done=attachment.now.devices_done + 1)
        attachment.refuse_ended()

    return count

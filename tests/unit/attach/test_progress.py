"""What an attach counts while its steps are done, and where it stops."""

from dataclasses import dataclass

import pytest

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.port import Kernel, Namespace
from nri_rdma.attach.progress import counting
from nri_rdma.attach.states import Event, State
from nri_rdma.attach.transaction import no_boundary
from nri_rdma.errors import NotReadyError
from tests.unit.attach.builders import make_pod


@dataclass(frozen=True)
class _Step:
    """A step that does nothing."""

    device: str
    name: str = "move-netdev"

    def describe(self) -> str:
        return self.name

    def do(self, kernel: Kernel, namespace: Namespace) -> None: ...

    def undo(self, kernel: Kernel, namespace: Namespace | None) -> None: ...


STEPS = (_Step("mlx5_0"), _Step("mlx5_1"), _Step("mlx5_0"))


def test_a_device_is_done_with_the_last_of_its_steps() -> None:
    attachment, passed = Attachment(make_pod()), list[str]()
    count = counting(attachment, STEPS, passed.append)
    assert (attachment.now.devices_done, attachment.now.devices_total) == (0, 2)
    done: list[int] = []
    for step in STEPS:
        for place in (f"before {step.name} {step.device}", f"after {step.name} {step.device}"):
            count(place)
        done.append(attachment.now.devices_done)
    assert done == [0, 1, 2]
    assert passed[:2] == ["before move-netdev mlx5_0", "after move-netdev mlx5_0"]
    assert len(passed) == 2 * len(STEPS)


def test_another_attempt_counts_from_the_beginning() -> None:
    attachment = Attachment(make_pod())
    counting(attachment, STEPS, no_boundary)("after move-netdev mlx5_1")
    assert attachment.now.devices_done == 1
    counting(attachment, STEPS[:1], no_boundary)
    assert (attachment.now.devices_done, attachment.now.devices_total) == (0, 1)


def test_an_attachment_that_ends_stops_after_the_step_that_is_counted() -> None:
    attachment = Attachment(make_pod(), state=State.ATTACHING)
    count = counting(attachment, STEPS, no_boundary)
    count("before move-netdev mlx5_1")
    attachment.step(Event.END)
    with pytest.raises(NotReadyError):
        count("after move-netdev mlx5_1")
    assert attachment.now.devices_done == 1

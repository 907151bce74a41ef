"""What one attach is called, covers, and tells those who wait for it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.attach.attachment import Attachment, Now
from nri_rdma.attach.record import Phase
from nri_rdma.attach.states import State
from nri_rdma.errors import ErrorCode, NotReadyError
from tests.unit.attach.builders import make_pod
from tests.unit.rigs.attachments import SOON, Rig, make_world, placed_on


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(state=tmp_path, world=make_world())
    yield rig
    rig.close()


@pytest.fixture
def attachment(daemon: Rig) -> Attachment:
    """An attached one, of a pod that asked by its annotation."""
    attachment = daemon.sandboxes.begin(make_pod(), placed_on(daemon.world, "rail0"), None)
    attachment.attach_done.result(SOON)
    return attachment


@pytest.mark.parametrize(
    ("state", "phase", "ends"),
    [
        (State.QUEUED, Phase.PLANNED, False),
        (State.PAUSED, Phase.PLANNED, False),
        (State.ATTACHING, Phase.ATTACHING, False),
        (State.ATTACHED, Phase.ATTACHED, False),
        (State.STOPPING, Phase.RETURNING, True),
        (State.RETURNING, Phase.RETURNING, True),
        (State.GONE, Phase.GONE, True),
    ],
)
def test_a_state_has_the_word_that_status_and_journal_know(state: State, phase: Phase, ends: bool) -> None:
    now = Now(state=state)
    assert (now.phase, now.ends) == (phase, ends)


def test_as_long_as_it_is_not_planned_it_covers_no_container() -> None:
    assert not Attachment(make_pod()).covers("a.example.com/nic=0", "trainer")


def test_a_result_that_was_told_stays(daemon: Rig) -> None:
    daemon.gate.stop_at = "before move-netdev"
    attachment = daemon.sandboxes.begin(make_pod(), placed_on(daemon.world, "rail0"), None)
    assert daemon.gate.reached.wait(SOON)
    attachment.settle(RuntimeError("first"))
    attachment.settle()
    attachment.settle(RuntimeError("last"))
    assert str(attachment.attach_done.exception(SOON)) == "first"
    daemon.gate.open.set()


def test_who_comes_to_an_attach_that_ends_is_told_to_come_again(daemon: Rig, attachment: Attachment) -> None:
    attachment.refuse_ended()
    done = daemon.sandboxes.end("sandbox-1")
    assert done is not None
    done.result(SOON)
    with pytest.raises(NotReadyError) as caught:
        attachment.refuse_ended()
    assert (caught.value.code, caught.value.where) == (ErrorCode.RETURNING, "ml/train")


def test_status_says_of_what_goes_home_that_it_does_whatever_the_journal_has(attachment: Attachment) -> None:
    attachment.now = attachment.now._replace(state=State.RETURNING)
    assert attachment.now.record is not None
    assert (attachment.now.record.state, attachment.shown) == (Phase.ATTACHED, Phase.RETURNING)

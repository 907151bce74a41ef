"""No room for the journal: nothing is begun that could not be undone, and what is attached comes home all the same."""

import pytest

from tests.faults.arena import Arena, fill
from tests.faults.places import THERE
from tests.faults.tally import Outcome
from tests.rig.cri import CriError

pytestmark = [pytest.mark.root, pytest.mark.runtime]
PLANNED = next(place for place in THERE if place.name == "after write-journal")


def test_a_pod_that_cannot_be_written_down_is_refused_and_the_same_pod_starts_when_there_is_room(arena: Arena) -> None:
    with arena.small_state_directory() as folder:
        filler = fill(folder)
        with pytest.raises(CriError, match="nri-rdma: ATTACH-FAILED: the journal cannot be written: No space left"):
            arena.run_pod().result()
        arena.count("no room when the pod starts", Outcome.REFUSED)
        arena.delete_pods()
        arena.assert_given_back()
        filler.unlink()
        arena.assert_next_is_complete()


def test_a_pod_whose_attach_cannot_be_written_down_when_it_is_done_gives_everything_back(arena: Arena) -> None:
    with arena.small_state_directory() as folder:
        with arena.paused_at(PLANNED) as asked:
            filler = fill(folder)
        pod = arena.answer(asked)
        outcome = Outcome.REFUSED if pod is None else arena.outcome(pod)
        assert outcome is Outcome.REFUSED
        arena.count("no room when the attach is done", outcome)
        arena.assert_owned_once()
        arena.delete_pods()
        arena.assert_given_back()
        filler.unlink()
        arena.assert_next_is_complete()


def test_a_pod_gives_everything_back_though_its_return_cannot_be_written_down(arena: Arena) -> None:
    with arena.small_state_directory() as folder:
        arena.started_pod()
        filler = fill(folder)
        arena.count("no room when the pod stops", Outcome.COMPLETE)
        arena.delete_pods()
        arena.assert_given_back()
        filler.unlink()
        arena.assert_next_is_complete()

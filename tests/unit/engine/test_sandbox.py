"""What is remembered of sandboxes: one object each, which ends with it; and the table of a sandbox id's life."""

from __future__ import annotations

import pytest

from nri_rdma.engine.sandbox import KEPT_ENDED, KEPT_SANDBOXES, LIFE, Life, LifeEvent, Sandboxes, Unserved
from tests.unit.attach.builders import make_pod


def reachable() -> set[Life]:
    found, grown = set[Life](), {Life.IDLE}
    while grown != found:
        found, grown = grown, grown | {after for (before, _), after in LIFE.items() if before in grown}
    return found


def test_every_life_is_reached_and_can_end() -> None:
    assert reachable() == set(Life)
    assert {life for life in Life if LIFE.get((life, LifeEvent.STOP)) is Life.ENDED} == set(Life)


def test_every_life_comes_back_to_rest() -> None:
    """Whatever the order of events, what was begun is finished by its own event."""
    for life, event in ((Life.STARTING, LifeEvent.RAN), (Life.MISSED, LifeEvent.DECIDED)):
        assert LIFE[life, event] is Life.IDLE
    assert LIFE[LIFE[Life.DECIDING, LifeEvent.RAN], LifeEvent.DECIDED] is Life.IDLE
    assert LIFE[LIFE[Life.DECIDING, LifeEvent.DECIDED], LifeEvent.RAN] is Life.IDLE


def test_a_second_start_of_a_sandbox_that_is_starting_has_no_effect() -> None:
    sandboxes = Sandboxes()
    assert sandboxes.step("one", LifeEvent.RUN)
    assert not sandboxes.step("one", LifeEvent.RUN)
    sandboxes.step("one", LifeEvent.RAN)
    assert sandboxes.step("one", LifeEvent.RUN)


def test_an_object_that_a_worker_may_write_to_is_dropped_by_a_stop_only() -> None:
    """Its failure would be lost that is told while the start ends."""
    sandboxes = Sandboxes()
    sandboxes.step("one", LifeEvent.RUN)
    known = sandboxes.take("one")
    sandboxes.step("one", LifeEvent.RAN)
    assert sandboxes.get("one") is known
    sandboxes.step("one", LifeEvent.STOP)
    assert sandboxes.all() == ()


def test_a_start_under_way_outlives_a_list_of_the_runtimes_without_it() -> None:
    """A second start of the same sandbox would overwrite the first one's attachment."""
    sandboxes = Sandboxes()
    assert sandboxes.step("one", LifeEvent.RUN)
    sandboxes.keep(())
    assert not sandboxes.step("one", LifeEvent.RUN)
    sandboxes.step("one", LifeEvent.RAN)
    sandboxes.keep(())
    assert sandboxes.all() == ()


def test_a_stop_forgets_all_but_the_id() -> None:
    sandboxes, pod = Sandboxes(), make_pod()
    sandboxes.take(pod.sandbox_id).failure = Unserved(pod=pod, why="no")
    sandboxes.step(pod.sandbox_id, LifeEvent.STOP)
    assert sandboxes.get(pod.sandbox_id) is None
    assert sandboxes.has_ended(pod.sandbox_id)


def test_a_start_that_races_a_stop_does_not_make_the_sandbox_one_that_never_ended() -> None:
    sandboxes = Sandboxes()
    sandboxes.step("one", LifeEvent.MISS)
    sandboxes.step("one", LifeEvent.STOP)
    sandboxes.step("one", LifeEvent.RUN)
    sandboxes.step("one", LifeEvent.RAN)
    assert sandboxes.has_ended("one"), "a container that comes now would have something attached"


def test_ids_of_ended_sandboxes_are_remembered_up_to_a_bound() -> None:
    sandboxes = Sandboxes()
    for number in range(KEPT_ENDED + 1):
        sandboxes.step(str(number), LifeEvent.STOP)
    assert [sandboxes.has_ended(it) for it in ("0", "1", str(KEPT_ENDED))] == [False, True, True]


@pytest.mark.parametrize("keep", ["attached", "starting", "missed"])
def test_beyond_the_bound_the_oldest_idle_one_is_forgotten(keep: str) -> None:
    sandboxes = Sandboxes(lambda sandbox_id: sandbox_id == "first" and keep == "attached")
    sandboxes.take("first").waited_at = 1.0
    if keep != "attached":
        sandboxes.step("first", LifeEvent.RUN if keep == "starting" else LifeEvent.MISS)
    for number in range(KEPT_SANDBOXES):
        sandboxes.take(str(number))
    assert sandboxes.get("first") is not None
    assert sandboxes.get("0") is None
    assert len(sandboxes.all()) == KEPT_SANDBOXES

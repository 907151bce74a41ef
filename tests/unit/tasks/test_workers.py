"""The order in which workers take tasks, and how they end."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError

import pytest

from nri_rdma.tasks.workers import Workers

SOON = 20.0


@pytest.fixture
def one() -> Iterator[Workers]:
    """A single worker."""
    workers = Workers(1)
    yield workers
    workers.close()


class _Block:
    """A task that runs until it is released."""

    def __init__(self) -> None:
        self.running = threading.Event()
        self.release = threading.Event()

    def __call__(self) -> None:
        self.running.set()
        assert self.release.wait(SOON)


def _note(order: list[str], word: str) -> Callable[[], None]:
    return lambda: order.append(word)


def test_a_task_tells_its_end_or_its_error(one: Workers) -> None:
    def fail() -> None:
        raise ValueError("no")

    assert one.submit("a", lambda: None).result(SOON) is None
    assert isinstance(one.submit("a", fail).exception(SOON), ValueError)
    assert one.submit("a", lambda: None).result(SOON) is None


def test_tasks_of_one_key_keep_their_order_though_a_later_one_is_urgent(one: Workers) -> None:
    order: list[str] = []
    block = _Block()
    one.submit("other", block)
    one.submit("a", _note(order, "attach"))
    last = one.submit("a", _note(order, "undo"), urgent=True)
    block.release.set()
    last.result(SOON)
    assert order == ["attach", "undo"]


def test_a_key_with_urgent_work_comes_before_older_ones(one: Workers) -> None:
    order: list[str] = []
    block = _Block()
    one.submit("other", block)
    last = one.submit("a", _note(order, "a"))
    one.submit("b", _note(order, "b attach"))
    one.submit("b", _note(order, "b undo"), urgent=True)
    block.release.set()
    last.result(SOON)
    assert order == ["b attach", "b undo", "a"]


def test_different_keys_run_side_by_side_and_one_key_does_not() -> None:
    workers = Workers(2)
    first, second, third = _Block(), _Block(), _Block()
    done = [workers.submit("a", first), workers.submit("a", second), workers.submit("b", third)]
    assert first.running.wait(SOON)
    assert third.running.wait(SOON)
    third.release.set()
    done[2].result(SOON)
    assert not second.running.is_set()
    first.release.set()
    assert second.running.wait(SOON)
    second.release.set()
    done[1].result(SOON)
    workers.close()


def test_closing_finishes_what_runs_and_cancels_what_waits() -> None:
    workers, ran = Workers(1), list[str]()
    block = _Block()
    running, waiting = workers.submit("a", block), workers.submit("a", _note(ran, "cancelled"))
    assert block.running.wait(SOON)
    closer = threading.Thread(target=workers.close)
    closer.start()
    with pytest.raises(CancelledError):
        waiting.result(SOON)
    block.release.set()
    closer.join(SOON)
    assert not closer.is_alive()
    assert running.result(SOON) is None
    assert workers.submit("a", lambda: None).cancelled()
    workers.close()
    assert ran == []


def test_closing_has_ended_every_thread_and_a_process_does_not_wait_for_them() -> None:
    before = {*threading.enumerate()}
    workers = Workers(8, name="eight")
    made = {*threading.enumerate()} - before
    assert {thread.name for thread in made} == {f"eight-{number}" for number in range(8)}
    assert all(thread.daemon for thread in made)
    workers.close()
    assert not any(thread.is_alive() for thread in made)


def test_closing_waits_no_longer_than_it_may_and_tells_what_still_runs() -> None:
    workers = Workers(2)
    block = _Block()
    stuck = workers.submit("stuck", block)
    workers.submit("done", lambda: None).result(SOON)
    assert block.running.wait(SOON)
    assert workers.close(0.01) == ("stuck",)
    assert not stuck.done()
    block.release.set()
    assert workers.close(SOON) == ()

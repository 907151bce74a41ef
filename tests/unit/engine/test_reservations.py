"""What is decided is reserved in the same step."""

from __future__ import annotations

import threading
import time

import pytest

from nri_rdma.decide import decision as module
from nri_rdma.decide.decision import Decision, Question
from nri_rdma.decide.placement import Taken
from nri_rdma.decide.policy import Asker, offer
from nri_rdma.engine import reservations as reserving
from nri_rdma.engine.reservations import Reservations
from nri_rdma.model.request import DeviceRequest, Mode
from tests.unit.decide.questions import POLICY, names, question
from tests.unit.model.hardware import nic, node


def test_two_who_ask_at_once_never_get_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that is taken outside the lock is noticed here: both would see the device free."""
    reservations, decisions = Reservations(), list[Decision]()

    def slow(asked: Question, taken: Taken) -> Decision:
        found = module.decide(asked, taken)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(reserving, "decide", slow)
    threads = [
        threading.Thread(target=lambda it=name: decisions.append(reservations.place(it, question(owner=f"ns/{it}"))))
        for name in ("one", "two")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names(it) for it in decisions) == [[], ["mlx5_0"]]


def test_one_decision_asks_once_and_a_refusal_leaves_what_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    reservations, calls = Reservations(), list[str]()

    def counted(asked: Question, taken: Taken) -> Decision:
        calls.append(asked.owner)
        return module.decide(asked, taken)

    monkeypatch.setattr(reserving, "decide", counted)
    assert names(reservations.place("one", question())) == ["mlx5_0"]
    too_many = DeviceRequest(name="0", where="HERE[0]", count=9, mode=Mode.EXCLUSIVE)
    assert reservations.place("one", question(too_many)).refusal is not None
    assert (set(reservations.taken()), calls) == ({nic(0).id}, ["ns/pod", "ns/pod"])


def test_where_nothing_is_asked_for_nothing_is_held_any_more() -> None:
    reservations = Reservations()
    reservations.place("one", question())
    nothing = Question(
        owner="ns/pod", asker=Asker(), node=node((nic(0),)), policy=POLICY, offer=offer(POLICY, node((nic(0),)))
    )
    assert names(reservations.place("one", nothing)) == []
    assert reservations.taken() == {}
    assert reservations._holdings == {}  # nobody would release it

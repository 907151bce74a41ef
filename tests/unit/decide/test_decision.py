"""What a pod gets: one decision, made with what others have at that moment, and reserved in the same step."""

from __future__ import annotations

import threading
import time

import pytest

from nri_rdma.decide import decision as module
from nri_rdma.decide.decision import Decision, MemlockBounds, Question, decide
from nri_rdma.decide.gpus import PodGpus
from nri_rdma.decide.placement import Holding, Taken
from nri_rdma.decide.policy import Asker, default_policy, offer
from nri_rdma.engine import reservations
from nri_rdma.engine.reservations import Allocations
from nri_rdma.errors import ErrorCode
from nri_rdma.model.allocation import ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.device import Node
from nri_rdma.model.request import DeviceRequest, Mode, PodRequest
from tests.unit.model.hardware import nic, node, tied

ONE = DeviceRequest(name="0", where="HERE[0]", count=1, mode=Mode.EXCLUSIVE)
POLICY = default_policy(allow_exclusive=True)


def question(*requests: DeviceRequest, on: Node | None = None, owner: str = "ns/pod", **facts: object) -> Question:
    on = on or node((nic(0),))
    return Question(
        owner=owner,
        asker=Asker(),
        request=PodRequest(requests=requests or (ONE,)),
        node=on,
        policy=POLICY,
        offer=offer(POLICY, on),
        **facts,  # type: ignore[arg-type]  # fields of Question, by name
    )


def names(decision: Decision) -> list[str]:
    return [device.name for item in decision.placed for device in item.devices]


def test_a_refusal_is_an_answer_and_says_what_was_admitted_before_it() -> None:
    taken = {nic(0).id: frozenset({Holding(owner="ns/other", mode=Mode.EXCLUSIVE)})}
    decision = decide(question(), taken)
    assert decision.refusal is not None
    assert decision.refusal.code is ErrorCode.DEVICES_EXHAUSTED
    assert ([item.request.name for item in decision.admitted], decision.placed) == (["0"], ())


def test_a_limit_that_the_runtime_may_not_set_is_refused_before_anything_is_admitted() -> None:
    asked = DeviceRequest(name="0", where="HERE[0]", count=1, mode=Mode.EXCLUSIVE, memlock=1 << 20)
    decision = decide(question(asked, memlock=MemlockBounds(ceiling=4096)), {})
    assert decision.refusal is not None
    assert (decision.refusal.code, decision.admitted) == (ErrorCode.MEMLOCK_LIMIT, ())


def test_a_word_is_narrowed_to_the_containers_that_the_kubelet_gave_devices() -> None:
    word = DeviceRequest(name="0", where="HERE", count=1, mode=Mode.EXCLUSIVE, word=True)
    given = ContainerAllocation(name="main", resources=(DeviceIds(resource="nvidia.com/gpu", ids=("0",)),))
    decision = decide(question(word, allocation=PodAllocation(containers=(given,))), {})
    assert decision.request.requests[0].scope.only == frozenset({"main"})
    assert names(decision) == ["mlx5_0"]


def test_a_reading_helps_where_a_gpu_is_not_known_or_a_device_is_tied() -> None:
    late = PodGpus(unanswered="the kubelet answers too late")
    assert not decide(question(gpus=late), {}).reading_helps
    assert decide(question(gpus=late, allocation=PodAllocation()), {}).reading_helps
    on = node((tied(nic(0)), nic(1)))
    assert decide(question(on=on, has_ties=True), {}).reading_helps
    assert not decide(question(on=on, has_ties=False), {}).reading_helps


def test_two_who_ask_at_once_never_get_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that is taken outside the lock is noticed here: both would see the device free."""
    allocations, decisions = Allocations(), list[Decision]()

    def slow(asked: Question, taken: Taken) -> Decision:
        found = module.decide(asked, taken)
        time.sleep(0.05)
        return found

    monkeypatch.setattr(reservations, "decide", slow)
    threads = [
        threading.Thread(target=lambda it=name: decisions.append(allocations.place(it, question(owner=f"ns/{it}"))))
        for name in ("one", "two")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names(it) for it in decisions) == [[], ["mlx5_0"]]


def test_one_decision_asks_once_and_a_refusal_leaves_what_was_held(monkeypatch: pytest.MonkeyPatch) -> None:
    allocations, calls = Allocations(), list[str]()

    def counted(asked: Question, taken: Taken) -> Decision:
        calls.append(asked.owner)
        return module.decide(asked, taken)

    monkeypatch.setattr(reservations, "decide", counted)
    assert names(allocations.place("one", question())) == ["mlx5_0"]
    too_many = DeviceRequest(name="0", where="HERE[0]", count=9, mode=Mode.EXCLUSIVE)
    assert allocations.place("one", question(too_many)).refusal is not None
    assert (set(allocations.taken()), calls) == ({nic(0).id}, ["ns/pod", "ns/pod"])


def test_where_nothing_is_asked_for_nothing_is_held_any_more() -> None:
    allocations = Allocations()
    allocations.place("one", question())
    nothing = Question(
        owner="ns/pod", asker=Asker(), node=node((nic(0),)), policy=POLICY, offer=offer(POLICY, node((nic(0),)))
    )
    assert names(allocations.place("one", nothing)) == []
    assert allocations.taken() == {}

"""What a policy offers on a node is computed for both together, and anew when one of them changes."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from nri_rdma.decide import layout, placement
from nri_rdma.decide.decision import MemlockBounds, Question, decide
from nri_rdma.decide.policy import Asker, Pool, Rule, default_policy, policy_of
from nri_rdma.engine.asking import NOTHING_ASKED
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.offering import Offering
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.device import Node
from nri_rdma.model.request import DeviceRequest, Mode, PodRequest
from nri_rdma.model.selector import Selector
from tests.unit.attach.builders import make_pod
from tests.unit.engine.one_rail import OTHER_PATH, daemon, world
from tests.unit.model.hardware import gpu, nic, node, tied
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import ONE, Daemon
from tests.unit.rigs.policies import EXCLUSIVE_FIRST

__all__ = ["daemon", "world"]  # fixtures


class Scans:
    """A node whose next scan a test may change."""

    def __init__(self, *numbers: int) -> None:
        self.node = node(tuple(map(nic, numbers)))
        self.cache = NodeCache(self.read)
        self.offering = Offering(self.cache, default_policy(False), Adoption(), MemlockBounds(default=7))

    def read(self) -> Node:
        return self.node

    def ask(self) -> Question:
        return self.offering.question("ml/train", Asker(), NOTHING_ASKED, ())


def offered(question: Question) -> list[str]:
    return [device.name for device in question.offer.by_pool["default"]]


def test_a_question_has_what_is_true_now() -> None:
    scans = Scans(0, 1)
    question = scans.ask()
    assert (question.owner, question.node, question.memlock.default) == ("ml/train", scans.node, 7)
    assert offered(question) == ["mlx5_0", "mlx5_1"]


def test_a_scan_changes_the_offer_and_without_one_it_is_not_computed_again() -> None:
    scans = Scans(0, 1)
    before = scans.ask()
    assert scans.ask().offer is before.offer
    scans.node = node((nic(0),))
    assert scans.ask().offer is before.offer, "the node was not read yet"
    scans.cache.refresh()
    assert offered(scans.ask()) == ["mlx5_0"]


def test_what_placements_need_of_a_reading_is_worked_out_by_who_reads() -> None:
    """A pod's start waits for the decision; nobody waits for the reading."""
    scans = Scans(0, 1)
    scans.node = node((nic(0), nic(2)), (gpu(0),))
    scans.cache.refresh()
    request = PodRequest(requests=(DeviceRequest(name="0", where="HERE[0]"),))
    kept = (layout._layout, placement._clear)
    before = [it.cache_info().misses for it in kept]
    assert decide(replace(scans.ask(), request=request), {}).placed
    assert [it.cache_info().misses for it in kept] == before


def test_a_new_policy_counts_for_the_next_question() -> None:
    scans = Scans(0)
    before = scans.ask()
    scans.offering.policy = EXCLUSIVE_FIRST
    after = scans.ask()
    assert before.policy.pools["default"].modes != after.policy.pools["default"].modes
    assert after.policy is scans.offering.policy


def test_a_device_that_the_host_could_not_have_back_is_a_tie() -> None:
    scans = Scans(0)
    assert not scans.ask().has_ties
    scans.node = node((tied(nic(0)),))
    scans.cache.refresh()
    assert scans.ask().has_ties


def test_another_policy_is_for_pods_that_come_and_leaves_those_that_are_there(daemon: Daemon) -> None:
    daemon.start()
    daemon.engine.offering.policy = policy_of(
        (), (Rule(name="nobody", where="FILE:1", allow=False),), allow_default_pool=True
    )
    assert daemon.edits().char_devices
    with pytest.raises(PlacementError) as caught:
        daemon.start(make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH))
    assert caught.value.code is ErrorCode.POLICY_DENIED
    daemon.stop()
    assert daemon.holders == set()


def test_what_the_rules_can_know_of_a_pod_reaches_them(daemon: Daemon) -> None:
    rule = Rule(name="kata", where="FILE:1", runtime_handlers=("kata",), pod_labels=(("team", ("ml",)),))
    daemon.engine.offering.policy = policy_of((), (rule,), allow_default_pool=True)
    with pytest.raises(PlacementError):
        daemon.start()
    asker = Asker(namespace="ml", runtime_handler="kata", labels=(("team", "ml"),))
    daemon.engine.run_pod(daemon.engine.start_of(make_pod(), ONE, asker), time.monotonic() + SOON)
    assert daemon.edits().char_devices


def test_a_pool_has_what_it_selects_on_the_node_of_the_moment(daemon: Daemon) -> None:
    pools = [Pool(name="default", modes=(Mode.EXCLUSIVE,), select=(Selector(device=("no_such_device",)),))]
    daemon.engine.offering.policy = policy_of(pools, (), allow_default_pool=False)
    with pytest.raises(PlacementError) as caught:
        daemon.start()
    assert caught.value.code is ErrorCode.NOT_IN_POOL

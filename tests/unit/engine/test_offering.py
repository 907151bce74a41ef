"""What a policy offers on a node is computed for both together, and anew when one of them changes."""

from __future__ import annotations

from nri_rdma.decide.decision import MemlockBounds, Question
from nri_rdma.decide.policy import Asker, default_policy
from nri_rdma.engine.asking import NOTHING_ASKED
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.offering import Offering
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.device import Node
from tests.unit.model.hardware import nic, node, tied


class Scans:
    """A node whose next scan a test may change."""

    def __init__(self, *numbers: int) -> None:
        self.node = node(tuple(map(nic, numbers)))
        self.cache = NodeCache(self.read)
        self.offering = Offering(self.cache, default_policy(False), MemlockBounds(default=7))

    def read(self) -> Node:
        return self.node

    def ask(self) -> Question:
        return self.offering.question("ml/train", Asker(), NOTHING_ASKED, (), Adoption())


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


def test_a_new_policy_counts_for_the_next_question() -> None:
    scans = Scans(0)
    before = scans.ask()
    scans.offering.policy = default_policy(True)
    after = scans.ask()
    assert before.policy.pools["default"].modes != after.policy.pools["default"].modes
    assert after.policy is scans.offering.policy


def test_a_device_that_the_host_could_not_have_back_is_a_tie() -> None:
    scans = Scans(0)
    assert not scans.ask().has_ties
    scans.node = node((tied(nic(0)),))
    scans.cache.refresh()
    assert scans.ask().has_ties

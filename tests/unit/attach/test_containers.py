"""What is remembered of a sandbox's containers: cgroups, answers, and whether a guard came to them."""

from dataclasses import replace

import pytest

from nri_rdma.attach.containers import KEPT_CONTAINERS, SandboxContainers
from nri_rdma.attach.plan import Plan
from nri_rdma.attach.survey import attached_requests
from nri_rdma.model.request import Scope
from tests.unit.rigs.attachments import make_world, placed_on

ASKED = attached_requests(placed_on(make_world(), "rail0"), Plan())
"""What a pod has that asked by its annotation."""


@pytest.fixture
def containers() -> SandboxContainers:
    return SandboxContainers()


def test_answers_for_a_container_are_counted_until_it_starts(containers: SandboxContainers) -> None:
    assert [containers.answered("trainer") for _ in range(3)] == [1, 2, 3]
    containers.started("trainer", ASKED)
    assert containers.answered("trainer") == 1


def test_a_container_that_started_unverified_is_unguarded_until_a_start_that_was_verified(
    containers: SandboxContainers,
) -> None:
    containers.answered("trainer")
    containers.started("trainer", ASKED)
    assert containers.unguarded == {"trainer"}
    containers.answered("trainer")
    containers.unstarted["trainer"].verified = True
    containers.started("trainer", ASKED)
    assert containers.unguarded == set()


def test_of_a_pod_with_shares_only_the_containers_that_have_some_can_be_unguarded(
    containers: SandboxContainers,
) -> None:
    (item,) = ASKED
    request = replace(item.admitted.request, shares=("hcas-0",), scope=Scope(only=frozenset({"trainer"})))
    shared = replace(item, admitted=replace(item.admitted, request=request))
    for container in ("trainer", "sidecar"):
        containers.answered(container)
        containers.started(container, (shared,))
    assert containers.unguarded == {"trainer"}


def test_another_answer_needs_another_verification(containers: SandboxContainers) -> None:
    containers.answered("trainer")
    containers.unstarted["trainer"].verified = True
    containers.answered("trainer")
    containers.started("trainer", ASKED)
    assert containers.unguarded == {"trainer"}


def test_the_names_of_any_number_of_ephemeral_containers_take_bounded_memory(containers: SandboxContainers) -> None:
    for number in range(2 * KEPT_CONTAINERS):
        containers.answered(f"debug-{number}")
        containers.remember(f"debug-{number}", f"/kubepods/{number}")
    assert (len(containers.unstarted), len(containers.cgroups)) == (KEPT_CONTAINERS, KEPT_CONTAINERS)
    containers.remember("debug-0", "/kubepods/anew")
    assert containers.cgroups["debug-0"] == "/kubepods/anew"
    for number in range(2 * KEPT_CONTAINERS):
        containers.unstarted.clear()
        containers.answered(f"debug-{number}")
        containers.started(f"debug-{number}", ASKED)
    assert len(containers.unguarded) == KEPT_CONTAINERS


def test_of_a_pod_that_has_nothing_attached_yet_no_container_is_unguarded(containers: SandboxContainers) -> None:
    containers.answered("trainer")
    containers.started("trainer", ())
    assert containers.unguarded == set()

"""The moment before a container's process runs."""

from __future__ import annotations

import logging

import pytest

from nri_rdma.attach.containers import KEPT_CONTAINERS
from nri_rdma.decide.gpus import GpuEvidence
from tests.unit.attach.builders import make_pod
from tests.unit.engine.one_rail import daemon
from tests.unit.rigs.engine import Daemon
from tests.unit.rigs.engine_with_kubelet import MOVE, NIC, Node, node, spec, world

__all__ = ["daemon", "node", "world"]  # fixtures


def test_a_container_that_was_answered_for_is_not_started_until_it_starts(daemon: Daemon) -> None:
    daemon.start()
    daemon.engine.container_created("sandbox-1", "main", "/pod/main")
    assert list(daemon.sandbox().containers.unstarted) == ["main"]
    assert daemon.sandbox().containers.cgroups == {"main": "/pod/main"}
    daemon.starting("main", "/pod/main")
    assert list(daemon.sandbox().containers.unstarted) == []


def test_a_container_that_is_made_again_is_told_of_once(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.start()
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            daemon.engine.container_created("sandbox-1", "main", "/pod/main")
    (record,) = [it for it in caplog.records if it.levelno >= logging.WARNING]
    assert "did not start after our last answer" in record.message
    assert (record.__dict__["pod"], record.__dict__["container"]) == ("ml/train", "main")


def test_the_gpus_of_a_container_are_not_read_on_a_node_without_any(daemon: Daemon) -> None:
    daemon.start()
    asked: list[str] = []

    def gpus() -> GpuEvidence:
        asked.append("main")
        return GpuEvidence()

    daemon.engine.start_container("sandbox-1", "main", "/pod/main", gpus)
    assert asked == []


def test_a_container_of_a_sandbox_that_has_nothing_costs_nothing(daemon: Daemon) -> None:
    daemon.engine.container_created("sandbox-7", "main", "/pod/main")
    daemon.engine.start_container("sandbox-7", "main", "/pod/main")
    assert daemon.rig.sandboxes.all() == ()


def test_a_container_of_an_unknown_sandbox_starts(daemon: Daemon) -> None:
    daemon.starting()


def test_a_container_that_is_made_again_takes_the_place_of_the_old_one(daemon: Daemon) -> None:
    daemon.start()
    for path in ("/pod/first", "/pod/second"):
        daemon.engine.container_created("sandbox-1", "main", path)
    assert daemon.sandbox().containers.cgroups == {"main": "/pod/second"}


def test_not_more_containers_are_remembered_than_a_pod_can_have(daemon: Daemon) -> None:
    daemon.start()
    for number in range(KEPT_CONTAINERS + 9):
        daemon.engine.container_created("sandbox-1", f"debug-{number}", f"/pod/{number}")
    assert len(daemon.sandbox().containers.cgroups) == KEPT_CONTAINERS


def test_who_asks_only_by_a_claim_is_not_called_unguarded_because_the_guard_does_not_see_claims(node: Node) -> None:
    node.specify(spec(NIC, 1, keys=MOVE))
    pod = make_pod()
    node.create("main", 1, pod=pod)
    node.engine.container_created(pod.sandbox_id, "main", "/pod/main")
    node.engine.start_container(pod.sandbox_id, "main", "/pod/main")
    (sandbox,) = node.rig.sandboxes.of(pod.sandbox_id)
    assert (sandbox.containers.unstarted, sandbox.containers.unguarded) == ({}, set())


def test_a_container_that_starts_between_two_attempts_of_an_attach_is_not_called_unguarded(daemon: Daemon) -> None:
    daemon.start()
    daemon.engine.container_created("sandbox-1", "main", "/pod/main")
    daemon.sandbox().change(record=None)
    daemon.starting("main", "/pod/main")
    assert daemon.sandbox().containers.unguarded == set()

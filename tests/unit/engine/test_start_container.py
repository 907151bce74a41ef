"""The moment before a container's process runs."""

from __future__ import annotations

import logging

import pytest

from nri_rdma.decide.gpus import GpuEvidence
from tests.unit.engine.one_rail import daemon, world
from tests.unit.lifecycle_rig import Daemon

__all__ = ["daemon", "world"]  # fixtures


def test_a_container_that_was_answered_for_is_not_started_until_it_starts(daemon: Daemon) -> None:
    daemon.start()
    daemon.engine.container_created("sandbox-1", "main", "/pod/main")
    assert list(daemon.sandbox().unstarted) == ["main"]
    assert daemon.sandbox().containers == {"main": "/pod/main"}
    daemon.starting("main", "/pod/main")
    assert list(daemon.sandbox().unstarted) == []


def test_a_container_that_is_made_again_is_told_of_once(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    daemon.start()
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            daemon.engine.container_created("sandbox-1", "main", "/pod/main")
    (record,) = caplog.records
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
